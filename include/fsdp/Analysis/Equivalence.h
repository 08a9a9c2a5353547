//===- Equivalence.h - Does a sharded step compute its source? --*- C++ -*-===//
//
// Value numbering of a step and of the function that it was made from, in one
// table and with all that concerns shards seen through: taking the sharding
// away must give the source back.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_EQUIVALENCE_H
#define FSDP_ANALYSIS_EQUIVALENCE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// Succeeds if each rank's `step`, of the logical or the scheduled level,
/// computes what `source`, of the aten level, does:
///
/// * the same loss, gradients and mutations of buffers, as values;
/// * what has an effect in the same order;
/// * each gradient reduced once, to a mean over all ranks, and so the loss;
/// * each parameter in one unit, and each trainable element updated once.
///
/// `init` is where arguments with `fsdp.result` come from; it may be null.
/// Takes time linear in the number of operations.
mlir::LogicalResult verifyEquivalence(mlir::func::FuncOp step,
                                      mlir::func::FuncOp source,
                                      mlir::func::FuncOp init);

} // namespace fsdp

#endif // FSDP_ANALYSIS_EQUIVALENCE_H
