//===- Skyline.h - Packing from the lowest place up -------------*- C++ -*-===//
//
// The best fit of Burke, Kendall and Whitwell, Operations Research 52 (2004)
// 655, as Sekiyama, Imai, Negishi and Kawachiya use it for training (2018): the
// lowest stretch of time takes the buffer of most weight that lives in it;
// where none does, it is lifted to its lower neighbour.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_SKYLINE_H
#define FSDP_LIB_PLANNER_SKYLINE_H

#include "fsdp/Planner/MemoryAssignment.h"

namespace fsdp::planner {

/// `order`: all buffers, the one of most weight first. Sizes are rounded up to
/// the alignment. Returns the bytes of the arena.
int64_t placeFromBelow(const std::vector<Lifetime> &lifetimes,
                       const std::vector<uint32_t> &order, int64_t alignment,
                       std::vector<int64_t> &offsets);

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_SKYLINE_H
