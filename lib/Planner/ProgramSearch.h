//===- ProgramSearch.h - Decisions of one program ---------------*- C++ -*-===//
//
// Given which units are resident, programs do not depend on each other. Each
// is searched over what is wanted of it: decisions whose launches and waits are
// upper limits, which `Evaluator::fit` makes exact.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_PROGRAMSEARCH_H
#define FSDP_LIB_PLANNER_PROGRAMSEARCH_H

#include "Layout.h"
#include "fsdp/Planner/Baselines.h"
#include "fsdp/Planner/Search.h"

#include <atomic>
#include <optional>
#include <random>
#include <utility>

namespace fsdp::planner {

/// Counts evaluations, of all programs.
class EvaluationMeter {
public:
  explicit EvaluationMeter(const SearchOptions &options)
      : options(options), limit(options.evaluations) {}

  bool isDone() const { return isStopped || count >= limit; }
  /// True if there was one more.
  bool spend() {
    if (isDone())
      return false;
    spend(1);
    return true;
  }
  void spend(int64_t evaluations) {
    int64_t before = std::exchange(count, count + evaluations);
    if (before / reportEvery != count / reportEvery)
      report();
  }
  void report();

  const SearchOptions &options;
  int64_t count = 0, limit; ///< The latter for now.
  const char *stage = "";
  std::function<int64_t()> findTime; ///< Of the best step, or 0.
  std::atomic<bool> isStopped = false;

private:
  static constexpr int64_t reportEvery = 1024;
};

class ProgramSearch {
public:
  ProgramSearch(const StepModel &model, size_t program,
                std::vector<uint8_t> resident, EvaluationMeter &meter);

  /// Tries decisions as they are, and with their places as limits.
  void start(const ProgramDecisions &decisions);
  /// Tries decisions that a search has found, of this program or one like it.
  void adopt(const ProgramDecisions &decisions);
  /// Tries them with the fewest recomputed modules that fit: some more, or some
  /// of theirs.
  void startNear(const ProgramDecisions &decisions);
  /// All modules recomputed, none, or some, and nothing ahead.
  void startLean();
  void searchSizes();
  void searchCounts();
  /// Few enough units and modules that all there are may be searched.
  bool isSmall() const {
    return model.units.size() <= mostExactUnits &&
           modules.size() <= mostExactUnits;
  }
  /// Of a small program; true if nothing was left out: see ExactSearch.cpp.
  bool searchAll();
  void searchNearby(int64_t evaluations, uint64_t seed);
  /// From here on, what is slower than a baseline in one of the other scenarios
  /// is penalized. True if the best is, which there must be.
  bool penalize(const std::vector<Baseline> &baselines);
  /// Launches later, waits earlier, and recomputes less, as far as that costs
  /// no time.
  void trim();

  bool isFeasible() const { return best.has_value(); }
  /// The predicted time of the fastest start that is feasible, above which no
  /// answer is taken.
  int64_t getSlowest() const { return slowest; }
  /// From here on, no answer is slower as predicted than the one that there is.
  void keepTime() { slowest = std::min(slowest, best->outcome.time); }
  /// Exact; the leanest that is known, if none is feasible.
  const ProgramDecisions &getDecisions() const {
    return best ? best->exact : leanest;
  }
  const Outcome &getOutcome() const {
    return best ? best->outcome : leanestOutcome;
  }

private:
  enum class Placement { First, Last, Even };
  /// How many modules are recomputed: none to all of them; or what is cheap of
  /// none to all, and then all of none to all.
  enum class Ladder { Whole, Cheap };
  struct Recomputed {
    Ladder ladder;
    Placement placement;
  };
  struct Steps {
    using Lists = std::array<std::vector<std::pair<uint32_t, Recompute>>, 2>;
    Lists less, more;
  };
  struct Sizes {
    uint32_t forward, backward, reduction;
    bool growing; ///< From the ends of the program.
  };
  struct Granularity {
    int64_t time;
    Sizes sizes;
    uint16_t wait;
  };
  /// Decisions that keep to the budget.
  struct Known {
    Outcome outcome;
    int64_t penalty; ///< Nanoseconds.
    ProgramDecisions exact, wanted;

    int64_t getCost() const { return outcome.meanTime + penalty; }
  };
  /// Numbers that are the same everywhere.
  struct Random {
    std::mt19937_64 engine;
    size_t get(size_t count) { return size_t(engine() % count); }
  };

