//===- MemoryAssignmentTest.cpp - Packing, bounds and reuse ---------------===//

#include "fsdp/Planner/MemoryAssignment.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp::planner;

namespace {

bool overlapInTime(const Lifetime &a, const Lifetime &b) {
  return a.begin <= b.end && b.begin <= a.end;
}

std::vector<Lifetime> randomLifetimes() {
  auto lifetime =
      rc::gen::map(rc::gen::tuple(rc::gen::inRange<int64_t>(1, 5000),
                                  rc::gen::inRange<int64_t>(0, 60),
                                  rc::gen::inRange<int64_t>(0, 20)),
                   [](std::tuple<int64_t, int64_t, int64_t> parts) {
                     auto [bytes, begin, length] = parts;
                     return Lifetime{bytes, begin, begin + length};
                   });
  return *rc::gen::container<std::vector<Lifetime>>(lifetime);
}

// An arena of nothing must not be a special case anywhere below.
TEST(MemoryAssignment, NothingNeedsNothing) {
  MemoryPlan plan = assignMemory({}, 64);
  EXPECT_EQ(plan.peak, 0);
  EXPECT_EQ(plan.lowerBound, 0);
  EXPECT_TRUE(reuseEdges({}, {}).empty());
}

// The shape of a training step: saved activations nest, temporaries come and
// go.
TEST(MemoryAssignment, NestedLivesReachTheLowerBound) {
  std::vector<Lifetime> lives;
  for (int64_t layer = 0; layer != 50; ++layer) {
    lives.push_back({4096, 4 * layer, 400 - 4 * layer});
    lives.push_back({1000, 4 * layer + 1, 4 * layer + 2});
    lives.push_back({3000, 4 * layer + 2, 4 * layer + 3});
  }
  MemoryPlan plan = assignMemory(lives, 64);
  EXPECT_EQ(plan.peak, plan.lowerBound);
}

// The time of the peak is what the report shows the reader.
TEST(MemoryAssignment, NamesTheFirstPeak) {
  MemoryPlan plan = assignMemory({{64, 0, 9}, {128, 3, 4}, {128, 7, 8}}, 64);
  EXPECT_EQ(plan.lowerBound, 192);
  EXPECT_EQ(plan.peakTime, 3);
}

// A buffer that another stream still reads lives on where that is free, and not
// where it would make the arena larger.
TEST(MemoryAssignment, StretchesWhereMemoryAllows) {
  std::vector<Lifetime> lives = {{64, 1, 1}, {256, 4, 6}, {128, 9, 9}};
  std::vector<Lifetime> wishes = {{64, 0, 9}, {256, 4, 6}, {128, 2, 9}};
  std::vector<Lifetime> stretched = stretch(lives, wishes, 64);
  EXPECT_EQ(stretched[0].begin, 0);
  EXPECT_EQ(stretched[0].end, 3);
  EXPECT_EQ(stretched[2].begin, 7);
}

// Whatever is wished for: lives only grow, inside of the wish, at no price.
TEST(MemoryAssignment, StretchingIsFree) {
  rc::check([] {
    std::vector<Lifetime> wishes = randomLifetimes(), lives = wishes;
    for (Lifetime &life : lives) {
      life.begin += *rc::gen::inRange<int64_t>(0, life.end - life.begin + 1);
      life.end -= *rc::gen::inRange<int64_t>(0, life.end - life.begin + 1);
    }
    std::vector<Lifetime> stretched = stretch(lives, wishes, 64);
    RC_ASSERT(mostBytesAlive(stretched, 64).first ==
              mostBytesAlive(lives, 64).first);
    for (size_t i = 0; i != lives.size(); ++i) {
      RC_ASSERT(wishes[i].begin <= stretched[i].begin);
      RC_ASSERT(stretched[i].begin <= lives[i].begin);
      RC_ASSERT(lives[i].end <= stretched[i].end);
      RC_ASSERT(stretched[i].end <= wishes[i].end);
    }
  });
}

// A place used three times: each owner waits for the one just before it only.
TEST(MemoryAssignment, ReuseEdgesNameThePreviousOwnerOnly) {
  std::vector<Lifetime> lives = {{64, 0, 1}, {64, 2, 3}, {64, 4, 5}};
  std::vector<ReuseEdge> edges = reuseEdges(lives, {0, 0, 0});
  ASSERT_EQ(edges.size(), 2u);
  EXPECT_EQ(edges[0].before, 0u);
  EXPECT_EQ(edges[0].after, 1u);
  EXPECT_EQ(edges[1].before, 1u);
  EXPECT_EQ(edges[1].after, 2u);
}

// A wide buffer over two narrow ones waits for both, and passes both parts on.
TEST(MemoryAssignment, ReuseEdgesCoverPartsOfPlaces) {
  std::vector<Lifetime> lives = {
      {64, 0, 1}, {64, 0, 1}, {128, 2, 3}, {64, 4, 5}};
  std::vector<ReuseEdge> edges = reuseEdges(lives, {0, 64, 0, 64});
  ASSERT_EQ(edges.size(), 3u);
  EXPECT_EQ(edges[0].before, 0u);
  EXPECT_EQ(edges[1].before, 1u);
  EXPECT_EQ(edges[1].after, 2u);
  EXPECT_EQ(edges[2].before, 2u);
  EXPECT_EQ(edges[2].after, 3u);
}

// covers: buffers that are not free
TEST(MemoryAssignment, NoTwoLivingBuffersShareAByte) {
  EXPECT_TRUE(rc::check([] {
    std::vector<Lifetime> lives = randomLifetimes();
    MemoryPlan plan = assignMemory(lives, 64);
    for (size_t i = 0; i != lives.size(); ++i) {
      RC_ASSERT(plan.offsets[i] % 64 == 0);
      RC_ASSERT(plan.offsets[i] + lives[i].bytes <= plan.peak);
      for (size_t j = 0; j != i; ++j)
        RC_ASSERT(!overlapInTime(lives[i], lives[j]) ||
                  plan.offsets[i] + lives[i].bytes <= plan.offsets[j] ||
                  plan.offsets[j] + lives[j].bytes <= plan.offsets[i]);
    }
    RC_ASSERT(plan.peak >= plan.lowerBound);
  }));
}

// Every overlap of places that is not simultaneous is ordered by a chain of
// edges.
TEST(MemoryAssignment, ReuseEdgesOrderAllOwnersOfAByte) {
  EXPECT_TRUE(rc::check([] {
    std::vector<Lifetime> lives = randomLifetimes();
    MemoryPlan plan = assignMemory(lives, 64);
    std::vector<std::vector<bool>> before(lives.size(),
                                          std::vector<bool>(lives.size()));
    for (ReuseEdge edge : reuseEdges(lives, plan.offsets)) {
      RC_ASSERT(lives[edge.before].end < lives[edge.after].begin);
      before[edge.after][edge.before] = true;
    }
    for (size_t k = 0; k != lives.size(); ++k)
      for (size_t i = 0; i != lives.size(); ++i)
        for (size_t j = 0; before[i][k] && j != lives.size(); ++j)
          before[i][j] = before[i][j] || before[k][j];
    for (size_t i = 0; i != lives.size(); ++i)
      for (size_t j = 0; j != lives.size(); ++j)
        if (lives[j].end < lives[i].begin &&
            plan.offsets[i] < plan.offsets[j] + lives[j].bytes &&
            plan.offsets[j] < plan.offsets[i] + lives[i].bytes)
          RC_ASSERT(before[i][j]);
  }));
}

} // namespace
