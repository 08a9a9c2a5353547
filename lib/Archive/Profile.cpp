//===- Profile.cpp - Measured times of a step -----------------------------===//

#include "fsdp/Archive/Profile.h"

#include "JSONCursor.h"
#include "fsdp/Archive/InputFile.h"

#include <algorithm>
#include <cmath>
#include <tuple>

using namespace fsdp::archive;

namespace {

/// Reads the fields of one row; the first error stays.
class Row {
public:
  explicit Row(const JSONCursor &cursor) : cursor(cursor) {}

  std::string text(std::string_view key) {
    auto value = read(key, &JSONCursor::asString);
    return value ? std::string(*value) : std::string();
  }
  int64_t count(std::string_view key) {
    auto value = read(key, &JSONCursor::asInteger);
    if (value && *value < 1)
      fail(cursor.at(key)->expected("an integer of at least 1"));
    return value ? *value : 0;
  }
  /// In nanoseconds.
  int64_t duration(std::string_view key) {
    constexpr double most = 24 * 60 * 60;
    auto value = read(key, &JSONCursor::asNumber);
    if (!value)
      return 0;
    if (!(*value >= 0 && *value <= most)) {
      fail(cursor.at(key)->expected("seconds from 0 to 86400"));
      return 0;
    }
    return std::llround(1e9 * *value);
  }
  Profile::Collective::Kind kind(std::string_view key) {
    using Kind = Profile::Collective::Kind;
    std::string name = text(key);
    if (name == "reduce_scatter")
      return Kind::ReduceScatter;
    if (name == "all_reduce")
      return Kind::AllReduce;
    if (name != "all_gather" && error.empty())
      fail(cursor.at(key)->expected(
          "one of all_gather, reduce_scatter and all_reduce"));
    return Kind::AllGather;
  }

  /// Empty if all fields could be read.
  std::string error;

private:
  template <typename T>
  Expected<T> read(std::string_view key,
                   Expected<T> (JSONCursor::*as)() const) {
    auto value = cursor.at(key);
    Expected<T> result = value ? (*value.*as)() : value.error();
    if (!result)
      fail(result.error());
    return result;
  }
  void fail(const Error &why) {
    if (error.empty())
      error = why.message;
  }

  const JSONCursor &cursor;
};

/// Reads an array of objects.
template <typename Visit>
std::string forEachRow(const JSONCursor &root, std::string_view key,
                       Visit visit) {
  auto array = root.at(key);
  if (!array)
    return array.error().message;
  auto elements = array->elements();
  if (!elements)
    return elements.error().message;
  for (const JSONCursor &element : *elements) {
    Row row(element);
    visit(row);
    if (!row.error.empty())
      return row.error;
  }
  return {};
}

/// Two of sorted rows that are of the same, or the end.
template <typename T, typename Key> auto sortAndFindTwins(T &rows, Key key) {
  std::sort(rows.begin(), rows.end(),
            [&](const auto &a, const auto &b) { return key(a) < key(b); });
  return std::adjacent_find(
      rows.begin(), rows.end(),
      [&](const auto &a, const auto &b) { return key(a) == key(b); });
}

} // namespace

Expected<Profile> Profile::parse(std::string_view text,
                                 const std::string &path) {
  simdjson::dom::parser parser;
  auto root = JSONCursor::parse(parser, text, path);
  if (!root)
    return root.error();
  Profile profile;
  std::string error = forEachRow(*root, "nodes", [&](Row &row) {
    Node node{row.text("node"), row.duration("seconds")};
    if (row.text("stream") == "compute")
      profile.nodes.push_back(std::move(node));
  });
  if (error.empty())
    error = forEachRow(*root, "collectives", [&](Row &row) {
      profile.collectives.push_back({row.kind("kind"), row.count("bytes"),
                                     row.count("ranks"),
                                     row.duration("seconds")});
    });
  if (!error.empty())
    return Error{error};

  if (auto twin = sortAndFindTwins(profile.nodes,
                                   [](const Node &node) { return node.name; });
      twin != profile.nodes.end())
    return Error{path + ".nodes: expected each node of the compute stream " +
                 "once, found '" + twin->name + "' twice"};
  if (auto twin = sortAndFindTwins(profile.collectives,
                                   [](const Collective &row) {
                                     return std::tuple(row.kind, row.bytes,
                                                       row.ranks);
                                   });
      twin != profile.collectives.end())
    return Error{path + ".collectives: expected each kind, bytes and ranks " +
                 "once, found " + std::to_string(twin->bytes) + " bytes on " +
                 std::to_string(twin->ranks) + " ranks twice"};
  return profile;
}

Expected<Profile> Profile::read(const std::string &path) {
  auto text = InputFile::readWhole(path);
  return text ? parse(*text, path) : text.error();
}
