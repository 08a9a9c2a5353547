//===- JSONCursor.h - JSON values that know where they are ------*- C++ -*-===//
//
// A value of a parsed JSON document together with its path, so that a failed
// expectation says where: `config.h.0.bias.is_param: expected true or false,
// found 3`. For the small tables of this library; private to it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_ARCHIVE_JSONCURSOR_H
#define FSDP_LIB_ARCHIVE_JSONCURSOR_H

#include "fsdp/Archive/Expected.h"

#include <simdjson.h>

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::archive {

/// One value; valid as long as the parser that made it.
class JSONCursor {
public:
  JSONCursor(simdjson::dom::element element, std::string path)
      : element(element), path(std::move(path)) {}

  /// Parses `text`, which `path` names in errors; copies it for its padding.
  static Expected<JSONCursor> parse(simdjson::dom::parser &parser,
                                    std::string_view text, std::string path);

  struct Member;
  /// The members in the order of the file. Rejects what is not an object, and
  /// keys that occur twice.
  Expected<std::vector<Member>> members() const;
  /// The elements. Rejects what is not an array.
  Expected<std::vector<JSONCursor>> elements() const;
  /// The member called `key` of an object that has it, once.
  Expected<JSONCursor> at(std::string_view key) const;

  Expected<int64_t> asInteger() const;
  Expected<double> asNumber() const;
  Expected<bool> asBool() const;
  Expected<std::string_view> asString() const;

  bool isObject() const { return element.is_object(); }

  /// `<path>: expected <what>, found <this value>`.
  Error expected(std::string_view what) const;

  const std::string &where() const { return path; }

private:
  simdjson::dom::element element;
  std::string path;
};

struct JSONCursor::Member {
  std::string_view key;
  JSONCursor value;
};

} // namespace fsdp::archive

#endif // FSDP_LIB_ARCHIVE_JSONCURSOR_H
