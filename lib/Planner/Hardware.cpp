//===- Hardware.cpp - Hardware files and durations ------------------------===//
//
// Reads the file strictly: every number is finite and in a range in which no
// duration overflows, and nothing unknown is passed over.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Hardware.h"

#include "Toml.h"
#include "WhatIf.h"
#include "fsdp/Archive/InputFile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <sstream>

using namespace fsdp::planner;
using fsdp::archive::Error;
using fsdp::archive::Expected;

//===----------------------------------------------------------------------===//
// Durations
//===----------------------------------------------------------------------===//

/// No single operation takes longer, in nanoseconds.
static constexpr double week = 7.0 * 24 * 3600 * 1e9;

static double clampTime(double time) {
  return std::isnan(time) ? 0 : std::clamp(time, 0.0, week);
}

static int64_t toNanoseconds(double time) {
  return std::llround(clampTime(time));
}

static int64_t toPicoseconds(double nanoseconds) {
  return std::llround(1e3 * clampTime(nanoseconds));
}

int64_t Hardware::getDuration(const Computation &work) const {
  double rate = vector;
  if (work.kind == Computation::Kind::Matrix)
    rate = matrix[size_t(work.type)];
  else if (work.kind == Computation::Kind::Attention)
    rate = attention[size_t(work.type)];
  else if (work.kind == Computation::Kind::MaskedAttention)
    rate = maskedAttention[size_t(work.type)];
  else if (work.kind == Computation::Kind::FlashAttention)
    rate = flashAttention[size_t(work.type)];
  double bandwidth = work.isOnHost && host.memory ? host.memory
                     : work.bytes <= cacheBytes   ? cache
                                                  : memory;
  return toNanoseconds(launch +
                       std::max(work.flops / rate, work.bytes / bandwidth));
}

/// How many ranks of a group over several nodes one node has: of blocks at
/// equal distances exactly, else as many as their density says.
static int64_t countInNode(const Communication &work, int64_t nodeRanks) {
  double share = double(work.ranks) / double(std::max(work.span, work.ranks));
  int64_t block = std::min(work.block, nodeRanks);
  auto ranks = int64_t(double(nodeRanks) * share);
  return std::max(block, ranks / block * block);
}

Hardware::Way Hardware::findWay(const Communication &work) const {
  double bandwidth = node[size_t(work.kind)].bandwidth;
  if (!hasNetwork || std::max(work.span, work.ranks) <= nodeRanks)
    return {false, work.ranks, bandwidth};
  int64_t inNode = countInNode(work, nodeRanks);
  return {true, inNode,
          std::min(bandwidth,
                   double(inNode) * network[size_t(work.kind)].bandwidth)};
}

LinkUse Hardware::getLinks(const Communication &work) const {
  if (!sharedLink || work.ranks < 2)
    return {};
  Way way = findWay(work);
  auto getPart = [&](double bandwidth) {
    return uint16_t(std::llround(wholeLink * way.bandwidth / bandwidth));
  };
  auto kind = size_t(work.kind);
  LinkUse links = {};
  if (way.inNode > 1)
    links[0] = getPart(node[kind].bandwidth);
  if (way.leavesNode)
    links[1] = getPart(double(way.inNode) * network[kind].bandwidth);
  return links;
}

CollectiveCost Hardware::getCost(const Communication &work) const {
  double copies = work.copied / memory;
  if (work.ranks < 2)
    return {0, toPicoseconds(copies)};
  Line line = node[size_t(work.kind)];
  double steps = double(work.ranks - 1);
  double sent = work.bytes * steps / double(work.ranks);
  if (work.kind == CollectiveKind::AllReduce)
    sent *= 2;
  double latency = line.latency + line.perStep * steps;
  Way way = findWay(work);
  if (way.leavesNode) {
    const Line &out = network[size_t(work.kind)];
    double hops = std::ceil(double(work.ranks) / double(way.inNode)) - 1;
    latency = out.latency + out.perStep * hops + line.perStep * (steps - hops);
  }
  latency = clampTime(latency);
  double transfer = clampTime(sent / way.bandwidth + copies);
  return {toPicoseconds(latency),
          toPicoseconds(std::min(transfer, week - latency))};
}

int64_t Hardware::getDuration(const Communication &work) const {
  return getCost(work).getDuration();
}

