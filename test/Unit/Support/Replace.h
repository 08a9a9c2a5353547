//===- Replace.h - Texts with one thing wrong -------------------*- C++ -*-===//
#ifndef FSDP_TEST_UNIT_SUPPORT_REPLACE_H
#define FSDP_TEST_UNIT_SUPPORT_REPLACE_H

#include <gtest/gtest.h>

#include <string>

namespace fsdp::test {

/// The text with the first `from`, which it must have, replaced.
inline std::string replace(std::string text, const std::string &from,
                           const std::string &to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_SUPPORT_REPLACE_H
