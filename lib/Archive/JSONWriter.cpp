//===- JSONWriter.cpp - JSON that is always valid -------------------------===//

#include "fsdp/Archive/JSONWriter.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/Numbers.h"

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

static std::string spellDigits(double value, std::chars_format format,
                               int digits) {
  if (!std::isfinite(value))
    return "null";
  char text[512]; // 1e308, and as many after the point as anybody asks for.
  return {text, std::to_chars(text, std::end(text), value, format, digits).ptr};
}

std::string JSONWriter::spell(double value) {
  return std::isfinite(value) ? spellNumber(value) : "null";
}

std::string JSONWriter::spell(Fixed value) {
  return spellDigits(value.value, std::chars_format::fixed, value.digits);
}

std::string JSONWriter::spell(Rounded value) {
  return spellDigits(value.value, std::chars_format::general, value.digits);
}
