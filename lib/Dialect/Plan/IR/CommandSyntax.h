//===- CommandSyntax.h - How commands are written ---------------*- C++ -*-===//
//
// The custom directives of commands: `-> %a, none` and `<forward> on gather`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_PLAN_IR_COMMANDSYNTAX_H
#define FSDP_LIB_DIALECT_PLAN_IR_COMMANDSYNTAX_H

#include "fsdp/Dialect/ATen/IR/ArgsSyntax.h"
#include "fsdp/Dialect/Plan/IR/Plan.h"

namespace fsdp::plan {

using aten::parseCallArgs;
using aten::parseCallee;
using aten::printCallArgs;
using aten::printCallee;

/// The buffers that a launch writes; absent ones are `none`. Nothing at all is
/// printed of a launch without any.
mlir::ParseResult parseOutputs(
    mlir::OpAsmParser &parser,
    llvm::SmallVectorImpl<mlir::OpAsmParser::UnresolvedOperand> &outputs,
    mlir::DenseBoolArrayAttr &present);
void printOutputs(mlir::OpAsmPrinter &printer, mlir::Operation *op,
                  mlir::OperandRange outputs, mlir::DenseBoolArrayAttr present);

/// The role, and the stream if it is not `compute`.
mlir::ParseResult parsePlace(mlir::OpAsmParser &parser, RoleAttr &role,
                             StreamAttr &stream);
void printPlace(mlir::OpAsmPrinter &printer, mlir::Operation *op, RoleAttr role,
                StreamAttr stream);

} // namespace fsdp::plan

#endif // FSDP_LIB_DIALECT_PLAN_IR_COMMANDSYNTAX_H
