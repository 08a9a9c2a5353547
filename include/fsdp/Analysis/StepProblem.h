//===- StepProblem.h - A step as a scheduling problem -----------*- C++ -*-===//
//
// The adapter between the scheduled level and the planner: costs become
// durations, operands dependences, and values memory.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_STEPPROBLEM_H
#define FSDP_ANALYSIS_STEPPROBLEM_H

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Analysis/Memory.h"
#include "fsdp/Planner/Scheduling.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// Computations keep their order, and so do the launches of one stream: all
/// ranks have to agree on it. Durations are `fsdp.cost`.
struct StepProblem {
  planner::scheduling::Problem problem;
  /// By operation of the problem: one operation of the step, or the launches of
  /// a bucket. All but the terminator.
  std::vector<llvm::SmallVector<mlir::Operation *, 1>> operations;
  /// By buffer of the problem.
  std::vector<MemoryLife> buffers;
  /// The bytes of arguments: they are there all the time, and no buffer.
  int64_t persistentBytes = 0;
};

/// Takes a step of the scheduled level, in one block, as `order` says; its
/// program order is that.
StepProblem buildStepProblem(mlir::func::FuncOp step, const IssueOrder &order);

} // namespace fsdp

#endif // FSDP_ANALYSIS_STEPPROBLEM_H
