//===- ModulePaths.h - Paths of modules, as people write them ---*- C++ -*-===//
//
// What passes share that take modules by name: patterns of whole paths, and
// what to say if none matches.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_MODULEPATHS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_MODULEPATHS_H

#include "mlir/IR/Diagnostics.h"
#include "llvm/Support/Regex.h"

#include <string>
#include <vector>

namespace fsdp {

/// What keeps a text from being used as an extended regular expression: its
/// syntax, or what it costs to compile. Empty if nothing does.
std::string findRegexError(llvm::StringRef text);

/// An extended regular expression of whole paths, with `\d` and `\w`. A wrapper
/// `m.` around the model does not count. Reports what is no such expression
/// with `emitError`.
mlir::FailureOr<llvm::Regex>
getPathRegex(llvm::StringRef text,
             llvm::function_ref<mlir::InFlightDiagnostic()> emitError);

/// The same of parts of names.
mlir::FailureOr<llvm::Regex>
getNameRegex(llvm::StringRef text,
             llvm::function_ref<mlir::InFlightDiagnostic()> emitError);

/// The path with a pattern in place of each number: what layers have in common.
std::string generalizePath(llvm::StringRef path);

/// Ends a sentence that says what there is not with what there is.
void listFound(mlir::InFlightDiagnostic &diagnostic,
               std::vector<std::string> found);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_MODULEPATHS_H
