//===- Toml.h - Text to tables ----------------------------------*- C++ -*-===//

#ifndef FSDP_LIB_PLANNER_TOML_H
#define FSDP_LIB_PLANNER_TOML_H

#include "fsdp/Archive/Expected.h"

#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

// toml++ 3.3 asserts, and in release builds assumes, what bad text can break:
// `[+]` is enough. Here such an assertion is an error like any other.
#undef NDEBUG
namespace fsdp::planner {
[[noreturn]] inline void rejectToml() {
  throw std::runtime_error("expected TOML");
}
} // namespace fsdp::planner
#define TOML_ASSERT(condition)                                                 \
  ((condition) ? void() : ::fsdp::planner::rejectToml())
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

namespace fsdp::planner {

/// The tables of an ASCII text of at most `mostBytes`; `what` says what it is,
/// and errors name `path`.
archive::Expected<toml::table> parseToml(std::string_view text,
                                         const std::string &path,
                                         const char *what, size_t mostBytes);

/// A key of a table that nobody knows.
struct UnknownKey {
  const toml::node &value;
  std::string name;
  std::string expected; ///< "expected only a, b"
};
/// The first key of `table` that is none of `known`.
std::optional<UnknownKey>
findUnknownKey(const toml::table &table,
               std::initializer_list<std::string_view> known);

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_TOML_H
