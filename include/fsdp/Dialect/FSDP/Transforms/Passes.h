//===- Passes.h - Passes of the fsdp dialect --------------------*- C++ -*-===//
//
// The passes that shard and schedule a step.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H

#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h"
#include "fsdp/Planner/Scheduling.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace fsdp {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
