//===- Auto.h - Decisions for a step ----------------------------*- C++ -*-===//
//
// The parts of `--fsdp-auto` between the model of a step and the step that is
// made: whoever wants to try several budgets, or to hear of a search, calls
// them one by one.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_AUTO_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_AUTO_H

#include "fsdp/Planner/Search.h"

#include "mlir/IR/BuiltinOps.h"

namespace fsdp {

/// Searches decisions within the budget of the model. Reports an error at
/// `module` if none are known, with the smallest budget for which some are, and
/// what `advise` says then, at the end of the sentence.
mlir::FailureOr<planner::SearchAnswer> searchDecisions(
    mlir::ModuleOp module, const planner::StepModel &model,
    const planner::SearchOptions &options,
    llvm::function_ref<std::string()> advise = [] { return std::string(); });

/// Reads decisions from a file, and evaluates them; its budget is not looked
/// at. Reports an error at `module`: a bad file, decisions about another model,
/// or some that `applyDecisions` cannot carry out.
mlir::FailureOr<planner::SearchAnswer>
readDecisions(mlir::ModuleOp module, const planner::StepModel &model,
              const std::string &path);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_AUTO_H
