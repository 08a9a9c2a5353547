//===- InitAllPasses.h - Every pass, and the pipeline of all ----*- C++ -*-===//
//
// What a tool registers before it transforms a program, and the whole way from
// the aten level to a plan.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_INITALLPASSES_H
#define FSDP_INITALLPASSES_H

#include "fsdp/Conversion/FSDPToPlan/FSDPToPlan.h"
#include "fsdp/Dialect/ATen/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

namespace fsdp {

/// Adds all passes from an imported model to the logical level.
inline void buildLogicalPipeline(mlir::OpPassManager &pm,
                                 const FSDPPipelineOptions &options) {
  pm.addPass(aten::createLegalizePass());
  pm.addPass(aten::createFoldParameterCastsPass());
  if (options.device == aten::Device::CUDA)
    pm.addPass(aten::createRetargetDevicePass());
  buildShardPipeline(pm, options);
}

/// Adds all passes from an imported model to the scheduled level.
inline void buildSchedulePipeline(mlir::OpPassManager &pm,
                                  const FSDPPipelineOptions &options) {
  buildLogicalPipeline(pm, options);
  buildLogicalToScheduledPipeline(pm, options);
}

/// Adds all passes from the scheduled level to a plan that can be exported.
inline void buildLoweringPipeline(mlir::OpPassManager &pm,
                                  const FSDPPipelineOptions &options) {
  plan::buildLowerToPlanPipeline(pm, {options.device, options.strategy});
}

/// Adds all passes from the aten level to a plan that can be exported, and the
/// proof of it.
inline void buildPlanPipeline(mlir::OpPassManager &pm,
                              const FSDPPipelineOptions &options) {
  buildSchedulePipeline(pm, options);
  buildLoweringPipeline(pm, options);
  pm.addNestedPass<plan::ModuleOp>(plan::createVerify());
}

inline void registerAllPasses() {
  aten::registerATenPasses();
  registerFSDPPasses();
  registerFSDPToPlanPasses();
  plan::registerPlanPasses();
  plan::registerLowerToPlanPipeline();
  mlir::registerTransformsPasses();
  registerFSDPPipeline(
      "fsdp-pipeline",
      "From the aten level to a plan: shard, schedule, lower, and verify.",
      buildPlanPipeline);
}

} // namespace fsdp

#endif // FSDP_INITALLPASSES_H
