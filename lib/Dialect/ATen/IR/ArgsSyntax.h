//===- ArgsSyntax.h - How arguments are written -----------------*- C++ -*-===//
//
// The text of an argument list, shared by `#aten.args`, where a place is `?`,
// and by `aten.call`, where a place is the operand itself.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_ATEN_IR_ARGSSYNTAX_H
#define FSDP_LIB_DIALECT_ATEN_IR_ARGSSYNTAX_H

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

} // namespace fsdp::aten

#endif // FSDP_LIB_DIALECT_ATEN_IR_ARGSSYNTAX_H
