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
  std::string html;                  ///< A page; empty for none.
  std::string remarks;            ///< A regular expression of names of passes.
  bool unproved = false;          ///< Write a plan that cannot be proved.
  bool timing = false;            ///< Show where the time went.
  bool degrade = false;           ///< Plans for less of the machine, too.
  std::vector<GivenOption> given; ///< Of the pipeline.
  FSDPPipelineOptions options;    ///< What these mean.
  std::vector<std::string> with;  ///< Of `compare`: more sets of options.

  bool isTraced() const { return !trace.empty() || !html.empty(); }
};

/// Where --degrade writes the plan for less of something: step.budget.plan.
std::string getDegradedPath(llvm::StringRef path, llvm::StringRef what);

/// Reads the command line. Fails with a sentence; ends the command where help
/// or the version is asked for.
mlir::LogicalResult parseCommandLine(int argc, char **argv, CommandLine &line);

/// The same for `fsdp-plan compare`, whose name `argv` begins with.
mlir::LogicalResult parseCompareLine(int argc, char **argv, CommandLine &line);

/// `own` on top of what is given.
std::vector<GivenOption> overrideOptions(llvm::ArrayRef<GivenOption> given,
                                         std::vector<GivenOption> own);

/// What options of the pipeline mean. Returns what is wrong, or nothing.
/// `isTraced`: the durations of the step are asked for.
std::string readOptions(llvm::ArrayRef<GivenOption> given, bool isTraced,
                        FSDPPipelineOptions &options);

/// What `--help-json` prints: the table of options for other programs, an array
/// of objects with `name`, `values` (empty for a flag), `default` and `help`.
mlir::LogicalResult printOptionTable();

/// Splits "--schedule fsdp2 --no-sync" into options of the pipeline, as a shell
/// would. Returns what is wrong, or nothing.
std::string splitOptions(llvm::StringRef text, std::vector<GivenOption> &given);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_COMMANDLINE_H
