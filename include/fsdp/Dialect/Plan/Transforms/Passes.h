//===- Passes.h - Passes of the plan dialect --------------------*- C++ -*-===//
//
// From "every value has a buffer of its own" to "every buffer has a place".
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_H
#define FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_H

#include "mlir/Pass/Pass.h"

#include <memory>

namespace fsdp::plan {

class ModuleOp;

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"

} // namespace fsdp::plan

#endif // FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_H
