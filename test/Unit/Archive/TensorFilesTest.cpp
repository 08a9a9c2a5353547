//===- TensorFilesTest.cpp ------------------------------------------------===//

#include "fsdp/Archive/TensorFiles.h"

#include "TempFolder.h"

#include <numeric>
#include <random>

using namespace fsdp::archive;

namespace {
class TensorFilesTest : public test::TempFolder {
protected:
  /// A file with a box of tensor "w" out of the numbers from 0 on.
  void writeBox(const std::string &name, const std::vector<int64_t> &shape,
                const Box &box) {
    std::vector<int32_t> all(Box::whole(shape).numel()), part(box.numel());
    std::iota(all.begin(), all.end(), 0);
    std::vector<int64_t> index = box.offsets;
    for (int32_t &value : part) {
      int64_t place = 0;
      for (size_t axis = 0; axis != shape.size(); ++axis)
        place = place * shape[axis] + index[axis];
      value = all[static_cast<size_t>(place)];
      for (size_t axis = shape.size(); axis-- > 0;) {
        if (++index[axis] < box.offsets[axis] + box.sizes[axis])
          break;
        index[axis] = box.offsets[axis];
      }
    }
    std::string_view bytes(reinterpret_cast<const char *>(part.data()),
                           part.size() * sizeof(int32_t));
    auto written =
        writeSafetensors(getPath(name), {{"w", DType::I32, box.sizes, bytes}},
                         makeShardingMetadata({{"w", box}}));
    ASSERT_TRUE(written) << written.error().message;
  }
  std::string getError() {
    auto files = TensorFiles::open(folder);
    return files ? "" : files.error().message;
  }
};

/// Cuts a box at random, again and again.
std::vector<Box> cutUp(const Box &whole, unsigned cuts, std::mt19937 &random) {
  std::vector<Box> boxes = {whole};
  for (unsigned i = 0; i != cuts; ++i) {
    Box &box = boxes[random() % boxes.size()];
    size_t axis = random() % box.sizes.size();
    if (box.sizes[axis] < 2)
      continue;
    Box right = box;
    int64_t left = 1 + static_cast<int64_t>(
                           random() % static_cast<size_t>(box.sizes[axis] - 1));
    right.offsets[axis] += left;
    right.sizes[axis] -= left;
    box.sizes[axis] = left;
    boxes.push_back(right);
  }
  return boxes;
}
} // namespace

// Whatever boxes a tensor was written in, any box of it can be read.
TEST_F(TensorFilesTest, AnyBoxIsReadOutOfAnyBoxes) {
  std::mt19937 random(7);
  for (int trial = 0; trial != 60; ++trial) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    std::vector<int64_t> shape;
    for (size_t axes = 1 + random() % 4; axes != 0; --axes)
      shape.push_back(1 + static_cast<int64_t>(random() % 6));
    std::vector<Box> boxes = cutUp(Box::whole(shape), random() % 6, random);
    for (size_t i = 0; i != boxes.size(); ++i)
      writeBox("shard-0000" + std::to_string(i) +
                   "-model-00001-of-00001.safetensors",
               shape, boxes[i]);
    auto files = TensorFiles::open(folder);
    ASSERT_TRUE(files) << files.error().message;
    const TensorPieces &tensor = files->tensors().at("w");
    EXPECT_EQ(tensor.shape, shape);
    EXPECT_EQ(tensor.pieces.size(), boxes.size());
    for (const Box &wanted : cutUp(Box::whole(shape), 3, random)) {
      std::vector<int32_t> found(wanted.numel(), -1);
      ASSERT_FALSE(
          readBox(tensor, wanted, reinterpret_cast<char *>(found.data())));
      std::vector<int64_t> index = wanted.offsets;
      for (int32_t value : found) {
        int64_t place = 0;
        for (size_t axis = 0; axis != shape.size(); ++axis)
          place = place * shape[axis] + index[axis];
        ASSERT_EQ(value, place);
        for (size_t axis = shape.size(); axis-- > 0;) {
          if (++index[axis] < wanted.offsets[axis] + wanted.sizes[axis])
            break;
          index[axis] = wanted.offsets[axis];
        }
      }
    }
  }
}

