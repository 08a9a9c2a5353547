//===- Meaning.h - What a model computes, as numbers ------------*- C++ -*-===//
//
// Runs the function that a step was made from, before anything was sharded,
// over numbers: every value in memory of its own, one operator after the other.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TARGET_PLAN_MEANING_H
#define FSDP_TARGET_PLAN_MEANING_H

#include "fsdp/Symbolic/Machine.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

struct PlanMeaning {
  symbolic::Meanings plan;    ///< Of all programs: the mesh, the parameters.
  symbolic::Meanings program; ///< What is left by this one.
};

/// What must be there at the end of each of the programs `steps` made from
/// `source`, of the aten level: the loss and the gradients as means over all
/// ranks, each parameter with a gradient updated once by the rule of the step's
/// optimizer, mutated buffers, and the outputs that the step keeps. There is a
/// step, and all have one `SeedFactor`.
mlir::FailureOr<llvm::SmallVector<PlanMeaning>>
getMeanings(mlir::func::FuncOp source,
            llvm::ArrayRef<mlir::func::FuncOp> steps);

} // namespace fsdp

#endif // FSDP_TARGET_PLAN_MEANING_H
