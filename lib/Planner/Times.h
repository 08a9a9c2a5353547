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
  };
  Times(const Program &program, const Scenario &scenario);

  std::vector<int64_t> ops, calls; ///< Nanoseconds.
  std::vector<Costs> units;
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_TIMES_H
