//===- BoxTest.cpp --------------------------------------------------------===//

#include "fsdp/Archive/Box.h"

#include <gtest/gtest.h>

#include <random>

using namespace fsdp::archive;

namespace {

bool areDisjointOneByOne(const std::vector<Box> &boxes) {
  for (size_t i = 0; i != boxes.size(); ++i)
    for (size_t k = i + 1; k != boxes.size(); ++k)
      if (intersect(boxes[i], boxes[k]))
        return false;
  return true;
}

bool areDisjointAtOnce(const std::vector<Box> &boxes) {
  std::vector<const Box *> pointers;
  for (const Box &box : boxes)
    pointers.push_back(&box);
  return areDisjoint(std::move(pointers));
}

TEST(Boxes, AreDisjointAsOneByOne) {
  std::mt19937 random(1);
  unsigned counts[2] = {};
  for (unsigned trial = 0; trial != 20000; ++trial) {
    size_t axes = 1 + random() % 4, count = random() % 7;
    int64_t extent = 2 + random() % 9;
    std::vector<Box> boxes(count);
    for (Box &box : boxes)
      for (size_t axis = 0; axis != axes; ++axis) {
        box.offsets.push_back(static_cast<int64_t>(random() % extent));
        box.sizes.push_back(static_cast<int64_t>(random() % 4)); // Or nothing.
      }
    bool expected = areDisjointOneByOne(boxes);
    ++counts[expected];
    ASSERT_EQ(areDisjointAtOnce(boxes), expected);
  }
  EXPECT_GT(counts[0], 1000u);
  EXPECT_GT(counts[1], 1000u);
}

// No plane goes between any of them.
TEST(Boxes, OfAPinwheelAreDisjoint) {
  std::vector<Box> boxes = {
      {{0, 0}, {2, 1}}, {{0, 1}, {1, 2}}, {{1, 2}, {2, 1}}, {{2, 0}, {1, 2}}};
  EXPECT_TRUE(areDisjointAtOnce(boxes));
  boxes.push_back({{1, 1}, {1, 1}});
  EXPECT_TRUE(areDisjointAtOnce(boxes));
  boxes.back().sizes[1] = 2;
  EXPECT_FALSE(areDisjointAtOnce(boxes));
}

// A tensor of one row, which ten thousand ranks share: one by one, this would
// be 50 million pairs for each of 20 tensors.
TEST(Boxes, OfManyRanksTakeNoTime) {
  std::vector<Box> boxes;
  for (int64_t rank = 0; rank != 10000; ++rank)
    boxes.push_back({{0, 3 * rank, 0}, {1, 3, 5}});
  for (unsigned tensor = 0; tensor != 20; ++tensor)
    EXPECT_TRUE(areDisjointAtOnce(boxes));
  boxes.push_back({{0, 7, 4}, {1, 1, 1}});
  EXPECT_FALSE(areDisjointAtOnce(boxes));
}

} // namespace
