//===- Passes.h - Passes of the fsdp dialect --------------------*- C++ -*-===//
//
// The passes that shard and schedule a step, and the pipeline that runs them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H

#include "fsdp/Dialect/FSDP/Transforms/Options.h"
#include "fsdp/Planner/Scheduling.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace fsdp {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

#define GEN_PASS_DECL
#include "fsdp/Dialect/FSDP/Transforms/Pipeline.h.inc"

/// An option as it was given: its name, without dashes, and its value, which is
/// empty for a flag.
using GivenOption = std::pair<std::string, std::string>;

/// A row of the table of options (Options.td).
struct PipelineOption {
  const char *name;
  const char *values;      ///< What may be written; empty for a flag.
  const char *description; ///< Sentences.
  std::string (*read)(llvm::StringRef text, FSDPPipelineOptions &options);
  std::string (*spell)(const FSDPPipelineOptions &options);
};

/// All options of the pipeline, by name.
llvm::ArrayRef<PipelineOption> getPipelineOptions();

/// Sets what is given; presets set all that they consist of. Returns what is
/// wrong, as "--name: expected ...; found ...", or nothing.
std::string readPipelineOptions(llvm::ArrayRef<GivenOption> given,
                                FSDPPipelineOptions &options);

/// Makes `--name` known to tools, with the options of the table.
void registerFSDPPipeline(llvm::StringRef name, llvm::StringRef description,
                          void (*build)(mlir::OpPassManager &,
                                        const FSDPPipelineOptions &));

/// Reads "ranks=4 strategy=full_shard", as textual pipelines have it.
std::string parsePipelineOptions(llvm::StringRef text,
                                 FSDPPipelineOptions &options);

/// Adds the passes from the aten level to the logical level.
void buildShardPipeline(mlir::OpPassManager &pm,
                        const FSDPPipelineOptions &options);

/// Adds the passes from the logical level to the scheduled level.
void buildLogicalToScheduledPipeline(mlir::OpPassManager &pm,
                                     const FSDPPipelineOptions &options);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
