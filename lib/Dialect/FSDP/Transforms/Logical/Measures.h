//===- Measures.h - What all gradients of a step add up to ------*- C++ -*-===//
//
// One number of the gradients of all units, for passes that scale them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_MEASURES_H
#define FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_MEASURES_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

struct Measures {
  /// One for all units that are sharded over the same axes, in the order of
  /// units, reduced over these axes. Along the others, ranks have the same
  /// gradients, which count once.
  llvm::SmallVector<mlir::Value> values;
  int64_t numUnits = 0, numElements = 0, numReductions = 0;
};

/// Measures the trainable elements of the gradients of all updates. Reports an
/// error if a gradient is each rank's own, as that of what is ignored.
mlir::FailureOr<Measures> measureGradients(mlir::OpBuilder &builder,
                                           mlir::func::FuncOp program,
                                           MeasureKind kind);

} // namespace fsdp

#endif // FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_MEASURES_H