int64_t Hardware::getDuration(const Transfer &work) const {
  return toNanoseconds(host.latency + work.bytes / host.bandwidth);
}

int64_t Hardware::getContention() const {
  return std::llround(1024 * contention);
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

namespace {

constexpr double mostNumber = 1e9, leastRate = 1e-3;
constexpr double mostSlowing = 8; // as in a step's model
constexpr double mostGiB = 1 << 20;

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
  /// A number from `least` to `most`.
  double getNumber(const toml::table &table, const std::string &where,
                   std::string_view key, double least,
                   double most = mostNumber);
  /// False if it is not there.
  bool getFlag(const toml::table &table, const std::string &where,
               std::string_view key);
  void readRates(const toml::table &compute, std::string_view key,
                 std::array<double, numFloatTypes> &rates);
  void readMemory(const toml::table &memory, Hardware &hardware);
  void readLinks(const toml::table &link, Hardware &hardware);
  /// A line for each collective; `step` is the key of its steps.
  void readLink(const toml::table &table, const std::string &where,
                std::string_view step, Hardware::Link &link);

  std::string path, error;
};

std::string join(const std::string &where, std::string_view key) {
  return where.empty() ? std::string(key) : where + "." + std::string(key);
}

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
                         std::string_view key, double least, double most) {
  const toml::node *node = table.get(key);
  bool isNumber = node && node->is_number();
  double value = isNumber ? node->value_or(0.0) : 0.0;
  if (isNumber && value >= least && value <= most)
    return value;
  std::ostringstream expected;
  expected << "expected a number from " << least << " to " << most
           << ", found ";
  if (isNumber)
    expected << value;
  else
    expected << (node ? "something else" : "nothing");
  fail(join(where, key), expected.str());
  return least;
}

bool Reader::getFlag(const toml::table &table, const std::string &where,
                     std::string_view key) {
  const toml::node *node = table.get(key);
  if (node && !node->is_boolean())
    fail(join(where, key), "expected true or false");
  return node && node->value_or(false);
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
                      std::string_view step, Hardware::Link &link) {
  size_t i = 0;
  for (std::string_view kind : {"all_gather", "reduce_scatter", "all_reduce"}) {
    Hardware::Line &line = link[i++];
    const toml::table *row = getTable(table, where, kind);
    if (!row)
      return;
    std::string at = join(where, kind);
    expectKeys(*row, at, {"latency_us", step, "gbytes"});
    line.latency = 1e3 * getNumber(*row, at, "latency_us", 0);
    line.perStep = 1e3 * getNumber(*row, at, step, 0);
    line.bandwidth = getNumber(*row, at, "gbytes", leastRate);
  }
}

void Reader::readMemory(const toml::table &memory, Hardware &hardware) {
  expectKeys(memory, "memory",
             {"gbytes", "cache_gbytes", "cache_mbytes", "gib"});
  hardware.memory = getNumber(memory, "memory", "gbytes", leastRate);
  hardware.cache = hardware.memory;
  if (memory.contains("cache_gbytes") || memory.contains("cache_mbytes")) {
    hardware.cache = getNumber(memory, "memory", "cache_gbytes", leastRate);
    hardware.cacheBytes = 1e6 * getNumber(memory, "memory", "cache_mbytes", 0);
  }
  if (memory.contains("gib"))
    hardware.capacity = double(1 << 30) *
                        getNumber(memory, "memory", "gib", leastRate, mostGiB);
}

void Reader::readLinks(const toml::table &link, Hardware &hardware) {
  expectKeys(link, "link", {"node", "network"});
  if (const toml::table *node = getTable(link, "link", "node")) {
    expectKeys(*node, "link.node",
               {"ranks", "all_gather", "reduce_scatter", "all_reduce"});
    hardware.nodeRanks = int64_t(getNumber(*node, "link.node", "ranks", 1));
    readLink(*node, "link.node", "rank_us", hardware.node);
  }
  hardware.hasNetwork = link.contains("network");
  if (!hardware.hasNetwork)
    return;
  if (const toml::table *network = getTable(link, "link", "network")) {
    expectKeys(*network, "link.network",
               {"all_gather", "reduce_scatter", "all_reduce"});
    readLink(*network, "link.network", "node_us", hardware.network);
  }
}

