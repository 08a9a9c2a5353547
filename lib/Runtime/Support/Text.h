//===- Text.h - Words for rejections ----------------------------*- C++ -*-===//

#ifndef FSDP_LIB_RUNTIME_SUPPORT_TEXT_H
#define FSDP_LIB_RUNTIME_SUPPORT_TEXT_H

#include "fsdp/Archive/DType.h"
#include "fsdp/Archive/Expected.h"
#include "fsdp/Runtime/Support/Error.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace fsdp {

/// The value, or what prevented it as an exception.
template <typename T> T take(archive::Expected<T> expected) {
  if (!expected)
    throw Error(expected.error());
  return std::move(*expected);
}

/// "2x16xi64", "f32"
template <typename Sizes>
std::string spellTensor(const Sizes &sizes, archive::DType dtype) {
  std::string text;
  for (auto size : sizes)
    text += std::to_string(size) + "x";
  return text.append(archive::getMLIRName(dtype));
}

/// "a, b, c"
inline std::string listAll(const std::vector<std::string> &names) {
  std::string text;
  for (const std::string &name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// "a, b, c and 4 more"
inline std::string listSome(const std::vector<std::string> &names) {
  constexpr std::size_t most = 3;
  std::string text;
  for (std::size_t i = 0; i != names.size() && i != most; ++i)
    text += (i ? ", " : "") + names[i];
  if (names.size() > most)
    text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

/// A number as people write it: 1e-05, 0.25.
inline std::string spellNumber(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

/// "5 s", "0.2 s"
inline std::string spellSeconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g s",
                static_cast<double>(time.count()) / 1e3);
  return text;
}

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_SUPPORT_TEXT_H
