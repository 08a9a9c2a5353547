//===- BytesTest.cpp ------------------------------------------------------===//

#include "fsdp/Archive/Bytes.h"

#include <gtest/gtest.h>

using fsdp::parseBytes;

TEST(Bytes, ReadsBytesAndDecimalNumbersOfUnits) {
  EXPECT_EQ(parseBytes("0"), 0);
  EXPECT_EQ(parseBytes("1048576"), 1048576);
  EXPECT_EQ(parseBytes("12B"), 12);
  EXPECT_EQ(parseBytes("1KiB"), 1024);
  EXPECT_EQ(parseBytes("1.5 MiB"), 1572864);
  EXPECT_EQ(parseBytes("18.12 KiB"), 18554); // what reports print
  EXPECT_EQ(parseBytes("2GiB"), int64_t(2) << 30);
  EXPECT_EQ(parseBytes("500 MB"), 500'000'000);
  EXPECT_EQ(parseBytes("0.5GB"), 500'000'000);
  EXPECT_EQ(parseBytes("3KB"), 3000);
}

TEST(Bytes, RejectsOtherText) {
  for (const char *text : {"", " ", "-1", "+1", "1.5", "1.", "1.KiB", ".5KiB",
                           "1 kib", "1TiBB", "1e3", "1 KiB ", "0x10", "nan",
                           "9223372036854775807KiB", "99999999999999999999"})
    EXPECT_EQ(parseBytes(text), std::nullopt) << text;
}

TEST(Bytes, ReadsWhatIsSpelled) {
  for (uint64_t bytes : {uint64_t(0), uint64_t(1023), uint64_t(1024),
                         uint64_t(3) << 20, uint64_t(5) << 30})
    EXPECT_EQ(parseBytes(fsdp::spellBytes(bytes)), int64_t(bytes));
}
