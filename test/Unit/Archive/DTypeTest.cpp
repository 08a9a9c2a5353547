//===- DTypeTest.cpp ------------------------------------------------------===//

#include "fsdp/Archive/DType.h"

#include <gtest/gtest.h>

#include <vector>

using namespace fsdp::archive;

TEST(DType, NamesAndNumbersLeadBack) {
  for (size_t i = 0; i != numDTypes; ++i) {
    DType dtype = static_cast<DType>(i);
    EXPECT_EQ(getDTypeFromMLIRName(getMLIRName(dtype)), dtype);
    EXPECT_EQ(getDTypeFromTorchCode(getTorchCode(dtype)), dtype);
    std::string_view name = getSafetensorsName(dtype);
    if (!name.empty()) {
      EXPECT_EQ(getDTypeFromSafetensorsName(name), dtype);
    }
  }
  EXPECT_FALSE(getDTypeFromSafetensorsName(""));
  EXPECT_FALSE(getDTypeFromMLIRName("f31"));
}

// The schema's numbers are c10's shifted by one, and others after 12.
TEST(DType, SchemaNumbers) {
  EXPECT_FALSE(getDTypeFromSchemaCode(0));
  EXPECT_EQ(getDTypeFromSchemaCode(1), DType::U8);
  EXPECT_EQ(getDTypeFromSchemaCode(7), DType::F32);
  EXPECT_EQ(getDTypeFromSchemaCode(12), DType::Bool);
  EXPECT_EQ(getDTypeFromSchemaCode(13), DType::BF16);
  EXPECT_FALSE(getDTypeFromSchemaCode(14));
  EXPECT_EQ(getDTypeFromSchemaCode(28), DType::U16);
  EXPECT_EQ(getDTypeFromSchemaCode(29), DType::F8E4M3FN);
  EXPECT_FALSE(getDTypeFromSchemaCode(256 + 7));
  EXPECT_FALSE(getDTypeFromSchemaCode(-1));
}

TEST(DType, DenseBytes) {
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(getDenseBytes(Sizes{}, DType::F64), 8);
  EXPECT_EQ(getDenseBytes(Sizes{3, 5}, DType::BF16), 30);
  EXPECT_EQ(getDenseBytes(Sizes{INT64_MAX, INT64_MAX, 0}, DType::F32), 0);
  EXPECT_FALSE(getDenseBytes(Sizes{INT64_MAX / 2}, DType::F32));
  EXPECT_FALSE(getDenseBytes(Sizes{-1}, DType::F32));
  EXPECT_FALSE(getDenseBytes(Sizes{0, -1}, DType::F32));
}
