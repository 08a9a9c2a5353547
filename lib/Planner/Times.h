//===- Times.h - How long the parts of a program take -----------*- C++ -*-===//

#ifndef FSDP_LIB_PLANNER_TIMES_H
#define FSDP_LIB_PLANNER_TIMES_H

#include "fsdp/Planner/Scenario.h"
#include "fsdp/Planner/StepModel.h"

namespace fsdp::planner {

/// What differs from one machine to another, side by side: places and memory
/// are the same for all of them.
struct Times {
  struct Costs {
    CollectiveCost gather, reduction, allReduce;
    CollectiveCost pieceGather;
    int64_t pieceCopy = 0;
  };
  Times(const Program &program, const Scenario &scenario);

  /// Nanoseconds: of all operations before each, and at last of all.
  std::vector<int64_t> before = {0};
  std::vector<int64_t> calls; ///< Nanoseconds.
  std::vector<Costs> units;
  std::optional<int64_t> contention; ///< If not that of the model.
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_TIMES_H
