//===- Clipping.h - Is the norm of all gradients clipped? -------*- C++ -*-===//
//
// The part of equivalence that is about what scales gradients.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_ANALYSIS_CLIPPING_H
#define FSDP_LIB_ANALYSIS_CLIPPING_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

namespace fsdp {

/// Elements [begin, end) of a unit, whose gradient `op` takes.
struct UnitInterval {
  int64_t begin, end;
  mlir::Operation *op;
  mlir::Value gradient;
};

/// Checks that each trainable element of the unit is in one interval, and sorts
/// them. `what` is what is done to elements: "updated". Empty intervals are
/// right.
mlir::LogicalResult
verifyCovered(UnitOp unit, llvm::SmallVectorImpl<UnitInterval> &intervals,
              llvm::StringRef what);

/// Where a program says that it clips the norm of its gradients, checks that
/// every update takes the clip factor of the norm of all gradients that are
/// updated. Otherwise, nothing says by what they are scaled.
mlir::LogicalResult
verifyClipping(mlir::func::FuncOp program,
               llvm::function_ref<bool(mlir::Value, mlir::Value)> areEqual);

} // namespace fsdp

#endif // FSDP_LIB_ANALYSIS_CLIPPING_H
