//===- Reductions.h - How gradients become means ----------------*- C++ -*-===//
//
// The reductions of a unit's gradients, in order: over which axes, and how they
// are divided and rounded. Unless `fsdp.reductions` of the unit say otherwise,
// sums are in its reduce type.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_REDUCTIONS_H
#define FSDP_ANALYSIS_REDUCTIONS_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"

namespace fsdp {

/// By unit. A program that accumulates has the first ones of a step, or none.
llvm::MapVector<mlir::StringAttr,
                llvm::SmallVector<std::pair<mlir::Operation *, ReductionAttr>>>
findReductions(mlir::func::FuncOp program);

/// Succeeds if the reductions of a program are those that its units name.
mlir::LogicalResult verifyReductions(mlir::func::FuncOp program);

} // namespace fsdp

#endif // FSDP_ANALYSIS_REDUCTIONS_H
