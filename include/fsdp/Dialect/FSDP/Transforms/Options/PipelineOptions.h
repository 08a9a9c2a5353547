//===- PipelineOptions.h - The table of all options -------------*- C++ -*-===//
//
// All options of the way from a model to a plan, as Options.td has them: for
// `--fsdp-pipeline`, the command line of `fsdp-plan`, and presets.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_PIPELINEOPTIONS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_PIPELINEOPTIONS_H

#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h"
#include "fsdp/Planner/Scheduling.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace fsdp {

#define GEN_PASS_DECL
#include "fsdp/Dialect/FSDP/Transforms/Options/Pipeline.h.inc"

/// An option as it was given: its name, without dashes, and its value, which is
/// empty for a flag.
using GivenOption = std::pair<std::string, std::string>;

/// A row of the table of options (Options.td).
struct PipelineOption {
  const char *name;
  const char *alias;       ///< Another name; may be empty.
  const char *group;       ///< Of --help: "Sharding".
  const char *values;      ///< What may be written; empty for a flag.
  const char *description; ///< Sentences.
  std::string (*read)(llvm::StringRef text, FSDPPipelineOptions &options);
  std::string (*spell)(const FSDPPipelineOptions &options);
};

/// All options of the pipeline, by name.
llvm::ArrayRef<PipelineOption> getPipelineOptions();

/// The option of that name or alias; null if there is none.
const PipelineOption *findPipelineOption(llvm::StringRef name);

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

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_PIPELINEOPTIONS_H
