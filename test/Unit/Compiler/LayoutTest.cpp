//===- LayoutTest.cpp - Flat layouts against PyTorch's --------------------===//
//
// Every layout that PyTorch 2.11's FSDP1 made in real runs (1 to 8 ranks, both
// modes) must come out of ours, element for element, and so must its divisors.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/Layout.h"

#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

#include <gtest/gtest.h>

#include <numeric>

using namespace fsdp;
namespace json = llvm::json;

namespace {

/// The recorded layouts.
const json::Object &getGolden() {
  static const json::Value value = [] {
    auto buffer = llvm::MemoryBuffer::getFile(FSDP_INPUTS "/fsdp1_layout.json");
    EXPECT_TRUE(buffer) << buffer.getError().message();
    llvm::Expected<json::Value> parsed = json::parse((*buffer)->getBuffer());
    EXPECT_TRUE(bool(parsed));
    return std::move(*parsed);
  }();
  return *value.getAsObject();
}

llvm::SmallVector<int64_t> getIntegers(const json::Array &array) {
  llvm::SmallVector<int64_t> integers;
  for (const json::Value &value : array)
    integers.push_back(value.getAsInteger().value());
  return integers;
}

int64_t getItemSize(llvm::StringRef dtype) {
  return dtype == "float64" ? 8 : dtype == "float32" ? 4 : 2;
}

FlatLayout getLayout(const json::Object &unit) {
  auto numels = getIntegers(*unit.getArray("numels"));
  int64_t world = *unit.getInteger("world");
  if (!*unit.getBoolean("aligned"))
    return getPackedLayout(numels, world);
  int64_t alignment = getAlignment(getItemSize(*unit.getString("compute")));
  EXPECT_EQ(alignment, *unit.getInteger("alignment"));
  return getAlignedLayout(numels, alignment, world);
}

// covers: FlatParamHandle, Even
TEST(Layout, PlacesParametersAsPyTorchDoes) {
  const json::Array &units = *getGolden().getArray("units");
  ASSERT_GT(units.size(), 100u);
  for (const json::Value &value : units) {
    const json::Object &unit = *value.getAsObject();
    SCOPED_TRACE(llvm::formatv("{0}", value).str());
    FlatLayout layout = getLayout(unit);
    // The offsets are the sums of what stands before, padding included.
    auto entries = getIntegers(*unit.getArray("numels_with_padding"));
    llvm::SmallVector<int64_t> offsets;
    int64_t offset = 0;
    for (auto [entry, padding] :
         llvm::zip_equal(entries, *unit.getArray("is_padding"))) {
      if (!*padding.getAsBoolean())
        offsets.push_back(offset);
      offset += entry;
    }
    EXPECT_EQ(layout.offsets, offsets);
    EXPECT_EQ(layout.numel, *unit.getInteger("N"));
    EXPECT_EQ(layout.padded / *unit.getInteger("world"), *unit.getInteger("c"));
    if (std::optional<int64_t> padded = unit.getInteger("P")) {
      EXPECT_EQ(layout.padded, *padded);
    }
  }
}

// covers: Even, _get_reduce_scatter_tensors
TEST(Layout, CutsShardsAsPyTorchDoes) {
  for (const json::Value &value : *getGolden().getArray("units")) {
    const json::Object &unit = *value.getAsObject();
    SCOPED_TRACE(llvm::formatv("{0}", value).str());
    FlatLayout layout = getLayout(unit);
    auto numels = getIntegers(*unit.getArray("numels"));
    int64_t world = *unit.getInteger("world"), rank = 0, covered = 0;
    for (const json::Value &shard : *unit.getArray("ranks")) {
      const json::Object &record = *shard.getAsObject();
      int64_t size = getShardRange(layout, world, rank).size();
      covered += size;
      EXPECT_EQ(*unit.getInteger("c") - size,
                *record.getInteger("numel_padded"));
      for (auto [offset, numel, info] :
           llvm::zip_equal(layout.offsets, numels, *record.getArray("infos"))) {
        const json::Array &expected = *info.getAsArray();
        auto found =
            getShardRecord({offset, offset + numel}, layout, world, rank);
        ASSERT_EQ(found.has_value(), *expected[0].getAsInteger() == 1);
        if (!found)
          continue;
        EXPECT_EQ(found->offset, *expected[1].getAsInteger());
        EXPECT_EQ(found->elements.size(), *expected[2].getAsInteger());
        EXPECT_EQ(found->elements.begin, *expected[3].getAsInteger());
        EXPECT_EQ(found->elements.end - 1, *expected[4].getAsInteger());
      }
      ++rank;
    }
    EXPECT_EQ(rank, world);
    EXPECT_EQ(covered, layout.numel);
  }
}

TEST(Layout, AlignsToSixteenBytes) {
  EXPECT_EQ(getAlignment(1), 16);
  EXPECT_EQ(getAlignment(2), 8);
  EXPECT_EQ(getAlignment(4), 4);
  EXPECT_EQ(getAlignment(8), 2);
  EXPECT_EQ(getAlignment(32), 1);
}

// covers: _reduce_grad, _div_if_needed, DefaultState, mean over all ranks
// covers: divide factors of f16
TEST(Layout, DividesAsPyTorchDoes) {
  const json::Array &recorded = *getGolden().getArray("divide");
  ASSERT_FALSE(recorded.empty());
  for (const json::Value &value : recorded) {
    const json::Array &row = *value.getAsArray();
    DivideFactors factors = getDivideFactors(*row[0].getAsInteger());
    EXPECT_EQ(factors.pre, *row[1].getAsNumber());
    EXPECT_EQ(factors.post, *row[2].getAsNumber());
  }
}

TEST(Layout, DividesByTheNumberOfRanks) {
  struct Row {
    int64_t ranks;
    double pre, post;
  };
  for (Row row :
       {Row{1, 1, 1},  {2, 2, 1},     {3, 2, 1.5},    {4, 2, 2},
        {5, 2, 2.5},   {6, 4, 1.5},   {7, 2, 3.5},    {8, 4, 2},
        {9, 2, 4.5},   {10, 4, 2.5},  {12, 4, 3},     {14, 4, 3.5},
        {16, 4, 4},    {20, 8, 2.5},  {24, 8, 3},     {32, 8, 4},
        {48, 8, 6},    {64, 8, 8},    {96, 16, 6},    {128, 16, 8},
        {256, 16, 16}, {512, 32, 16}, {1024, 32, 32}, {2048, 64, 32}}) {
    DivideFactors factors = getDivideFactors(row.ranks);
    EXPECT_EQ(factors.pre, row.pre) << row.ranks;
    EXPECT_EQ(factors.post, row.post) << row.ranks;
  }
}

} // namespace
