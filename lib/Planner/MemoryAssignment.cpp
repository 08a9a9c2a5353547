//===- MemoryAssignment.cpp - Offsets for intervals of time ---------------===//

#include "fsdp/Planner/MemoryAssignment.h"

#include "Skyline.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory_resource>
#include <numeric>
#include <tuple>

using namespace fsdp::planner;

namespace {

struct Range {
  int64_t low, high;
};

/// A set of bytes of the arena, as ranges that do not touch, in their order.
using ByteSet = std::pmr::vector<Range>;

void add(ByteSet &ranges, int64_t low, int64_t high) {
  auto first = std::lower_bound(
      ranges.begin(), ranges.end(), low,
      [](const Range &range, int64_t low) { return range.high < low; });
  auto last = first;
  for (; last != ranges.end() && last->low <= high; ++last) {
    low = std::min(low, last->low);
    high = std::max(high, last->high);
  }
  if (first == last) {
    ranges.insert(first, {low, high});
    return;
  }
  *first = {low, high};
  ranges.erase(first + 1, last);
}

/// Which bytes are taken when: a tree over time. A node stands for a range of
/// time and knows the bytes that are taken all of that time by buffers that end
/// here (not in a larger node), and those that are taken some of that time.
/// Neighbours in the arena melt into one range, so that the sets stay small.
class Occupancy {
public:
  explicit Occupancy(int64_t numTimes) {
    while (leaves < numTimes)
      leaves *= 2;
    always.resize(2 * leaves);
    sometimes.resize(2 * leaves);
  }

  void insert(const Lifetime &lifetime, int64_t low, int64_t high) {
    visit(lifetime, [&](int64_t node, bool isWhole) {
      add(sometimes[node], low, high);
      if (isWhole)
        add(always[node], low, high);
    });
  }

  /// The start of the smallest gap of at least `bytes` between those alive
  /// during `lifetime`; after all of them if there is none.
  int64_t bestGap(const Lifetime &lifetime, int64_t bytes) {
    taken.clear();
    visit(lifetime, [&](int64_t node, bool isWhole) {
      const ByteSet &set = (isWhole ? sometimes : always)[node];
      taken.insert(taken.end(), set.begin(), set.end());
    });
    std::sort(taken.begin(), taken.end(),
              [](const Range &a, const Range &b) { return a.low < b.low; });
    int64_t top = 0, best = -1, bestSize = std::numeric_limits<int64_t>::max();
    for (const Range &range : taken) {
      int64_t gap = range.low - top;
      if (gap >= bytes && gap < bestSize) {
        best = top;
        bestSize = gap;
      }
      top = std::max(top, range.high);
    }
    return best < 0 ? top : best;
  }

private:
  /// Calls `function` once for each of the few nodes that a lifetime consists
  /// of (whole), and once for each node above one of them.
  template <typename Function>
  void visit(const Lifetime &lifetime, Function function) {
    visit(1, 0, leaves - 1, lifetime, function);
  }
  template <typename Function>
  void visit(int64_t node, int64_t begin, int64_t end, const Lifetime &lifetime,
             Function &function) {
    if (lifetime.begin > end || lifetime.end < begin)
      return;
    bool isWhole = lifetime.begin <= begin && end <= lifetime.end;
    function(node, isWhole);
    if (isWhole)
      return;
    int64_t middle = begin + (end - begin) / 2;
    visit(2 * node, begin, middle, lifetime, function);
    visit(2 * node + 1, middle + 1, end, lifetime, function);
  }

