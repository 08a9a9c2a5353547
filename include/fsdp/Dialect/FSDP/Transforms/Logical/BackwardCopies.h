//===- BackwardCopies.h - What the backward computes anew -------*- C++ -*-===//
//
// What passes share that copy operations of the forward into the backward:
// views of gathered units, which become views of the unit as gathered for the
// backward, and what is computed from them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_BACKWARDCOPIES_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_BACKWARDCOPIES_H

#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/DenseSet.h"

namespace fsdp {

/// True of what reads an activation in the backward, repeated work included.
bool isBackward(mlir::Operation *op);

class BackwardCopies {
public:
  using Operations = llvm::DenseSet<mlir::Operation *>;
  using Uses = llvm::SmallVector<mlir::OpOperand *, 0>;

  /// Remembers the order of the step and the gathers of its backward.
  explicit BackwardCopies(mlir::func::FuncOp step);

  /// Views of what the forward has gathered of some units, and views and copies
  /// of these: what may be copied for the price of a gather.
  Operations findParameters(llvm::function_ref<bool(UnitOp)> isWanted);

  /// Where the backward reads what `ops` compute, in order; what is among
  /// `ops` itself, or came later, does not count.
  Uses getUses(const Operations &ops) const;

  /// What computes `value`, in order: as far as `isCopied` says, and not
  /// further than what is known already.
  llvm::SmallVector<mlir::Operation *>
  getNeeded(mlir::Value value,
            llvm::function_ref<bool(mlir::Operation *)> isCopied,
            llvm::function_ref<bool(mlir::Value)> isKnown) const;

  /// Reads a copy at `use`, in front of which it is made unless `copies` has it
  /// already. Calls that are copied get the phase.
  void replace(mlir::OpOperand &use, aten::Phase phase,
               llvm::function_ref<bool(mlir::Operation *)> isCopied,
               mlir::IRMapping &copies);

private:
  std::pair<mlir::ArrayAttr, mlir::Value> getKept(UnshardOp gather);
  mlir::Value getFull(ViewOp view, mlir::Operation *user);

  mlir::Block &block;
  mlir::SymbolTable symbols;
  mlir::OpBuilder builder;
  llvm::DenseMap<mlir::Operation *, unsigned> positions;
  llvm::DenseMap<mlir::Attribute, UnshardOp> gathers; // by unit
};

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_BACKWARDCOPIES_H
