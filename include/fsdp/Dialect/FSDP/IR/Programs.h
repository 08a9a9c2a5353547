//===- Programs.h - Which functions are programs ----------------*- C++ -*-===//
//
// A program is a function that every rank runs as a whole: one captured graph.
// Attributes say which functions are, never their names.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_PROGRAMS_H
#define FSDP_DIALECT_FSDP_IR_PROGRAMS_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace fsdp {

/// The functions with `aten.program`, in the order of the module: one block
/// each, and no calls. Reports an error if there is none.
mlir::FailureOr<llvm::SmallVector<mlir::func::FuncOp>>
getPrograms(mlir::ModuleOp module);

/// The function with `fsdp.init`, which runs once, ahead of all programs; or
/// null.
mlir::func::FuncOp getInit(mlir::ModuleOp module);

/// The model that `program` was made from, which it names with `fsdp.source`;
/// or null. Programs may share it, and no pass changes it.
mlir::func::FuncOp getSource(mlir::func::FuncOp program);

/// Whether a program has `function` as its source.
bool isSource(mlir::func::FuncOp function);

/// The call with which the backward starts: the gradient of the loss by the
/// loss. Null if nothing says which one it is.
aten::CallOp getGradientSeed(mlir::func::FuncOp func);

/// What the gradient of the loss by the loss is in a program, where it is 1 in
/// its source.
struct SeedFactor {
  int64_t divisor = 1;   ///< Of how many micro-batches a step is the mean.
  bool isScaled = false; ///< By the scale of the grad-scaler.
};

/// By `fsdp.mean_loss` and `fsdp.grad_scaler`, which all parts of a step share.
SeedFactor getSeedFactor(mlir::func::FuncOp program);

/// The arguments of `seed` if the loss is divided. Reports an error if it is,
/// and `seed` is no `full` or `full_like` of a number.
mlir::FailureOr<aten::ArgsAttr> getSeedArgs(aten::CallOp seed, int64_t divisor);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_IR_PROGRAMS_H