  /// Few evaluations: a coarse grid leaves some for what comes after it.
  bool isCoarse() const { return meter.options.evaluations < 20000; }
  bool isWithin(const Outcome &outcome) const {
    return outcome.peakBytes <= model.budget;
  }
  /// Fits what is wanted and remembers it if it is the best. Nothing if there
  /// are no evaluations left, or it does not fit.
  std::optional<int64_t> consider(const ProgramDecisions &wanted);
  /// The same, whatever is left. Nothing, too, if it takes longer than
  /// `mostTime`, as predicted.
  std::optional<int64_t>
  fit(const ProgramDecisions &wanted,
      int64_t mostTime = std::numeric_limits<int64_t>::max());
  void remember(const Outcome &outcome, const ProgramDecisions &exact,
                const ProgramDecisions &wanted);
  int64_t findPenalty(const ProgramDecisions &exact);
  static void setLimits(ProgramDecisions &decisions, uint16_t ahead,
                        uint16_t wait);
  static void clearJoins(ProgramDecisions &decisions);
  void setSizes(ProgramDecisions &decisions, Sizes sizes);
  /// In how many ways modules may be recomputed or not; these by number.
  size_t countRecomputes() const;
  std::vector<Recompute> getRecompute(size_t number) const;
  std::vector<Ladder> getLadders() const;
  Steps listSteps(const ProgramDecisions &decisions) const;
  void considerNear(const ProgramDecisions &decisions);
  size_t countSteps(Ladder ladder) const {
    return modules.size() +
           (ladder == Ladder::Cheap ? program.cheap.size() : 0);
  }
  void setRecomputed(ProgramDecisions &decisions, size_t steps,
                     Recomputed how) const;
  /// So many units stay gathered, and `rest` is kept of the others.
  void setKept(ProgramDecisions &decisions, size_t count, Placement placement,
               Keep rest) const;
  /// Of what a unit cannot have a piece of, nothing is kept.
  Keep limitKeep(uint32_t unit, Keep keep) const {
    return keep == Keep::Piece && !program.traffic[unit].piece.bytes
               ? Keep::None
               : keep;
  }
  Keep pickOther(uint32_t unit, Keep keep, Random &random) const;
  static bool isChosen(size_t i, size_t count, size_t all, Placement placement);
  /// The time with the fewest recomputed modules that fit, of some sizes.
  std::optional<int64_t> considerFewest(ProgramDecisions &wanted, Sizes sizes,
                                        Recomputed how, size_t more);
  Ladder findLadder(ProgramDecisions &wanted, const Granularity &own);
  Keep findRest(ProgramDecisions &wanted, const Granularity &own,
                Ladder ladder);
  void walk(int64_t first, int64_t end, int64_t all, bool counts,
            Random &random);
  void move(ProgramDecisions &wanted, Random &random) const;
  void copyCalls(ProgramDecisions &wanted, uint32_t module, size_t count,
                 bool isAfter) const;
  void setRecompute(ProgramDecisions &wanted, uint32_t module,
                    Recompute recompute) const;
  StepModel fixRecompute(const std::vector<Recompute> &recompute) const;
  void searchCalls(ProgramDecisions &wanted);
  size_t countKeeps() const;

  const StepModel &model;
  const Program &program;
  size_t number;
  std::vector<uint8_t> resident;
  EvaluationMeter &meter;
  Evaluator evaluator;
  std::optional<Evaluator> onOthers; ///< In the other scenarios: if penalized.
  Layout layout;                     ///< For the order of uses.
  const std::vector<uint32_t> &modules; ///< That may be recomputed.
  std::vector<uint8_t> numStates;       ///< By module: 1, 2, or with Cheap 3.
  std::vector<uint32_t> mayKeep;        ///< Units of both phases, by first use.
  std::vector<std::vector<uint32_t>> unitsOf; ///< These, by module.

  int64_t slowest = std::numeric_limits<int64_t>::max();
  std::optional<Known> best;
  ProgramDecisions leanest, scratch;
  Outcome leanestOutcome;
  std::vector<int64_t> rivals; ///< The fastest baselines, by other scenario.
  std::vector<Granularity> granularities; ///< The best, by time.
  /// By ladder, the last numbers of steps that were the fewest that fit.
  std::array<size_t, 2> fewestSteps = {0, 0};
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_PROGRAMSEARCH_H
