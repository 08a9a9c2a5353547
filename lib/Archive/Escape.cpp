//===- Escape.cpp - Text from outside, for terminals and JSON -------------===//

#include "fsdp/Archive/Escape.h"

#include <cstdint>
#include <cstdio>
#include <simdjson.h>

using namespace fsdp::archive;

/// The length of the character that `text` begins with; 0 if that is none.
static size_t getLength(std::string_view text) {
  auto lead = static_cast<unsigned char>(text.front());
  size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  bool isWhole =
      length <= text.size() && simdjson::validate_utf8(text.data(), length);
  return isWhole ? length : 0;
}

/// The number of a valid character.
static uint32_t decode(std::string_view character) {
  auto lead = static_cast<unsigned char>(character.front());
  if (character.size() == 1)
    return lead;
  uint32_t code = lead & (0x7fu >> character.size());
  for (char c : character.substr(1))
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  return code;
}

static bool isControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

/// Of no width, or a mark that breaks a line or turns its direction.
static bool isInvisible(uint32_t code) {
  return code == 0xad || code == 0x61c || (code >= 0x200b && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
}

static std::string format(const char *pattern, uint32_t code) {
  char digits[16];
  std::snprintf(digits, sizeof digits, pattern, code);
  return digits;
}

/// Calls `visit` with each character and its number, and `reject` with each
/// byte that is part of none.
template <typename Visitor, typename Rejection>
static void forEachCharacter(std::string_view text, Visitor visit,
                             Rejection reject) {
  while (!text.empty()) {
    size_t length = getLength(text);
    if (length)
      visit(text.substr(0, length), decode(text.substr(0, length)));
    else
      reject(static_cast<unsigned char>(text.front()));
    text.remove_prefix(length ? length : 1);
  }
}

std::string fsdp::archive::escape(std::string_view text) {
  std::string result;
  forEachCharacter(
      text,
      [&](std::string_view character, uint32_t code) {
        if (isControl(code))
          result += format("\\x%02x", code);
        else if (isInvisible(code))
          result += format("\\u%04x", code);
        else
          result += character;
      },
      [&](unsigned char byte) { result += format("\\x%02x", byte); });
  return result;
}

std::string fsdp::archive::quoteJSON(std::string_view text) {
  std::string result = "\"";
  forEachCharacter(
      text,
      [&](std::string_view character, uint32_t code) {
        if (isControl(code) || isInvisible(code))
          result += format("\\u%04x", code);
        else if (code == '"' || code == '\\')
          result.append("\\").append(character);
        else
          result += character;
      },
      [&](unsigned char) { result += "\\ufffd"; });
  return result += '"';
}
