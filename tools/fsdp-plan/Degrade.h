//===- Degrade.h - Plans for less of the machine ----------------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_PLAN_DEGRADE_H
#define FSDP_TOOLS_FSDP_PLAN_DEGRADE_H

#include "Compile.h"

namespace fsdp {

/// Compiles `module`, the imported programs, for a tenth less of the budget and
/// for a host less, and writes the plans beside the one of the line. Says of
/// each where it is and what it takes, or why there is none: what was asked for
/// first is there in any case.
void writeDegraded(const CommandLine &line, mlir::ModuleOp module,
                   mlir::TimingScope &timing);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_DEGRADE_H
