//===- Auto.h - Decisions for a step ----------------------------*- C++ -*-===//
//
// Searches decisions for the programs of a module, or reads them from a file,
// and carries them out: what `--fsdp-auto` does, for those who want to hear of
// it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_AUTO_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_AUTO_H

#include "fsdp/Dialect/FSDP/Transforms/CostModel.h"
#include "fsdp/Planner/Search.h"

namespace fsdp {

struct AutoSettings {
  bool searches = true; ///< Otherwise decisions are read from `file`.
  std::string file;     ///< Where found decisions are written, if anywhere.
  int64_t budget = 0;   ///< Bytes of all that a rank holds; 0: no limit.
  int64_t evaluations = 20000;
  std::vector<planner::Decisions> starts; ///< To begin with, beside baselines.
  bool findsPrice = false; ///< Of memory: with a quarter of the evaluations.
  /// Called now and then while it searches; the search ends at false.
  std::function<bool(const planner::SearchProgress &)> progress;
};

/// What was decided, and beside what it stands.
struct AutoAnswer {
  planner::Decisions decisions;
  planner::Outcome outcome;
  std::optional<planner::Bound> bound; ///< What no decisions can beat.
  int64_t evaluations = 0;             ///< 0: decisions were read.
  /// The best that was found with `more` bytes above the budget: what memory is
  /// worth. Not asked for without a budget.
  struct Price {
    int64_t more = 0;
    int64_t time = 0; ///< Of the step then.
  };
  std::optional<Price> price;
  /// The same decisions where things are not as predicted; their peak is the
  /// same, since no time decides about memory.
  struct Scenario {
    std::string name;
    int64_t time = 0;
  };
  std::vector<Scenario> scenarios;
  /// What others would decide, within the budget or not.
  struct Baseline {
    std::string name; ///< "fsdp1", "fsdp1, all kept, all recomputed".
    planner::Outcome outcome;
  };
  std::vector<Baseline> baselines;
};

/// Decides about all programs of `module`, of the logical level, and makes
/// programs of the scheduled level of them. Reports an error where no decisions
/// fit into the budget, with the smallest one that is known to work; where
/// something is asked for that the planner does not know; or at a file.
mlir::FailureOr<AutoAnswer> decide(mlir::ModuleOp module,
                                   const CostModel &costs,
                                   const AutoSettings &settings);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_AUTO_H