Expected<Hardware> Reader::read(const toml::table &root) {
  Hardware hardware;
  expectKeys(root, "",
             {"name", "launch_us", "shared_core", "shared_link", "contention",
              "compute", "memory", "host", "link"});
  if (auto name = root["name"].value<std::string>())
    hardware.name = *name;
  else
    fail("name", "expected a text");
  hardware.launch = 1e3 * getNumber(root, "", "launch_us", 0);
  hardware.sharedCore = getFlag(root, "", "shared_core");
  hardware.sharedLink = getFlag(root, "", "shared_link");
  if (root.contains("contention"))
    hardware.contention = getNumber(root, "", "contention", 0, mostSlowing);
  const char *beside = hardware.contention > 0 ? "contention"
                       : hardware.sharedLink   ? "shared_link"
                                               : nullptr;
  if (hardware.sharedCore && beside)
    fail(beside, "expected none beside shared_core = true, where nothing "
                 "runs beside a collective");

  if (const toml::table *compute = getTable(root, "", "compute")) {
    expectKeys(*compute, "compute",
               {"matrix", "attention", "masked_attention", "flash_attention",
                "cudnn_attention", "vector", "peak"});
    readRates(*compute, "matrix", hardware.matrix);
    readRates(*compute, "attention", hardware.attention);
    for (auto [key, rates] :
         {std::pair("masked_attention", &hardware.maskedAttention),
          std::pair("flash_attention", &hardware.flashAttention)}) {
      *rates = hardware.attention;
      if (compute->contains(key))
        readRates(*compute, key, *rates);
    }
    if (compute->contains("peak"))
      readRates(*compute, "peak", hardware.peak);
    hardware.hasCudnnAttention =
        getFlag(*compute, "compute", "cudnn_attention");
    hardware.vector = getNumber(*compute, "compute", "vector", leastRate);
  }
  if (const toml::table *memory = getTable(root, "", "memory"))
    readMemory(*memory, hardware);
  if (root.contains("host"))
    if (const toml::table *host = getTable(root, "", "host")) {
      expectKeys(*host, "host", {"latency_us", "link_gbytes", "gbytes"});
      hardware.host = {1e3 * getNumber(*host, "host", "latency_us", 0),
                       getNumber(*host, "host", "link_gbytes", leastRate),
                       getNumber(*host, "host", "gbytes", leastRate)};
    }
  if (const toml::table *link = getTable(root, "", "link"))
    readLinks(*link, hardware);
  if (!error.empty())
    return Error{error};
  return hardware;
}

static Expected<toml::table> parseHardwareTables(std::string_view text,
                                                 const std::string &path) {
  return parseToml(text, path, "hardware file", 64 * 1024);
}

