//===- VocabularyLoss.h - A cross-entropy and what it is computed from ----===//
//
// The calls between the hidden states and their gradients, where these are
// those of a cross-entropy over a vocabulary.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_ATEN_TRANSFORMS_VOCABULARYLOSS_H
#define FSDP_LIB_DIALECT_ATEN_TRANSFORMS_VOCABULARYLOSS_H

#include "fsdp/Dialect/ATen/IR/ATen.h"

#include "llvm/ADT/SetVector.h"

namespace fsdp::aten::detail {

/// A slice of rows, or its backward: of `whole`, those from `first` on along
/// `dim`, each `step`-th, are `part`. Without the last size, which is that of
/// the vocabulary.
struct RowSlice {
  llvm::SmallVector<int64_t> whole, part;
  int64_t dim, first, step;

  /// Behind the last row that is taken.
  int64_t getEnd() const { return first + (part[dim] - 1) * step + 1; }
};

/// `R` rows of hidden states, projected on a vocabulary of `V`; of these rows,
/// `n` are rows of the loss. The backward may be missing.
struct VocabularyLoss {
  CallOp projection; ///< mm or addmm: [R, V]
  CallOp logSoftmax; ///< [n, V], of f32 or f64
  CallOp loss;       ///< nll_loss_forward
  CallOp lossBackward, logSoftmaxBackward;

  /// What becomes of the logits and of their gradients, in order.
  llvm::SmallVector<RowSlice> slices, backwardSlices;
  llvm::SmallVector<CallOp> casts, backwardCasts;

  /// What reads the gradient of the logits, [R, V]: products with it, which
  /// have its rows; with its transpose, or sums, which are of all rows.
  llvm::SmallVector<CallOp> products, sums;

  /// All calls that make or read something of rows x vocabulary.
  llvm::SetVector<mlir::Operation *> calls;

  mlir::Value getHidden();
  bool hasBackward() { return bool(lossBackward); }
};

/// Finds the calls of `loss`. If they are others than those of a plain
/// cross-entropy, returns nothing and sets `reason`.
std::optional<VocabularyLoss> findVocabularyLoss(CallOp loss,
                                                 std::string &reason);

} // namespace fsdp::aten::detail

#endif // FSDP_LIB_DIALECT_ATEN_TRANSFORMS_VOCABULARYLOSS_H
