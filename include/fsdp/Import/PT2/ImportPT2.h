//===- ImportPT2.h - From exported programs to the ATen dialect -*- C++ -*-===//
//
// Reads the archive that torch.export.save writes of a training step and makes
// a function `@step` of it. An archive is untrusted input: whatever departs
// from the format is rejected by one sentence that says where.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_IMPORT_PT2_IMPORTPT2_H
#define FSDP_IMPORT_PT2_IMPORTPT2_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Support/LLVM.h"

#include <string>

namespace fsdp {

struct ImportOptions {
  /// What to bind symbolic sizes to: "" for nothing, "hint" for the sizes of
  /// the example that the program was captured with, or "batch=16,length=2".
  std::string bind;
};

/// Imports the archive at `path`. Reports what is wrong through the context's
/// diagnostics, then returns null. The result is verified.
mlir::OwningOpRef<mlir::ModuleOp> importPT2(llvm::StringRef path,
                                            const ImportOptions &options,
                                            mlir::MLIRContext *context);

/// Moves the program of `other` into `module`, which has one already, and calls
/// it `name`. Reports an error if that name is taken.
mlir::LogicalResult addProgram(mlir::ModuleOp module, mlir::ModuleOp other,
                               llvm::StringRef name);

/// Registers `--import-pt2` with mlir-translate's registry.
void registerImportPT2Translation();

} // namespace fsdp

#endif // FSDP_IMPORT_PT2_IMPORTPT2_H
