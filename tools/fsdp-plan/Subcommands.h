//===- Subcommands.h - fsdp-plan <word> -------------------------*- C++ -*-===//
//
// What else fsdp-plan does, if its first argument is one of these words. Each
// reads a command line of its own, whose `argv[0]` is the word.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_PLAN_SUBCOMMANDS_H
#define FSDP_TOOLS_FSDP_PLAN_SUBCOMMANDS_H

#include "mlir/Support/LLVM.h"

namespace fsdp {

/// Compares predictions with runs that others have measured.
mlir::LogicalResult runValidate(int argc, char **argv);

/// Writes a hardware file whose links are those that were measured.
mlir::LogicalResult runCalibrate(int argc, char **argv);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_SUBCOMMANDS_H
