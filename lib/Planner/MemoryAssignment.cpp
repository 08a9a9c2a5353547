//===- MemoryAssignment.cpp - Offsets for intervals of time ---------------===//

#include "fsdp/Planner/MemoryAssignment.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

using namespace fsdp::planner;

namespace {

/// Placed buffers in the order of their offsets, as parallel arrays: the scan
/// over times is all that the assignment spends its time on.
struct Placed {
  std::vector<int32_t> begin, end;
  std::vector<int64_t> low, high;

  void insert(const Lifetime &lifetime, int64_t offset, int64_t bytes) {
    size_t at = std::upper_bound(low.begin(), low.end(), offset) - low.begin();
    begin.insert(begin.begin() + at, int32_t(lifetime.begin));
    end.insert(end.begin() + at, int32_t(lifetime.end));
    low.insert(low.begin() + at, offset);
    high.insert(high.begin() + at, offset + bytes);
  }

  /// The start of the smallest gap of at least `bytes` between those alive
  /// during `lifetime`; behind all of them if there is none.
  int64_t bestGap(const Lifetime &lifetime, int64_t bytes) const {
    int64_t top = 0, best = -1, bestSize = std::numeric_limits<int64_t>::max();
    for (size_t i = 0, e = low.size(); i != e; ++i) {
      if (begin[i] > lifetime.end || end[i] < lifetime.begin)
        continue;
      int64_t gap = low[i] - top;
      if (gap >= bytes && gap < bestSize) {
        best = top;
        bestSize = gap;
        if (gap == bytes)
          break;
      }
      top = std::max(top, high[i]);
    }
    return best < 0 ? top : best;
  }
};

int64_t roundUp(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

} // namespace

std::pair<int64_t, int64_t>
fsdp::planner::mostBytesAlive(const std::vector<Lifetime> &lifetimes,
                              int64_t alignment) {
  std::vector<std::pair<int64_t, int64_t>> changes; // time, bytes
  changes.reserve(2 * lifetimes.size());
  for (const Lifetime &lifetime : lifetimes) {
    int64_t bytes = roundUp(lifetime.bytes, alignment);
    changes.emplace_back(lifetime.begin, bytes);
    changes.emplace_back(lifetime.end + 1, -bytes);
  }
  // At equal times the ends come first: they are negative.
  std::sort(changes.begin(), changes.end());
  int64_t alive = 0, most = 0, at = 0;
  for (auto [time, bytes] : changes) {
    alive += bytes;
    if (alive > most) {
      most = alive;
      at = time;
    }
  }
  return {most, at};
}

MemoryPlan fsdp::planner::assignMemory(const std::vector<Lifetime> &lifetimes,
                                       int64_t alignment) {
  MemoryPlan plan;
  plan.offsets.resize(lifetimes.size());
  std::tie(plan.lowerBound, plan.peakTime) =
      mostBytesAlive(lifetimes, alignment);

  // Longest life breaks ties: what is saved for the backward pass nests.
  std::vector<uint32_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  auto key = [&](uint32_t i) {
    const Lifetime &lifetime = lifetimes[i];
    return std::make_tuple(-lifetime.bytes, lifetime.begin - lifetime.end,
                           lifetime.begin, i);
  };
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });

  Placed placed;
  for (uint32_t i : order) {
    int64_t bytes = roundUp(lifetimes[i].bytes, alignment);
    plan.offsets[i] = placed.bestGap(lifetimes[i], bytes);
    placed.insert(lifetimes[i], plan.offsets[i], bytes);
    plan.peak = std::max(plan.peak, plan.offsets[i] + bytes);
  }
  return plan;
}

std::vector<ReuseEdge>
fsdp::planner::reuseEdges(const std::vector<Lifetime> &lifetimes,
                          const std::vector<int64_t> &offsets) {
  std::vector<uint32_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::tie(lifetimes[a].begin, a) < std::tie(lifetimes[b].begin, b);
  });

  struct Piece {
    int64_t end;
    uint32_t owner;
  };
  // Start of a piece of the arena -> its end and latest owner.
  std::map<int64_t, Piece> owners;
  std::vector<ReuseEdge> edges;
  for (uint32_t after : order) {
    int64_t low = offsets[after], high = low + lifetimes[after].bytes;
    auto it = owners.upper_bound(low);
    if (it != owners.begin() && std::prev(it)->second.end > low)
      --it;
    while (it != owners.end() && it->first < high) {
      auto [start, piece] = *it;
      edges.push_back({piece.owner, after});
      it = owners.erase(it);
      if (start < low)
        owners[start] = {low, piece.owner};
      if (piece.end > high)
        owners[high] = piece;
    }
    owners[low] = {high, after};
  }

  auto less = [](const ReuseEdge &a, const ReuseEdge &b) {
    return std::tie(a.after, a.before) < std::tie(b.after, b.before);
  };
  auto equal = [](const ReuseEdge &a, const ReuseEdge &b) {
    return a.after == b.after && a.before == b.before;
  };
  std::sort(edges.begin(), edges.end(), less);
  edges.erase(std::unique(edges.begin(), edges.end(), equal), edges.end());
  return edges;
}
