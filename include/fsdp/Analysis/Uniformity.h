//===- Uniformity.h - What may differ from rank to rank ---------*- C++ -*-===//
//
// All ranks run the same step on different data. Which values are the same on
// all of them, so that a branch on one takes every rank the same way?
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_UNIFORMITY_H
#define FSDP_ANALYSIS_UNIFORMITY_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "llvm/ADT/DenseMap.h"

namespace fsdp {

/// The same on all ranks are constants, the scalars of the optimizer, results
/// of
/// `@init`, gathered units, sums over all ranks, and what is computed from
/// these alone; whatever else there is may differ.
class Uniformity {
public:
  explicit Uniformity(mlir::func::FuncOp func);

  /// Why `value` may differ from rank to rank: the value with which that
  /// begins; or null if it is the same on all ranks.
  mlir::Value getSource(mlir::Value value) const {
    return sources.lookup(value);
  }

  /// Why ranks may take different ways through the regions of `op`; or null.
  mlir::Value getControlSource(mlir::Operation *op) const {
    return controls.lookup(op);
  }

private:
  bool visit(mlir::Block &block);
  bool visitBranch(mlir::Operation *op);
  bool mark(mlir::Value value, mlir::Value source);
  mlir::Value getOperandSource(mlir::ValueRange values) const;

  llvm::DenseMap<mlir::Value, mlir::Value> sources;
  llvm::DenseMap<mlir::Operation *, mlir::Value> controls;
};

} // namespace fsdp

#endif // FSDP_ANALYSIS_UNIFORMITY_H
