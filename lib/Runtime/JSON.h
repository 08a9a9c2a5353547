//===- JSON.h - Words of JSON -----------------------------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_JSON_H
#define FSDP_LIB_RUNTIME_JSON_H

#include <cstdio>
#include <string>
#include <string_view>

namespace fsdp::json {

inline std::string quote(std::string_view value) {
  std::string text = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\')
      text += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      text += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      text += escaped;
    }
  }
  return text + '"';
}

inline std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.12g", value);
  return text;
}

} // namespace fsdp::json

#endif // FSDP_LIB_RUNTIME_JSON_H
