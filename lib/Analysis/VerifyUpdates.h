//===- VerifyUpdates.h - Are gradients what the program says? ---*- C++ -*-===//

#ifndef FSDP_LIB_ANALYSIS_VERIFYUPDATES_H
#define FSDP_LIB_ANALYSIS_VERIFYUPDATES_H

#include "Measures.h"

namespace fsdp {

/// Checks that a parameter is in a group without weight decay if and only if
/// the program says so. `intervals`: of the updates of the unit.
mlir::LogicalResult verifyDecay(mlir::func::FuncOp program, UnitOp unit,
                                llvm::ArrayRef<UnitInterval> intervals);

/// Checks that what is summed over micro-batches before it is reduced is
/// reduced in the last one alone.
mlir::LogicalResult verifyUnsynchronised(mlir::func::FuncOp program);

/// Where a program says that it clips the norm of its gradients, checks that
/// every update takes the clip factor of the norm of all gradients that are
/// updated. Otherwise, nothing says by what they are scaled.
mlir::LogicalResult verifyClipping(mlir::func::FuncOp program,
                                   MeasuredGradients &measured);

/// Where a program says that it scales the loss, checks that every update
/// divides by the scale, and changes nothing where any gradient that is updated
/// is not finite; and that the scale is updated as is said.
mlir::LogicalResult verifyScaling(mlir::func::FuncOp program,
                                  MeasuredGradients &measured);

} // namespace fsdp

#endif // FSDP_LIB_ANALYSIS_VERIFYUPDATES_H
