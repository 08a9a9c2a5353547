//===- Search.h - Decisions that are fast within a budget -------*- C++ -*-===//
//
// Finds decisions for a step: those of every baseline first, then a grid of
// call sizes, then numbers of recomputed modules and kept units, then a local
// search over all of them at once; and all there are, where a program has few
// units. So an answer is never worse than a baseline, and can be had at any
// time. It is a function of the model and the options: evaluations are counted,
// not seconds.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_SEARCH_H
#define FSDP_PLANNER_SEARCH_H

#include "fsdp/Planner/Bounds.h"
#include "fsdp/Planner/Evaluator.h"

#include <functional>

namespace fsdp::planner {

/// Programs of so many units are searched exhaustively.
constexpr size_t mostExactUnits = 5;

/// What a search does, in this order. Each may be left out, to see what it is
/// worth (benchmarks/SearchAblation.cpp).
enum SearchStage : unsigned {
  StartsStage = 1,  ///< The baselines; what the caller gives is always tried.
  SizesStage = 2,   ///< A grid of call sizes.
  CountsStage = 4,  ///< Numbers of kept units, for the best of these.
  AllStage = 8,     ///< All there are, where a program has few units.
  NearbyStage = 16, ///< Small changes of the best.
  TrimStage = 32,   ///< What of the answer wins no time is left out.
  BoundStage = 64   ///< What no answer can beat.
};
constexpr unsigned allSearchStages = 127;

struct SearchProgress {
  const char *stage = "";
  int64_t evaluations = 0;
  int64_t time = 0; ///< Of the best step so far; 0 if there is none.
};

struct SearchOptions {
  /// The most, of programs, beside the starts; a quarter more for `others`.
  int64_t evaluations = 20000;
  uint64_t seed = 1;
  unsigned stages = allSearchStages; ///< Of `SearchStage`.
  std::vector<Decisions> starts;     ///< Beside the baselines.
  /// What it minimizes is the mean time of these; the first is the prediction,
  /// and no other is faster.
  std::vector<Scenario> scenarios = {Scenario()};
  /// Where an answer is slower than the fastest baseline is there, it is
  /// searched on for one that is not.
  std::vector<Scenario> others;
  /// Called now and then; the search ends when it returns false.
  std::function<bool(const SearchProgress &)> progress;
};

/// `robust`: on slower machines as well, not for the prediction alone.
SearchOptions makeSearchOptions(int64_t evaluations, bool robust);

/// Goes on from decisions, for another budget or other scenarios: the same
/// search without a grid and a bound, of a quarter of the evaluations.
SearchOptions makeShort(SearchOptions options, Decisions start);

struct SearchAnswer {
  bool isFeasible = false;
  Decisions decisions; ///< If feasible; otherwise the leanest that were found.
  Outcome outcome;     ///< Of these. Its peak is the smallest known budget.
  std::optional<Bound> bound;
  int64_t evaluations = 0;

  /// By how much it is above the bound: 0.01 is one percent.
  double getGap() const {
    return bound && bound->time ? double(outcome.time) / double(bound->time) - 1
                                : 0;
  }
};

/// Searches a model that `check` accepts.
SearchAnswer search(const StepModel &model, const SearchOptions &options = {});

} // namespace fsdp::planner

#endif // FSDP_PLANNER_SEARCH_H