Expected<Hardware> fsdp::planner::parseHardware(std::string_view text,
                                                const std::string &path,
                                                const std::string &factors) {
  Expected<toml::table> root = parseHardwareTables(text, path);
  if (root && !factors.empty())
    root = applyFactors(std::move(*root), factors, path);
  return root ? Reader(path).read(*root) : root.error();
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

static void writeRates(std::ostream &os, const char *name,
                       const std::array<double, numFloatTypes> &rates) {
  os << name << " = { f64 = " << rates[0] << ", f32 = " << rates[1]
     << ", bf16 = " << rates[2] << ", f16 = " << rates[3] << " }\n";
}

static void writeLink(std::ostream &os, const char *step,
                      const Hardware::Link &link) {
  static constexpr const char *kinds[] = {"all_gather", "reduce_scatter",
                                          "all_reduce"};
  for (size_t i = 0; i != numCollectiveKinds; ++i)
    os << kinds[i] << " = { latency_us = " << link[i].latency / 1e3 << ", "
       << step << " = " << link[i].perStep / 1e3
       << ", gbytes = " << link[i].bandwidth << " }\n";
}

std::string fsdp::planner::write(const Hardware &hardware) {
  std::string name = hardware.name;
  for (char &c : name)
    if (c < ' ' || c > '~' || c == '"' || c == '\\')
      c = '_';
  std::ostringstream os;
  os << "name = \"" << name << "\"\n"
     << "launch_us = " << hardware.launch / 1e3 << "\n";
  if (hardware.sharedCore)
    os << "shared_core = true\n";
  if (hardware.sharedLink)
    os << "shared_link = true\n";
  if (hardware.contention > 0)
    os << "contention = " << hardware.contention << "\n";
  os << "\n[compute]\n";
  writeRates(os, "matrix", hardware.matrix);
  writeRates(os, "attention", hardware.attention);
  if (hardware.maskedAttention != hardware.attention)
    writeRates(os, "masked_attention", hardware.maskedAttention);
  if (hardware.flashAttention != hardware.attention)
    writeRates(os, "flash_attention", hardware.flashAttention);
  if (hardware.hasCudnnAttention)
    os << "cudnn_attention = true\n";
  if (hardware.peak[0] > 0)
    writeRates(os, "peak", hardware.peak);
  os << "vector = " << hardware.vector
     << "\n\n[memory]\ngbytes = " << hardware.memory << "\n";
  if (hardware.cacheBytes > 0)
    os << "cache_gbytes = " << hardware.cache
       << "\ncache_mbytes = " << hardware.cacheBytes / 1e6 << "\n";
  if (hardware.capacity > 0)
    os << "gib = " << hardware.capacity / double(1 << 30) << "\n";
  if (hardware.host.bandwidth > 0)
    os << "\n[host]\nlatency_us = " << hardware.host.latency / 1e3
       << "\nlink_gbytes = " << hardware.host.bandwidth
       << "\ngbytes = " << hardware.host.memory << "\n";
  os << "\n[link.node]\nranks = " << hardware.nodeRanks << "\n";
  writeLink(os, "rank_us", hardware.node);
  if (hardware.hasNetwork) {
    os << "\n[link.network]\n";
    writeLink(os, "node_us", hardware.network);
  }
  return os.str();
}

//===----------------------------------------------------------------------===//
// Built-in files
//===----------------------------------------------------------------------===//

namespace {
struct Builtin {
  std::string_view name, text;
};
constexpr Builtin builtins[] = {
#include "BuiltinHardware.inc"
};
} // namespace

std::vector<std::string_view> fsdp::planner::getBuiltinHardware() {
  std::vector<std::string_view> names;
  for (const Builtin &builtin : builtins)
    names.push_back(builtin.name);
  return names;
}

/// The text of a hardware file, and what errors call it.
static Expected<std::pair<std::string, std::string>>
readText(const std::string &nameOrPath) {
  for (const Builtin &builtin : builtins)
    if (builtin.name == nameOrPath)
      return std::pair(std::string(builtin.text),
                       "hardware/" + nameOrPath + ".toml");
  Expected<std::string> text = fsdp::archive::InputFile::readWhole(nameOrPath);
  if (!text)
    return text.error();
  return std::pair(std::move(*text), nameOrPath);
}

Expected<Hardware> fsdp::planner::loadHardware(const std::string &nameOrPath,
                                               const std::string &factors) {
  auto file = readText(nameOrPath);
  return file ? parseHardware(file->first, file->second, factors)
              : file.error();
}

/// What `measured` has takes the place of what `root` has.
static void replaceNumbers(toml::table &root, const toml::table &measured) {
  for (auto &&[key, node] : measured) {
    toml::node *own = root.get(key);
    if (own && own->is_table() && node.is_table())
      replaceNumbers(*own->as_table(), *node.as_table());
    else
      root.insert_or_assign(key, node);
  }
}

Expected<Hardware>
fsdp::planner::loadMeasuredHardware(const std::string &nameOrPath,
                                    const std::string &ratesPath) {
  auto file = readText(nameOrPath);
  if (!file)
    return file.error();
  auto root = parseHardwareTables(file->first, file->second);
  if (!root)
    return root.error();
  auto text = fsdp::archive::InputFile::readWhole(ratesPath);
  if (!text)
    return text.error();
  auto rates = parseHardwareTables(*text, ratesPath);
  if (!rates)
    return rates.error();
  replaceNumbers(*root, *rates);
  return Reader(ratesPath + " in " + file->second).read(*root);
}

std::string fsdp::planner::findKeptHardware(std::string_view device) {
  const char *config = std::getenv("XDG_CONFIG_HOME");
  const char *home = std::getenv("HOME");
  std::filesystem::path folder;
  if (config && *config)
    folder = config;
  else if (home && *home)
    folder = std::filesystem::path(home) / ".config";
  else
    return "";
  folder /=
      std::filesystem::path("fsdp-mlir") / (std::string(device) + ".toml");
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder, ignored) ? folder.string()
                                                           : "";
}
