//===- NumbersTest.cpp - Numbers as text ----------------------------------===//

#include "fsdp/Archive/Numbers.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

using fsdp::archive::spellNumber;

// A person who gave 0.1 reads 0.1, where 17 digits would be
// 0.10000000000000001.
TEST(Numbers, AreAsShortAsTellsThemApart) {
  EXPECT_EQ(spellNumber(0.1), "0.1");
  EXPECT_EQ(spellNumber(1e-5), "1e-05");
  EXPECT_EQ(spellNumber(65536), "65536");
  EXPECT_EQ(spellNumber(-0.0), "-0");
  EXPECT_EQ(spellNumber(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(spellNumber(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Numbers, ReadBackAsTheSame) {
  std::mt19937_64 random(7);
  for (int i = 0; i != 10000; ++i)
    if (double number = std::bit_cast<double>(random()); std::isfinite(number))
      ASSERT_EQ(std::stod(spellNumber(number)), number);
}