TEST_F(TensorFilesTest, BoxesThatDoNotCoverATensorOnceAreRejected) {
  writeBox("shard-1.safetensors", {4, 3}, {{0, 0}, {2, 3}});
  writeBox("shard-2.safetensors", {4, 3}, {{3, 0}, {1, 3}});
  EXPECT_EQ(getError(), folder + ": w: expected boxes that cover the tensor "
                                 "once, found 2 boxes of 36 bytes in all for "
                                 "48");
  // As many elements, but one twice and one not at all.
  writeBox("shard-3.safetensors", {4, 3}, {{1, 0}, {1, 3}});
  EXPECT_EQ(getError(), folder + ": w: expected boxes that cover the tensor "
                                 "once, found 3 boxes of 48 bytes in all for "
                                 "48");
}

// A number of 2^62 is one that no sum may overflow with.
TEST_F(TensorFilesTest, PlacesThatCannotBeAreRejected) {
  std::string four(4, 'x');
  auto errorOf = [&](const std::string &info) {
    auto written = writeSafetensors(getPath("shard-1.safetensors"),
                                    {{"w", DType::I32, {1}, four}},
                                    {{shardingInfo, info}});
    EXPECT_TRUE(written);
    return getError();
  };
  EXPECT_EQ(errorOf(R"({"w": {"saved_offsets": [0]}})"), "");
  for (const char *info :
       {"", "[]", "3", R"({"w": 3})", R"({"w": {"saved_offsets": 3}})",
        R"({"w": {"saved_offsets": []}})",
        R"({"w": {"saved_offsets": [0, 0]}})",
        R"({"w": {"saved_offsets": [-1]}})",
        R"({"w": {"saved_offsets": [9223372036854775807]}})",
        R"({"w": {"saved_offsets": [4611686018427387904]}})",
        R"({"w": {"saved_offsets": [1.5]}})"})
    EXPECT_NE(errorOf(info), "") << info;
}

// A block is checked whichever part of it is read, and whatever was read last.
TEST_F(TensorFilesTest, WhatIsReadIsChecked) {
  std::string content(3 * BlockSums::blockBytes - 5, '\0');
  std::mt19937 random(3);
  for (char &each : content)
    each = static_cast<char>(random());
  std::string path = write("a", content);
  BlockSums sums = BlockSums::of({std::string_view(content).substr(0, 1000),
                                  std::string_view(content).substr(1000)});
  EXPECT_EQ(sums.bytes, content.size());
  ASSERT_EQ(sums.sums.size(), 3u);
  auto file = InputFile::open(path, sums);
  ASSERT_TRUE(file);
  for (int trial = 0; trial != 50; ++trial) {
    size_t begin = random() % content.size();
    size_t count = random() % (content.size() - begin + 1);
    EXPECT_EQ(*file->read(begin, count), content.substr(begin, count));
  }
  content[BlockSums::blockBytes + 17] ^= 1;
  write("a", content);
  auto damaged = InputFile::open(path, sums);
  ASSERT_TRUE(damaged);
  EXPECT_TRUE(damaged->read(0, BlockSums::blockBytes));
  for (auto [begin, count] :
       {std::pair<uint64_t, uint64_t>{BlockSums::blockBytes, 1},
        {0, content.size()},
        {BlockSums::blockBytes - 1, 2},
        {2 * BlockSums::blockBytes - 1, 1}}) {
    auto found = damaged->read(begin, count);
    ASSERT_FALSE(found);
    EXPECT_NE(found.error().message.find(
                  "expected bytes 1048576 to 2097152 with checksum "),
              std::string::npos);
  }
  EXPECT_TRUE(damaged->read(2 * BlockSums::blockBytes, 5));
  write("a", content.substr(1));
  EXPECT_FALSE(InputFile::open(path, sums));
}
