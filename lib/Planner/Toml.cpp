//===- Toml.cpp - Text to tables ------------------------------------------===//

#include "Toml.h"

#include <algorithm>
#include <exception>

using namespace fsdp::planner;
using fsdp::archive::Error;
using fsdp::archive::Expected;

Expected<toml::table> fsdp::planner::parseToml(std::string_view text,
                                               const std::string &path,
                                               const char *what,
                                               size_t mostBytes) {
  if (text.size() > mostBytes)
    return Error{path + ": expected a " + what + " of at most " +
                 std::to_string(mostBytes) + " bytes, found " +
                 std::to_string(text.size())};
  // The tables of toml++ for anything else have holes.
  for (char c : text)
    if ((c < ' ' || c > '~') && c != '\n' && c != '\t' && c != '\r')
      return Error{path + ": expected ASCII text, found a byte of value " +
                   std::to_string(static_cast<unsigned char>(c))};
  try {
    return toml::parse(text, std::string_view(path));
  } catch (const toml::parse_error &error) {
    std::string what(error.description());
    for (char &c : what)
      if (c < ' ' || c > '~') // it quotes what it found
        c = '?';
    return Error{path + ": line " + std::to_string(error.source().begin.line) +
                 ": " + what};
  } catch (const std::exception &error) {
    return Error{path + ": " + error.what()};
  }
}

std::optional<UnknownKey>
fsdp::planner::findUnknownKey(const toml::table &table,
                              std::initializer_list<std::string_view> known) {
  for (auto &&[key, value] : table) {
    if (std::find(known.begin(), known.end(), key.str()) != known.end())
      continue;
    std::string expected = "expected only ";
    for (std::string_view name : known)
      expected += (name == *known.begin() ? "" : ", ") + std::string(name);
    return UnknownKey{value, std::string(key.str()), expected};
  }
  return {};
}
