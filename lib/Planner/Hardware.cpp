//===- Hardware.cpp - Hardware files and durations ------------------------===//
//
// Reads the file strictly: every number is finite and in a range in which no
// duration overflows, and nothing unknown is passed over.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Hardware.h"

#include "Toml.h"
#include "fsdp/Archive/InputFile.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <sstream>

using namespace fsdp::planner;
using fsdp::archive::Error;
using fsdp::archive::Expected;

//===----------------------------------------------------------------------===//
// Durations
//===----------------------------------------------------------------------===//

/// Whole nanoseconds; no single operation takes longer than a week.
static int64_t toNanoseconds(double time) {
  constexpr double week = 7.0 * 24 * 3600 * 1e9;
  return std::isnan(time) ? 0 : std::llround(std::clamp(time, 0.0, week));
}

int64_t Hardware::getDuration(const Computation &work) const {
  double rate = vector;
  if (work.kind == Computation::Kind::Matrix)
    rate = matrix[size_t(work.type)];
  else if (work.kind == Computation::Kind::Attention)
    rate = attention[size_t(work.type)];
  double bandwidth = work.isOnHost && host.memory ? host.memory
                     : work.bytes <= cacheBytes   ? cache
                                                  : memory;
  return toNanoseconds(launch +
                       std::max(work.flops / rate, work.bytes / bandwidth));
}

int64_t Hardware::getDuration(const Communication &work) const {
  double copy = work.copied / memory;
  if (work.ranks < 2)
    return toNanoseconds(copy);
  const Line &line =
      (work.ranks <= nodeRanks ? node : network)[size_t(work.kind)];
  double others = double(work.ranks - 1);
  double sent = work.bytes * others / double(work.ranks);
  if (work.kind == CollectiveKind::AllReduce)
    sent *= 2;
  return toNanoseconds(line.latency + line.perRank * others +
                       sent / line.bandwidth + copy);
}

