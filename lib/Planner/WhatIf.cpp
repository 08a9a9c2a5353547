//===- WhatIf.cpp - Another machine than that of the file -----------------===//
//
// Factors go to the numbers of a file before it is read: whatever a number may
// be, its product is checked as if it stood there.
//
//===----------------------------------------------------------------------===//

#include "WhatIf.h"

#include <charconv>
#include <cmath>
#include <sstream>

using namespace fsdp::planner;
using fsdp::archive::Error;
using fsdp::archive::Expected;

/// Multiplies all numbers of this name in the table and below it. Returns how
/// many there are.
static size_t scale(toml::table &table, std::string_view name, double factor) {
  size_t count = 0;
  for (auto &&[key, node] : table) {
    if (toml::table *inner = node.as_table()) {
      count += scale(*inner, name, factor);
    } else if (key.str() == name && node.is_number()) {
      table.insert_or_assign(key, node.value_or(0.0) * factor);
      ++count;
    }
  }
  return count;
}

/// "KEY=FACTORx": a path of tables and the name of a number.
static std::string apply(toml::table &root, const std::string &text,
                         const std::string &path) {
  size_t equals = text.find('=');
  std::string key = text.substr(0, equals);
  std::string number =
      equals == std::string::npos ? "" : text.substr(equals + 1);
  double factor = 0;
  bool isFactor = !number.empty() && number.back() == 'x';
  if (isFactor) {
    auto [end, error] = std::from_chars(
        number.data(), number.data() + number.size() - 1, factor);
    isFactor = error == std::errc() &&
               end == number.data() + number.size() - 1 &&
               std::isfinite(factor) && factor > 0;
  }
  if (key.empty() || !isFactor)
    return "--what-if: expected KEY=FACTORx such as link.network.gbytes=0.5x; "
           "found '" +
           text + "'";
  toml::table *table = &root;
  std::string_view rest = key;
  for (size_t dot; (dot = rest.find('.')) != std::string_view::npos;
       rest.remove_prefix(dot + 1)) {
    toml::node *node = table->get(rest.substr(0, dot));
    table = node ? node->as_table() : nullptr;
    if (!table)
      break;
  }
  if (!table || !scale(*table, rest, factor))
    return "--what-if: '" + key + "' is no number of " + path;
  return "";
}

Expected<toml::table> fsdp::planner::applyFactors(toml::table root,
                                                  const std::string &factors,
                                                  const std::string &path) {
  std::istringstream parts(factors);
  for (std::string part; std::getline(parts, part, ',');)
    if (std::string error = apply(root, part, path); !error.empty())
      return Error{error};
  return root;
}
