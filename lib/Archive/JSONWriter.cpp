//===- JSONWriter.cpp - JSON that is always valid -------------------------===//

#include "fsdp/Archive/JSONWriter.h"

#include "fsdp/Archive/Escape.h"

#include <charconv>
#include <cmath>

using namespace fsdp::archive;

void JSONWriter::begin() {
  if (std::exchange(isAfterKey, false))
    return;
  bool isFirst = std::exchange(level.isEmpty, false);
  if (!isFirst)
    text += ',';
  if (level.layout == Layout::Lines)
    breakLine();
  else if (level.layout == Layout::Spaced && !isFirst)
    text += ' ';
}

void JSONWriter::key(std::string_view name) {
  begin();
  text += quoteJSON(name);
  text += level.layout == Layout::Dense ? ":" : ": ";
  isAfterKey = true;
}

void JSONWriter::breakLine() {
  text += '\n';
  text.append(2 * size_t{level.depth}, ' ');
}

std::string JSONWriter::spell(std::string_view value) {
  return quoteJSON(value);
}

/// As `std::to_chars` does it, in any locale.
template <typename... Format>
static std::string spellNumber(double value, Format... format) {
  if (!std::isfinite(value))
    return "null";
  char digits[512]; // 1e308, and as many after the point as anybody asks for.
  return {digits,
          std::to_chars(digits, std::end(digits), value, format...).ptr};
}

std::string JSONWriter::spell(double value) { return spellNumber(value); }

std::string JSONWriter::spell(Fixed value) {
  return spellNumber(value.value, std::chars_format::fixed, value.digits);
}

std::string JSONWriter::spell(Rounded value) {
  return spellNumber(value.value, std::chars_format::general, value.digits);
}
