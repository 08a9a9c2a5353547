//===- BothEnds.h - Large buffers from one end, others from the other
//------===//
//
// What is gathered is large, of few sizes, and there for a part of the step;
// what is kept for the backward is small, and nests. So the large buffers are
// packed from one end of the arena, below the ceiling that all others leave
// them at each time, and these from the other end, the longest life first. Who
// breaks through the ceiling is placed earlier the next time (Joslin and
// Clements, Journal of Artificial Intelligence Research 10 (1999) 353).
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_BOTHENDS_H
#define FSDP_LIB_PLANNER_BOTHENDS_H

#include "fsdp/Planner/MemoryAssignment.h"

#include <algorithm>

namespace fsdp::planner {

/// Those of an order that `isWanted` go first; each part stays in order.
template <typename Predicate>
void putFirst(std::vector<uint32_t> &order, Predicate isWanted) {
  std::vector<uint32_t> next;
  std::copy_if(order.begin(), order.end(), std::back_inserter(next), isWanted);
  std::remove_copy_if(order.begin(), order.end(), std::back_inserter(next),
                      isWanted);
  order = std::move(next);
}

/// `enough`: the bytes of an arena at which others are not tried. Returns those
/// of this one.
int64_t placeFromBothEnds(const std::vector<Lifetime> &lifetimes,
                          int64_t enough, std::vector<int64_t> &offsets);

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_BOTHENDS_H
