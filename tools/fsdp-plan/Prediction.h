//===- Prediction.h - What a program is predicted to take -------*- C++ -*-===//
//
// A program of the scheduled level with costs, run in its order by the machine
// of `fsdp/Planner/Scheduling.h`.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_TOOLS_FSDP_PLAN_PREDICTION_H
#define FSDP_TOOLS_FSDP_PLAN_PREDICTION_H

#include "Summary.h"

#include "fsdp/Analysis/StepProblem.h"
#include "fsdp/Planner/Hardware.h"

namespace fsdp {

/// The program as a problem whose program order is its schedule, and its times.
struct Simulation {
  explicit Simulation(mlir::func::FuncOp program);

  StepProblem step;
  planner::scheduling::Schedule schedule;
  planner::scheduling::Timeline line;
};

/// "forward", "backward", "recompute" or "update".
llvm::StringRef getRole(mlir::Operation *op);

/// `hardware`: whose peak counts.
PlanSummary::Prediction predict(mlir::func::FuncOp program,
                                const planner::Hardware &hardware);

/// What the step of a summary with predictions takes if computations vary by 2,
/// 5 and 10 %, on 8 ranks and on all, or on 64 if there are more. Each program
/// begins on all of them at once. Nothing for a single rank.
std::vector<PlanSummary::Jitter> predictJitter(const PlanSummary &summary);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_PREDICTION_H
