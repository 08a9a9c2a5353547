//===- Compile.h - From imported programs to a proved plan ------*- C++ -*-===//
//
// What the commands have in common: the whole way through the levels, with
// every verifier on. Nothing is written; what is wrong is a diagnostic of the
// context.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_PLAN_COMPILE_H
#define FSDP_TOOLS_FSDP_PLAN_COMPILE_H

#include "CommandLine.h"
#include "Summary.h"

#include "fsdp/Dialect/FSDP/Transforms/Scheduled/StepModel.h"
#include "fsdp/PlanFile/PlanFile.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/Timing.h"

namespace fsdp {

/// With all dialects. It ends with the process, as the IR in it does: to take
/// it apart first would only take time.
mlir::MLIRContext &getContext();

/// Imports the model and the programs beside it. Null, after a diagnostic, if
/// one of them is rejected.
mlir::ModuleOp importPrograms(const CommandLine &line);

/// What is asked for, beside the programs.
struct CompileRequest {
  FSDPPipelineOptions options;
  std::string name;           ///< Of the plan, in errors.
  bool takesUnproved = false; ///< Also a plan that cannot be proved.
  bool isTraced = false;
  bool showsProgress = false; ///< Of a search, on the terminal.
};

struct Compilation {
  planfile::PlanFile file;
  PlanSummary summary;
  /// Of each program its name and, if that was asked for, its predicted
  /// timeline: a JSON array.
  std::vector<std::pair<std::string, std::string>> timelines;
  std::string decisions; ///< As a text, if there are any.
};

/// Compiles the programs of `module`, which are imported graphs, and changes
/// it. Fails with a diagnostic, also where the plan is refuted, cannot be
/// proved, or needs more than its budget.
mlir::FailureOr<Compilation> compile(mlir::ModuleOp module,
                                     const CompileRequest &request,
                                     mlir::TimingScope &timing);

/// Takes `module` to the logical level.
mlir::LogicalResult makeLogical(mlir::ModuleOp module,
                                const FSDPPipelineOptions &options,
                                mlir::TimingScope &timing);

/// The planner's model of the logical level, without a budget.
mlir::FailureOr<BuiltModel> makeStepModel(mlir::ModuleOp module,
                                          const FSDPPipelineOptions &options);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_COMPILE_H