  int64_t leaves = 1;
  /// Many small sets, which go all at once.
  std::pmr::monotonic_buffer_resource memory;
  std::pmr::vector<ByteSet> always{&memory}, sometimes{&memory};
  std::vector<Range> taken;
};

using Weight = double (*)(const Lifetime &);

double getLength(const Lifetime &lifetime) {
  return double(lifetime.end - lifetime.begin + 1);
}

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

/// Places the buffers in this order, each into the gap that it fills best.
/// Returns the bytes of the arena.
static int64_t placeInOrder(const std::vector<Lifetime> &lifetimes,
                            const std::vector<uint32_t> &order,
                            int64_t alignment, std::vector<int64_t> &offsets) {
  int64_t numTimes = 1, peak = 0;
  for (const Lifetime &lifetime : lifetimes)
    numTimes = std::max(numTimes, lifetime.end + 1);
  Occupancy occupancy(numTimes);
  for (uint32_t i : order) {
    int64_t bytes = roundUp(lifetimes[i].bytes, alignment);
    offsets[i] = occupancy.bestGap(lifetimes[i], bytes);
    occupancy.insert(lifetimes[i], offsets[i], offsets[i] + bytes);
    peak = std::max(peak, offsets[i] + bytes);
  }
  return peak;
}

/// The buffers by descending weight. Longest life breaks ties: what is saved
/// for the backward pass nests.
static std::vector<uint32_t> getOrder(const std::vector<Lifetime> &lifetimes,
                                      Weight weight) {
  std::vector<uint32_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  auto key = [&](uint32_t i) {
    const Lifetime &lifetime = lifetimes[i];
    return std::make_tuple(-weight(lifetime), lifetime.begin - lifetime.end,
                           lifetime.begin, i);
  };
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  return order;
}

/// Largest first is close to the bound for most plans. Where it is not, others
/// are tried: none of them is best for all.
static constexpr Weight weights[] = {
    [](const Lifetime &l) { return double(l.bytes); },
    [](const Lifetime &l) { return double(l.bytes) * getLength(l); },
    [](const Lifetime &l) { return double(l.bytes) * std::sqrt(getLength(l)); },
    [](const Lifetime &l) { return std::sqrt(double(l.bytes)) * getLength(l); },
    [](const Lifetime &l) { return getLength(l); }};

MemoryPlan fsdp::planner::assignMemory(const std::vector<Lifetime> &lifetimes,
                                       int64_t alignment) {
  MemoryPlan plan;
  std::tie(plan.lowerBound, plan.peakTime) =
      mostBytesAlive(lifetimes, alignment);

  std::vector<int64_t> offsets(lifetimes.size());
  auto isGood = [&] {
    return plan.peak - plan.lowerBound <= plan.lowerBound / 200;
  };
  auto consider = [&](int64_t peak) {
    if (!plan.offsets.empty() && plan.peak <= peak)
      return;
    plan.peak = peak;
    plan.offsets = offsets;
  };
  std::vector<uint32_t> order = getOrder(lifetimes, weights[0]);
  consider(placeInOrder(lifetimes, order, alignment, offsets));
  for (Weight weight : weights)
    if (!isGood())
      consider(placeFromBelow(lifetimes, getOrder(lifetimes, weight), alignment,
                              offsets));
  // Small plans can afford many orders.
  constexpr size_t maxTries = 32, maxPlacements = 20000;
  size_t placements = 0;
  for (Weight weight : weights) {
    order = getOrder(lifetimes, weight);
    for (size_t i = 0; i != maxTries && !isGood(); ++i) {
      placements += lifetimes.size();
      if (placements > maxPlacements)
        return plan;
      int64_t peak = placeInOrder(lifetimes, order, alignment, offsets);
      consider(peak);
      // Who sticks out at the top is placed first the next time.
      auto sticksOut = [&](uint32_t i) {
        return offsets[i] + roundUp(lifetimes[i].bytes, alignment) == peak;
      };
      std::vector<uint32_t> next;
      std::copy_if(order.begin(), order.end(), std::back_inserter(next),
                   sticksOut);
      std::remove_copy_if(order.begin(), order.end(), std::back_inserter(next),
                          sticksOut);
      order = std::move(next);
    }
  }
  return plan;
}
