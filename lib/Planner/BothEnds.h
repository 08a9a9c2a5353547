//===- BothEnds.h - Large buffers from one end ------------------*- C++ -*-===//
//
// What is gathered is large, of few sizes, and there for a part of the step;
// what is kept for the backward is small, and nests. So the large buffers are
// packed from one end of the arena, below the ceiling that all others leave
// them at each time, and these from the other end, the longest life first, or
// in gaps between the large ones. Who breaks through the ceiling is placed
// earlier the next time (Joslin and Clements, Journal of Artificial
// Intelligence Research 10 (1999) 353).
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_BOTHENDS_H
#define FSDP_LIB_PLANNER_BOTHENDS_H

#include "fsdp/Planner/MemoryAssignment.h"

namespace fsdp::planner {

/// Of lifetimes that are multiples of `alignment`; `alive`: the most bytes at
/// once. `enough`: those of an arena after which no other is tried. Returns the
/// bytes of this one.
int64_t placeFromBothEnds(const std::vector<Lifetime> &lifetimes,
                          int64_t alignment, int64_t alive, int64_t enough,
                          std::vector<int64_t> &offsets);

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_BOTHENDS_H
