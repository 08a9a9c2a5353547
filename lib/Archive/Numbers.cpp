//===- Numbers.cpp - Numbers as text --------------------------------------===//

#include "fsdp/Archive/Numbers.h"

#include <charconv>

std::string fsdp::archive::spellNumber(double number) {
  char text[32]; // -2.2250738585072014e-308 has 24.
  return {text, std::to_chars(text, std::end(text), number).ptr};
}
