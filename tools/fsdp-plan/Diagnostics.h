//===- Diagnostics.h - Errors and remarks as sentences ----------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_DIAGNOSTICS_H
#define FSDP_TOOLS_FSDP_PLAN_DIAGNOSTICS_H

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"

namespace fsdp {

/// Prints errors, warnings and notes as sentences, with the node that they are
/// about.
mlir::LogicalResult printDiagnostic(mlir::Diagnostic &diagnostic);

/// Prints what passes of matching names decide, each decision on a line; with
/// an empty filter none. Fails with a sentence if `filter` is no regular
/// expression.
mlir::LogicalResult enableRemarks(mlir::MLIRContext &context,
                                  llvm::StringRef filter);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_DIAGNOSTICS_H
