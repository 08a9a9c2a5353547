//===- MemoryAssignment.h - Offsets for intervals of time -------*- C++ -*-===//
//
// Packs buffers with known lifetimes into one arena: the offline problem of
// dynamic storage allocation. Plain integers in, plain integers out. Times are
// positions in a list of commands, sizes and offsets are bytes.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_PLANNER_MEMORYASSIGNMENT_H
#define FSDP_PLANNER_MEMORYASSIGNMENT_H

#include <cstdint>
#include <utility>
#include <vector>

namespace fsdp::planner {

/// A buffer of `bytes` > 0 that is alive at every time of [begin, end].
struct Lifetime {
  int64_t bytes;
  int64_t begin;
  int64_t end;
};

/// Lifetimes that reach, where memory allows, from where `wishes` begin to
/// where they end: at no time are more bytes alive than the most that there
/// were before. Small buffers come first: they cost least. A wish contains its
/// lifetime; times are dense.
std::vector<Lifetime> stretch(std::vector<Lifetime> lifetimes,
                              const std::vector<Lifetime> &wishes,
                              int64_t alignment);

struct MemoryPlan {
  std::vector<int64_t>
      offsets;      ///< One per lifetime, multiples of the alignment.
  int64_t peak = 0; ///< Bytes of the arena.
  int64_t lowerBound =
      0; ///< Most bytes alive at once, sizes rounded up to the alignment.
  int64_t peakTime = 0; ///< First time at which the lower bound is attained.
};

/// The lower bound alone: the bytes, and the first time that they are alive.
std::pair<int64_t, int64_t>
mostBytesAlive(const std::vector<Lifetime> &lifetimes, int64_t alignment);

/// Buffers that are alive at a common time never share a byte. Largest first,
/// each into the gap that it fills best, the lowest of equals; where that is
/// more than half a percent above the bound, other orders are tried. The answer
/// is deterministic. Times should be dense: memory is used per unit of time.
MemoryPlan assignMemory(const std::vector<Lifetime> &lifetimes,
                        int64_t alignment);

/// `after` takes over bytes of `before`, whose life has ended: whoever writes
/// `after` first has to come after the last reader of `before`.
struct ReuseEdge {
  uint32_t before;
  uint32_t after;
};

/// For every byte of every buffer, the edge from its previous owner; each pair
/// once, ordered by `after`, then `before`.
std::vector<ReuseEdge> reuseEdges(const std::vector<Lifetime> &lifetimes,
                                  const std::vector<int64_t> &offsets);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_MEMORYASSIGNMENT_H
