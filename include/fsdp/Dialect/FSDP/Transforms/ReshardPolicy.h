//===- ReshardPolicy.h - What stays gathered after the forward --*- C++ -*-===//
//
// The one mechanism behind strategies and `--fsdp-reshard-policy`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_RESHARDPOLICY_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_RESHARDPOLICY_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// True of the name of the root or of one of its element types: `root.bf16`.
bool isRoot(llvm::StringRef unit);

/// Has the backward gather each unit again but the root (and the root's types),
/// or lets one gather serve both phases, in a step of the logical level. Where
/// there are axes to keep pieces over, the backward gathers these.
void setReshardAfterForward(mlir::func::FuncOp step, bool reshard,
                            mlir::ArrayAttr kept = {});

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_RESHARDPOLICY_H
