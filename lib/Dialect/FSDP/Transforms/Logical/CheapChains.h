//===- CheapChains.h - What is cheap to compute again -----------*- C++ -*-===//
//
// Chains of calls that take no longer than reading and writing memory does:
// elementwise, reductions, normalisations, copies.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_CHEAPCHAINS_H
#define FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_CHEAPCHAINS_H

#include "fsdp/Dialect/FSDP/Transforms/Logical/BackwardCopies.h"

namespace fsdp {

/// Of `calls`, in order, of which those in `repeatable` may be computed again
/// in the backward: the cheap ones with which it keeps the fewest bytes, where
/// what is computed again counts a little. To keep a value for it adds
/// `getBytes(value)`; asked for values with memory of their own. A least cut
/// between what is not cheap and what the backward reads, as in the partitioner
/// of PyTorch's AOTAutograd (`min_cut_rematerialization_partition`).
BackwardCopies::Operations
findCheapChains(llvm::ArrayRef<mlir::Operation *> calls,
                const BackwardCopies::Operations &repeatable,
                llvm::function_ref<int64_t(mlir::Value)> getBytes);

} // namespace fsdp

#endif // FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_CHEAPCHAINS_H
