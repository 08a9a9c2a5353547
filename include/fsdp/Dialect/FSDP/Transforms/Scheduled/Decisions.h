//===- Decisions.h - Decisions at the scheduled level -----------*- C++ -*-===//
//
// What passes decide, as functions: others try a decision and undo it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_DECISIONS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_DECISIONS_H

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// Turns the collectives of a step of the logical level into launches and
/// waits, as `--fsdp-async` does.
mlir::LogicalResult makeAsync(mlir::func::FuncOp step);

/// Decides when the backward waits for reductions, as
/// `--fsdp-place-reduce-waits` does. Returns those whose waits have moved.
llvm::SmallVector<mlir::Operation *> placeReduceWaits(IssueOrder &order,
                                                      ReduceWait when);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_DECISIONS_H
