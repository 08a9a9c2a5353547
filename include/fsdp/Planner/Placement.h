//===- Placement.h - Where decisions put collectives ------------*- C++ -*-===//
//
// What carries decisions out asks here where everything goes, so that there is
// one meaning of a decision.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_PLACEMENT_H
#define FSDP_PLANNER_PLACEMENT_H

#include "fsdp/Planner/Decisions.h"

namespace fsdp::planner {

/// A program under decisions. Place p is in front of the computation `ops[p]`.
/// At one place, in this order: gathered units end, the compute stream waits
/// for reductions, reductions are launched, gathers are launched, and the
/// compute stream waits for gathers, and for reductions that were launched
/// there.
struct Placement {
  struct Call {
    Phase phase;                 ///< Of a gather.
    std::vector<uint32_t> units; ///< In one call, in the order of their use.
    uint32_t launch, wait; ///< Places; `wait` of the first use, or of all.
  };
  std::vector<uint32_t> ops;    ///< Those of the program that are there.
  std::vector<Call> gathers;    ///< In the order of issue.
  std::vector<Call> reductions; ///< Likewise.
};

/// Of a model that `check` accepts, and decisions for it.
Placement place(const StepModel &model, size_t program,
                const Decisions &decisions);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_PLACEMENT_H
