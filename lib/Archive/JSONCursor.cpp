//===- JSONCursor.cpp - JSON values that know where they are --------------===//

#include "JSONCursor.h"

#include <optional>
#include <unordered_set>

using namespace fsdp::archive;
using simdjson::dom::element_type;

Expected<JSONCursor> JSONCursor::parse(simdjson::dom::parser &parser,
                                       std::string_view text,
                                       std::string path) {
  simdjson::dom::element root;
  if (auto error = parser.parse(text.data(), text.size()).get(root))
    return Error{path + ": expected JSON, found an error: " +
                 simdjson::error_message(error)};
  return JSONCursor(root, std::move(path));
}

Expected<std::vector<JSONCursor::Member>> JSONCursor::members() const {
  simdjson::dom::object object;
  if (element.get(object))
    return expected("an object");
  std::vector<Member> result;
  std::unordered_set<std::string_view> keys;
  for (simdjson::dom::key_value_pair field : object) {
    if (!keys.insert(field.key).second)
      return Error{path + ": expected distinct keys, found '" +
                   std::string(field.key) + "' twice"};
    result.push_back(
        {field.key, {field.value, path + "." + std::string(field.key)}});
  }
  return result;
}

Expected<std::vector<JSONCursor>> JSONCursor::elements() const {
  simdjson::dom::array array;
  if (element.get(array))
    return expected("an array");
  std::vector<JSONCursor> result;
  for (simdjson::dom::element value : array)
    result.push_back({value, path + "[" + std::to_string(result.size()) + "]"});
  return result;
}

Expected<JSONCursor> JSONCursor::at(std::string_view key) const {
  simdjson::dom::object object;
  if (element.get(object))
    return expected("an object");
  const std::string name(key);
  std::optional<JSONCursor> result;
  for (simdjson::dom::key_value_pair field : object) {
    if (field.key != key)
      continue;
    if (result)
      return Error{path + ": expected distinct keys, found '" + name +
                   "' twice"};
    result.emplace(field.value, path + "." + name);
  }
  if (!result)
    return Error{path + ": expected a member '" + name + "', found none"};
  return std::move(*result);
}

Expected<int64_t> JSONCursor::asInteger() const {
  int64_t value = 0;
  if (element.get(value))
    return expected("an integer");
  return value;
}

Expected<double> JSONCursor::asNumber() const {
  double value = 0;
  if (element.get(value))
    return expected("a number");
  return value;
}

Expected<bool> JSONCursor::asBool() const {
  bool value = false;
  if (element.get(value))
    return expected("true or false");
  return value;
}

Expected<std::string_view> JSONCursor::asString() const {
  std::string_view value;
  if (element.get(value))
    return expected("a string");
  return value;
}

Error JSONCursor::expected(std::string_view what) const {
  std::string found;
  switch (element.type()) {
  case element_type::OBJECT:
    found = "an object";
    break;
  case element_type::ARRAY:
    found = "an array";
    break;
  case element_type::STRING: {
    std::string_view text = *asString();
    found = text.size() > 60 ? "a long string" : "'" + std::string(text) + "'";
    break;
  }
  default: // null, true, false and numbers are short: as they are written
    found = simdjson::minify(element);
    break;
  }
  return Error{path + ": expected " + std::string(what) + ", found " + found};
}
