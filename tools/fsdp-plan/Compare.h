//===- Compare.h - A table of schedules -------------------------*- C++ -*-===//
#ifndef FSDP_TOOLS_FSDP_PLAN_COMPARE_H
#define FSDP_TOOLS_FSDP_PLAN_COMPARE_H

#include "mlir/Support/LLVM.h"

namespace fsdp {

/// `fsdp-plan compare`: compiles a model with each preset, and with what
/// `--with` asks for, and prints a table of what comes of it. What cannot be
/// compiled says why in its row. Fails if that is all rows. `argv` begins with
/// the name of the command.
mlir::LogicalResult compareSchedules(int argc, char **argv);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_COMPARE_H
