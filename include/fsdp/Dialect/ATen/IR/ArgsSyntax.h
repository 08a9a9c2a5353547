//===- ArgsSyntax.h - How arguments are written -----------------*- C++ -*-===//
//
// The text of an argument list, shared by `#aten.args`, where a place is `?`,
// and by `aten.call`, where a place is the operand itself.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_ATEN_IR_ARGSSYNTAX_H
#define FSDP_DIALECT_ATEN_IR_ARGSSYNTAX_H

#include "fsdp/Dialect/ATen/IR/ATen.h"

#include "mlir/IR/OpImplementation.h"

namespace fsdp::aten {

/// Parses `(value, ..., name = value, ...)`. `parsePlace` parses a place if
/// there is one, and says so.
mlir::ParseResult
parseArgs(mlir::AsmParser &parser, ArgsAttr &args,
          llvm::function_ref<mlir::ParseResult(bool &)> parsePlace);

/// The reverse; `printPlace` is called once per place, in order.
void printArgs(mlir::AsmPrinter &printer, ArgsAttr args,
               llvm::function_ref<void()> printPlace);

/// The custom directives of an op with `callee` and `args`: `"mm"` and
/// `(%a, %b, 1, dtype = f32)`.
mlir::ParseResult parseCallee(mlir::OpAsmParser &parser, OpNameAttr &callee);
void printCallee(mlir::OpAsmPrinter &printer, mlir::Operation *op,
                 OpNameAttr callee);
mlir::ParseResult parseCallArgs(
    mlir::OpAsmParser &parser, ArgsAttr &args,
    llvm::SmallVectorImpl<mlir::OpAsmParser::UnresolvedOperand> &inputs);
void printCallArgs(mlir::OpAsmPrinter &printer, mlir::Operation *op,
                   ArgsAttr args, mlir::OperandRange inputs);

} // namespace fsdp::aten

#endif // FSDP_DIALECT_ATEN_IR_ARGSSYNTAX_H
