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

/// The copy of `program` as it was before it was sharded, which says so with
/// `fsdp.source`; or null.
mlir::func::FuncOp getSource(mlir::func::FuncOp program);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_IR_PROGRAMS_H
