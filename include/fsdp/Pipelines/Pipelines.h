//===- Pipelines.h - From an imported model to a proved plan ----*- C++ -*-===//
//
// The whole way, and the passes of both ends of its proof: what the model
// means, and that the plan computes it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PIPELINES_PIPELINES_H
#define FSDP_PIPELINES_PIPELINES_H

#include "fsdp/Dialect/FSDP/Transforms/Options/PipelineOptions.h"

namespace fsdp {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Pipelines/Passes.h.inc"

/// Adds all passes from an imported model to the logical level.
void buildLogicalPipeline(mlir::OpPassManager &pm,
                          const FSDPPipelineOptions &options);

/// Adds the passes from the logical level to the scheduled level.
void buildLogicalToScheduledPipeline(mlir::OpPassManager &pm,
                                     const FSDPPipelineOptions &options);

/// True if a search, or a file of decisions, takes the place of rules.
inline bool isPlanned(const FSDPPipelineOptions &options) {
  return options.automatic || !options.decisions.empty();
}

/// The machine that costs are predicted for: by default that of the device.
std::string getHardware(const FSDPPipelineOptions &options);

/// Adds what follows when it has been decided where launches and waits go:
/// costs, the order of the block, and the verifiers of the level.
void buildScheduledPipeline(mlir::OpPassManager &pm,
                            const FSDPPipelineOptions &options);

/// Adds all passes from an imported model to the scheduled level.
void buildSchedulePipeline(mlir::OpPassManager &pm,
                           const FSDPPipelineOptions &options);

/// Adds all passes from the scheduled level to a plan that can be exported. The
/// pass manager is one of a builtin module. `passes`: more of them, ahead of
/// events and places in memory.
void buildLoweringPipeline(mlir::OpPassManager &pm, aten::Device device,
                           Strategy strategy, llvm::StringRef passes = "");

/// Adds all passes from an imported model to a plan that can be exported, and
/// the proof of it.
void buildPlanPipeline(mlir::OpPassManager &pm,
                       const FSDPPipelineOptions &options);

/// Makes `lower-to-plan` and `fsdp-pipeline` known to tools.
void registerPipelines();

} // namespace fsdp

#endif // FSDP_PIPELINES_PIPELINES_H
