//===- MinCutTest.cpp - Tests of least cuts -------------------------------===//

#include "fsdp/Planner/MinCut.h"

#include "gtest/gtest.h"

#include <random>

using namespace fsdp::planner;

namespace {
struct Edge {
  uint32_t from, to;
  int64_t capacity;
};

/// Of a set of nodes on the side of the sink.
int64_t getCapacity(const std::vector<Edge> &edges, uint32_t set) {
  int64_t sum = 0;
  for (const Edge &edge : edges)
    if (!(set >> edge.from & 1) && (set >> edge.to & 1))
      sum += edge.capacity;
  return sum;
}
} // namespace

// By all cuts of small networks: the capacity is the least, and no least cut
// has fewer nodes on the side of the sink, so that as little as can be is
// computed again.
TEST(MinCut, IsTheLeastWithTheFewestNodesAtTheSink) {
  std::mt19937 random(7);
  for (int round = 0; round != 500; ++round) {
    uint32_t nodes = 2 + uint32_t(random() % 6);
    FlowNetwork network;
    for (uint32_t i = 0; i != nodes; ++i)
      network.addNode();
    std::vector<Edge> edges;
    for (size_t n = random() % 14; n != 0; --n) {
      edges.push_back({uint32_t(random() % nodes), uint32_t(random() % nodes),
                       int64_t(random() % 5)});
      network.addEdge(edges.back().from, edges.back().to,
                      edges.back().capacity);
    }
    std::vector<uint8_t> sinkSide = network.findSinkSide(0, 1);
    uint32_t found = 0;
    for (uint32_t i = 0; i != nodes; ++i)
      found |= uint32_t(sinkSide[i]) << i;
    ASSERT_EQ(found & 3, 2u);
    for (uint32_t set = 0; set != 1u << nodes; ++set) {
      if ((set & 3) != 2)
        continue;
      ASSERT_LE(getCapacity(edges, found), getCapacity(edges, set));
      if (getCapacity(edges, found) == getCapacity(edges, set)) {
        ASSERT_LE(__builtin_popcount(found), __builtin_popcount(set));
      }
    }
  }
}
