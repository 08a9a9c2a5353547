//===- Packing.h - What all ways to pack an arena share ---------*- C++ -*-===//

#ifndef FSDP_LIB_PLANNER_PACKING_H
#define FSDP_LIB_PLANNER_PACKING_H

#include "fsdp/Planner/MemoryAssignment.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory_resource>

namespace fsdp::planner {

/// Which gap a buffer takes.
enum class Gap { Smallest, Lowest };

/// Which bytes are taken when: a tree over time. A node stands for a range of
/// time and knows the bytes that are taken all of that time by buffers that end
/// here (not in a larger node), and those that are taken some of that time.
/// Neighbours in the arena melt into one range, so that the sets stay small.
class Occupancy {
public:
  /// Of none of them yet. They must outlive it.
  explicit Occupancy(const std::vector<Lifetime> &lifetimes)
      : lifetimes(lifetimes) {
    for (const Lifetime &lifetime : lifetimes)
      while (leaves <= lifetime.end)
        leaves *= 2;
    always.resize(2 * leaves);
    sometimes.resize(2 * leaves);
  }

  /// Of none of them again. Keeps its memory.
  void clear() {
    for (auto *sets : {&always, &sometimes})
      for (ByteSet &set : *sets)
        set.clear();
  }

  /// Takes the place of a buffer.
  void insert(uint32_t buffer, int64_t offset) {
    const Lifetime &own = lifetimes[buffer];
    visit(own, [&](int64_t node, bool isWhole) {
      add(sometimes[node], offset, offset + own.bytes);
      if (isWhole)
        add(always[node], offset, offset + own.bytes);
    });
  }

  /// Gives a buffer a place, and takes that. Returns the bytes up to its end.
  int64_t place(uint32_t buffer, Gap gap, std::vector<int64_t> &offsets) {
    offsets[buffer] = findGap(lifetimes[buffer], gap);
    insert(buffer, offsets[buffer]);
    return offsets[buffer] + lifetimes[buffer].bytes;
  }

  /// All of them, in this order. Returns the bytes up to the highest end.
  int64_t place(const std::vector<uint32_t> &order, Gap gap,
                std::vector<int64_t> &offsets) {
    int64_t most = 0;
    for (uint32_t buffer : order)
      most = std::max(most, place(buffer, gap, offsets));
    return most;
  }

private:
  struct Range {
    int64_t low, high;
  };
  /// A set of bytes of the arena, as ranges that do not touch, in their order.
  using ByteSet = std::pmr::vector<Range>;

  static void add(ByteSet &ranges, int64_t low, int64_t high) {
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

  /// The start of a gap between those that are alive during `lifetime`; after
  /// all of them if there is none that is large enough.
  int64_t findGap(const Lifetime &lifetime, Gap gap) {
    taken.clear();
    visit(lifetime, [&](int64_t node, bool isWhole) {
      const ByteSet &set = (isWhole ? sometimes : always)[node];
      taken.insert(taken.end(), set.begin(), set.end());
    });
    std::sort(taken.begin(), taken.end(),
              [](const Range &a, const Range &b) { return a.low < b.low; });
    int64_t top = 0, best = -1, bestSize = std::numeric_limits<int64_t>::max();
    for (const Range &range : taken) {
      int64_t size = range.low - top;
      if (size >= lifetime.bytes && size < bestSize) {
        best = top;
        bestSize = size;
        if (gap == Gap::Lowest)
          break;
      }
      top = std::max(top, range.high);
    }
    return best < 0 ? top : best;
  }

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

  const std::vector<Lifetime> &lifetimes;
  int64_t leaves = 1;
  /// Many small sets, which go all at once.
  std::pmr::monotonic_buffer_resource memory;
  std::pmr::vector<ByteSet> always{&memory}, sometimes{&memory};
  std::vector<Range> taken;
};

/// Those of an order that `isWanted` go first; each part stays in order.
template <typename Predicate>
void putFirst(std::vector<uint32_t> &order, Predicate isWanted) {
  std::vector<uint32_t> next;
  std::copy_if(order.begin(), order.end(), std::back_inserter(next), isWanted);
  std::remove_copy_if(order.begin(), order.end(), std::back_inserter(next),
                      isWanted);
  order = std::move(next);
}

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_PACKING_H
