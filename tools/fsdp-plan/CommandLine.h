//===- CommandLine.h - The command line of fsdp-plan ------------*- C++ -*-===//
//
// What is read and written, and the options of the pipeline (Options.td).
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_PLAN_COMMANDLINE_H
#define FSDP_TOOLS_FSDP_PLAN_COMMANDLINE_H

#include "fsdp/Dialect/FSDP/Transforms/Options/PipelineOptions.h"

#include "mlir/Support/LLVM.h"

namespace fsdp {

struct CommandLine {
  std::string input;                 ///< A .pt2 archive.
  std::string output;                ///< The plan; empty for a dry run.
  std::string bind;                  ///< Sizes of symbols.
  std::vector<std::string> programs; ///< More of them, as "name=file".
  std::string report, trace;         ///< JSON; empty for none.
  std::string remarks;   ///< A regular expression of names of passes.
  bool unproved = false; ///< Write a plan that cannot be proved.
  bool timing = false;   ///< Show where the time went.
  FSDPPipelineOptions options;
};

/// Reads the command line. Fails with a sentence; ends the command where help
/// or the version is asked for.
mlir::LogicalResult parseCommandLine(int argc, char **argv, CommandLine &line);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_COMMANDLINE_H
