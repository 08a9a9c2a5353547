//===- MinCut.cpp - What is cheapest to keep ------------------------------===//
//
// Shortest paths that have capacity left, until there are none: Edmonds and
// Karp, Journal of the ACM 19 (1972) 248. Networks are those of one module of a
// model, of a few hundred nodes.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/MinCut.h"

#include <algorithm>

using namespace fsdp::planner;

static constexpr uint32_t noEdge = std::numeric_limits<uint32_t>::max();

void FlowNetwork::addEdge(uint32_t from, uint32_t to, int64_t capacity) {
  edgesOf[from].push_back(uint32_t(edges.size()));
  edges.push_back({to, capacity});
  edgesOf[to].push_back(uint32_t(edges.size()));
  edges.push_back({from, 0});
}

/// Sends as much as it takes along one path. False if there is none.
bool FlowNetwork::augment(uint32_t source, uint32_t sink) {
  arrival.assign(edgesOf.size(), noEdge);
  std::vector<uint32_t> reached = {source};
  for (size_t i = 0; i != reached.size() && arrival[sink] == noEdge; ++i)
    for (uint32_t edge : edgesOf[reached[i]]) {
      uint32_t to = edges[edge].to;
      if (edges[edge].left && to != source && arrival[to] == noEdge) {
        arrival[to] = edge;
        reached.push_back(to);
      }
    }
  if (arrival[sink] == noEdge)
    return false;
  int64_t most = endless;
  auto walk = [&](auto &&visit) {
    for (uint32_t node = sink; node != source;
         node = edges[arrival[node] ^ 1].to)
      visit(arrival[node]);
  };
  walk([&](uint32_t edge) { most = std::min(most, edges[edge].left); });
  walk([&](uint32_t edge) {
    edges[edge].left -= most;
    edges[edge ^ 1].left += most;
  });
  return true;
}

std::vector<uint8_t> FlowNetwork::findSinkSide(uint32_t source, uint32_t sink) {
  while (augment(source, sink)) {
  }
  std::vector<uint8_t> isSinkSide(edgesOf.size(), false);
  std::vector<uint32_t> reached = {sink};
  isSinkSide[sink] = true;
  for (size_t i = 0; i != reached.size(); ++i)
    for (uint32_t edge : edgesOf[reached[i]]) {
      uint32_t from = edges[edge].to;
      if (edges[edge ^ 1].left && !isSinkSide[from]) {
        isSinkSide[from] = true;
        reached.push_back(from);
      }
    }
  return isSinkSide;
}