int64_t Hardware::getDuration(const Transfer &work) const {
  return toNanoseconds(host.latency + work.bytes / host.bandwidth);
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

namespace {

/// Reads tables and keeps the first error.
class Reader {
public:
  explicit Reader(std::string path) : path(std::move(path)) {}

  Expected<Hardware> read(const toml::table &root);

private:
  void fail(const std::string &where, const std::string &message) {
    if (error.empty())
      error = path + ": " + where + ": " + message;
  }
  /// Rejects keys that nobody reads.
  void expectKeys(const toml::table &table, const std::string &where,
                  std::initializer_list<std::string_view> known);
  const toml::table *getTable(const toml::table &parent,
                              const std::string &where, std::string_view key);
  /// A number from `least` to 10^9.
  double getNumber(const toml::table &table, const std::string &where,
                   std::string_view key, double least);
  void readRates(const toml::table &compute, std::string_view key,
                 std::array<double, numFloatTypes> &rates);
  void readLink(const toml::table &table, const std::string &where,
                Hardware::Link &link);

  std::string path, error;
};

std::string join(const std::string &where, std::string_view key) {
  return where.empty() ? std::string(key) : where + "." + std::string(key);
}

constexpr double mostNumber = 1e9, leastRate = 1e-3;

} // namespace

void Reader::expectKeys(const toml::table &table, const std::string &where,
                        std::initializer_list<std::string_view> known) {
  if (std::optional<UnknownKey> unknown = findUnknownKey(table, known))
    fail(where.empty() ? "top level" : where,
         unknown->expected + ", found '" + unknown->name + "'");
}

const toml::table *Reader::getTable(const toml::table &parent,
                                    const std::string &where,
                                    std::string_view key) {
  const toml::node *node = parent.get(key);
  if (node && node->is_table())
    return node->as_table();
  fail(join(where, key), node ? "expected a table"
                              : "expected a table, found "
                                "nothing");
  return nullptr;
}

double Reader::getNumber(const toml::table &table, const std::string &where,
                         std::string_view key, double least) {
  const toml::node *node = table.get(key);
  bool isNumber = node && node->is_number();
  double value = isNumber ? node->value_or(0.0) : 0.0;
  if (isNumber && value >= least && value <= mostNumber)
    return value;
  std::ostringstream expected;
  expected << "expected a number from " << least << " to " << mostNumber
           << ", found ";
  if (isNumber)
    expected << value;
  else
    expected << (node ? "something else" : "nothing");
  fail(join(where, key), expected.str());
  return least;
}

void Reader::readRates(const toml::table &compute, std::string_view key,
                       std::array<double, numFloatTypes> &rates) {
  std::string where = join("compute", key);
  const toml::table *table = getTable(compute, "compute", key);
  if (!table)
    return;
  expectKeys(*table, where, {"f64", "f32", "bf16", "f16"});
  size_t i = 0;
  for (std::string_view type : {"f64", "f32", "bf16", "f16"})
    rates[i++] = getNumber(*table, where, type, leastRate);
}

void Reader::readLink(const toml::table &table, const std::string &where,
                      Hardware::Link &link) {
  size_t i = 0;
  for (std::string_view kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
    Hardware::Line &line = link[i++];
    const toml::table *row = getTable(table, where, kind);
    if (!row)
      return;
    std::string at = join(where, kind);
    expectKeys(*row, at, {"latency_us", "rank_us", "gbytes"});
    line.latency = 1e3 * getNumber(*row, at, "latency_us", 0);
    line.perRank = 1e3 * getNumber(*row, at, "rank_us", 0);
    line.bandwidth = getNumber(*row, at, "gbytes", leastRate);
  }
}

Expected<Hardware> Reader::read(const toml::table &root) {
  Hardware hardware;
  expectKeys(root, "",
             {"name", "launch_us", "shared_core", "compute", "memory", "host",
              "link"});
  if (auto name = root["name"].value<std::string>())
    hardware.name = *name;
  else
    fail("name", "expected a text");
  hardware.launch = 1e3 * getNumber(root, "", "launch_us", 0);
  if (const toml::node *shared = root.get("shared_core")) {
    if (!shared->is_boolean())
      fail("shared_core", "expected true or false");
    hardware.sharedCore = shared->value_or(false);
  }

  if (const toml::table *compute = getTable(root, "", "compute")) {
    expectKeys(*compute, "compute", {"matrix", "attention", "vector"});
    readRates(*compute, "matrix", hardware.matrix);
    readRates(*compute, "attention", hardware.attention);
    hardware.vector = getNumber(*compute, "compute", "vector", leastRate);
  }
  if (const toml::table *memory = getTable(root, "", "memory")) {
    expectKeys(*memory, "memory", {"gbytes", "cache_gbytes", "cache_mbytes"});
    hardware.memory = getNumber(*memory, "memory", "gbytes", leastRate);
    hardware.cache = hardware.memory;
    if (memory->contains("cache_gbytes") || memory->contains("cache_mbytes")) {
      hardware.cache = getNumber(*memory, "memory", "cache_gbytes", leastRate);
      hardware.cacheBytes =
          1e6 * getNumber(*memory, "memory", "cache_mbytes", 0);
    }
  }
  if (root.contains("host"))
    if (const toml::table *host = getTable(root, "", "host")) {
      expectKeys(*host, "host", {"latency_us", "link_gbytes", "gbytes"});
      hardware.host = {1e3 * getNumber(*host, "host", "latency_us", 0),
                       getNumber(*host, "host", "link_gbytes", leastRate),
                       getNumber(*host, "host", "gbytes", leastRate)};
    }
  if (const toml::table *link = getTable(root, "", "link")) {
    expectKeys(*link, "link", {"node", "network"});
    if (const toml::table *node = getTable(*link, "link", "node")) {
      expectKeys(*node, "link.node",
                 {"ranks", "all_gather", "reduce_scatter", "all_reduce"});
      hardware.nodeRanks = int64_t(getNumber(*node, "link.node", "ranks", 1));
      readLink(*node, "link.node", hardware.node);
    }
    hardware.network = hardware.node;
    if (link->contains("network"))
      if (const toml::table *network = getTable(*link, "link", "network")) {
        expectKeys(*network, "link.network",
                   {"all_gather", "reduce_scatter", "all_reduce"});
        readLink(*network, "link.network", hardware.network);
      }
  }
  if (!error.empty())
    return Error{error};
  return hardware;
}

Expected<Hardware> fsdp::planner::parseHardware(std::string_view text,
                                                const std::string &path) {
  Expected<toml::table> root =
      parseToml(text, path, "hardware file", 64 * 1024);
  return root ? Reader(path).read(*root) : root.error();
}

namespace {
struct Builtin {
  std::string_view name, text;
};
constexpr Builtin builtins[] = {
#include "BuiltinHardware.inc"
};
} // namespace

Expected<Hardware> fsdp::planner::loadHardware(const std::string &nameOrPath) {
  for (const Builtin &builtin : builtins)
    if (builtin.name == nameOrPath)
      return parseHardware(builtin.text, "hardware/" + nameOrPath + ".toml");
  Expected<archive::InputFile> file = archive::InputFile::open(nameOrPath);
  if (!file)
    return file.error();
  Expected<std::string> text = file->read();
  return text ? parseHardware(*text, nameOrPath) : text.error();
}
