//===- Explanation.h - How good decisions are -------------------*- C++ -*-===//
//
// What decisions stand beside: what others would decide, what more memory would
// buy, and what they take where things are not as predicted.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_EXPLANATION_H
#define FSDP_PLANNER_EXPLANATION_H

#include "fsdp/Planner/Search.h"

namespace fsdp::planner {

struct Explanation {
  /// What is decided otherwise in any program, and of which modules or units.
  struct Change {
    enum class Kind {
      NotRecomputed,
      CheapRecomputed, ///< Of the module, only what is cheap.
      Recomputed,
      Kept,        ///< From the forward to the backward.
      NotKept,     ///< Gathered again in the backward, from all ranks.
      PieceKept,   ///< Gathered again from pieces of a few ranks.
      Resident,    ///< From one micro-batch to the next.
      NotResident, ///< Gathered in each of them.
      Calls,       ///< They are in others.
      Places       ///< They are launched or waited for elsewhere.
    };
    Kind kind;
    std::vector<size_t> items; ///< Of the model's modules, or units.
    std::vector<std::string> names;
  };
  struct Point {
    std::string name;
    Outcome outcome;
  };
  /// "fsdp1", "fsdp1, all kept, all recomputed": within the budget or not.
  std::vector<Point> baselines;
  /// Of each policy the fastest of these that keeps to the budget, or the
  /// leanest.
  std::vector<Point> policies;
  /// The same decisions on another machine. They hold the same memory: no time
  /// decides about that.
  std::vector<Point> scenarios;
  /// Where several scenarios were searched for: what a short search for the
  /// prediction alone comes to, as predicted and then in `scenarios`.
  std::vector<Point> nominal;
  /// What a short search finds with so many bytes above the budget, without
  /// changes that are worth less than a tenth of it; nothing if there is no
  /// budget.
  struct Price {
    int64_t more = 0;
    int64_t time = 0;  ///< Of the step then, in nanoseconds.
    int64_t bound = 0; ///< By how much the bound falls, in nanoseconds.
    std::vector<Change> changes; ///< None, if that is no faster.
  };
  std::optional<Price> price;

  /// The fastest of the baselines that hold at most `budget`; null if none
  /// does.
  const Point *findBestBaseline(int64_t budget) const;
};

/// Of two decisions for one model: the kinds that there are, in their order.
std::vector<Explanation::Change> findChanges(const StepModel &model,
                                             const Decisions &before,
                                             const Decisions &after);

/// Of a gibibyte more than the budget, or of a tenth of it if that is less.
Explanation::Price findPrice(StepModel model, const Decisions &decisions,
                             const SearchOptions &options);

/// Explains decisions for a model that `check` accepts. `options`: of the
/// search, from which short ones go on.
Explanation explain(const StepModel &model, const Decisions &decisions,
                    SearchOptions options);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_EXPLANATION_H
