//===- Passes.h - Passes of the plan dialect --------------------*- C++ -*-===//
//
// From "every value has a buffer of its own" to "every buffer has a place", and
// the pipeline of all of them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_H
#define FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_H

#include "mlir/Pass/Pass.h"

#include <memory>

namespace fsdp {
struct ConvertFSDPToPlanOptions;
} // namespace fsdp

namespace fsdp::plan {

class ModuleOp;

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"

/// From the scheduled level to a plan that can be exported. The pass manager is
/// one of a builtin module.
void buildLowerToPlanPipeline(mlir::OpPassManager &pm,
                              const ConvertFSDPToPlanOptions &options);

/// Makes the pipeline known to tools, as `lower-to-plan`.
void registerLowerToPlanPipeline();

} // namespace fsdp::plan

#endif // FSDP_DIALECT_PLAN_TRANSFORMS_PASSES_H
