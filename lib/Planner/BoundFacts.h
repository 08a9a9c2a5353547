//===- BoundFacts.h - What bounds are computed from -------------*- C++ -*-===//
//
// Sums over a program before any decision; computations by their place in it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_BOUNDFACTS_H
#define FSDP_LIB_PLANNER_BOUNDFACTS_H

#include "fsdp/Planner/StepModel.h"

#include <array>
#include <utility>

namespace fsdp::planner {

struct BoundFacts {
  BoundFacts(const StepModel &model, const Program &program);

  /// The computations that use a unit, or `nobody`.
  struct Use {
    uint32_t first[numPhases] = {nobody, nobody};
    uint32_t last[numPhases] = {nobody, nobody};
    uint32_t gradient = nobody, complete = nobody, update = nobody;
  };
  /// Of how many modules all is recomputed, and of how many what is cheap; and
  /// what that takes at least, in nanoseconds.
  struct Choice {
    size_t all, cheap;
    int64_t replays;
  };
  /// A computation at which memory is looked at.
  struct Cut {
    size_t op;
    int64_t inUse, mandatory; ///< Bytes, of units in use; see `getMandatory`.
    /// Nanoseconds in which fixed calls are waited for, up to it and after it.
    int64_t idleBefore = 0, idleAfter = 0;
    /// The most that so many modules save, by number: if all of each is
    /// recomputed, if what is cheap is, and if the better of both is.
    std::vector<int64_t> savedByAll, savedByCheap, savedByAny;
    /// Units that are gathered before, and after it unless they are there; the
    /// others in the order in which room is best spent on them.
    std::vector<uint32_t> before, after;
    /// Those of `after` in the order in which room saves most calls; none,
    /// where some of them are used in the forward.
    std::vector<uint32_t> byCalls;
  };

  // Picoseconds of collectives that nothing avoids, in as few calls as memory
  // allows.
  int64_t sumGathers(const Choice &choice) const;
  int64_t sumReductions() const;
  int64_t sumAllReduces() const;
  /// Of gradients that are complete at a computation or later: their
  /// reductions, and what follows these.
  std::pair<int64_t, int64_t> sumReductionsFrom(size_t op) const;
  /// Of units of which as many as fit into `room` bytes are there already, in
  /// so many calls.
  int64_t sumGathers(const std::vector<uint32_t> &units, int64_t room,
                     int64_t calls) const;
  /// B5: the fewest calls of the forward's gathers up to a computation; of
  /// gathers after a cut with so many bytes of room; of reductions of gradients
  /// that are complete at a computation or later. At least 1.
  int64_t countGathers(size_t op) const;
  int64_t countGathers(const Cut &cut, int64_t room) const;
  int64_t countReductions(size_t op) const;
  /// Of gathers, reductions and what follows them: nanoseconds in which at
  /// least one of them runs.
  int64_t combine(int64_t gathers, int64_t reductions,
                  int64_t allReduces) const;
  int64_t toNanoseconds(int64_t picoseconds) const;
  int64_t scaleByPhi(int64_t time) const { return time * phi[0] / phi[1]; }

  /// Bytes beside those of units in use that nothing avoids.
  int64_t getMandatory(const Cut &cut, const Choice &choice) const;
  /// What memory has to hold in any case.
  int64_t findLeastRoom(const Choice &choice) const;
  /// The most of K(gathers up to a) - C[..first use of a], up to `op`.
  int64_t findHead(size_t op) const;
  /// The most of C[begin..gradient of z] + K(reductions from z) + C[update..],
  /// of gradients that are complete at or after `begin`, with so many
  /// nanoseconds of replays after it.
  int64_t findTail(size_t begin, int64_t replayed) const;
  const StepModel &model;
  const Program &program;
  int64_t room;          ///< M.
  bool mayStartGathered; ///< Units may be there from the micro-batch before.
  std::vector<int64_t> compute;   ///< C[..i), by i.
  std::vector<Choice> allChoices; ///< By their replays.
  /// Of those that fit, without what takes no less and needs no less than
  /// another.
  std::vector<Choice> choices;
  bool isAllReplayed = false;       ///< All of all modules is, in what fits.
  std::vector<int64_t> replaysFrom; ///< The most at an operation or later.
  std::vector<Use> uses;
  std::vector<uint32_t> gathered; ///< For the forward, by first use.
  /// The same in the order in which room is best spent on them.
  std::vector<uint32_t> byWorth;
  std::vector<uint32_t> reduced; ///< By completion.
  std::vector<Cut> cuts;
  std::vector<int64_t> leastMandatory; ///< Recomputed as is best for a place.
  int64_t head = 0, tail = 0;          ///< h and t, nanoseconds.
  int64_t idle = 0; ///< In which fixed calls are waited for, such as copies.
  /// Nanoseconds in which collectives run, and no computation can: there is no
  /// memory for both. Without the last reduction.
  int64_t unhidden = 0;
  int64_t lastUpdate = 0;  ///< C from the update of the last gradient on.
  bool endsReduced = true; ///< No unit is first used after the last gradient.

private:
  /// By how much is recomputed of a module, the module, and computation: the
  /// most bytes that are not there then, less those that are there only then.
  using Savings = std::array<std::vector<std::vector<int64_t>>, numRecomputes>;
  using Ends = std::array<uint32_t, numRecomputes>;
  int64_t getDurationAlone(const CollectiveCost &cost) const;
  int64_t slow(int64_t time) const { ///< All of it beside collectives.
    return time + (time * model.contention + 1023) / 1024;
  }
  int64_t findIdle(size_t begin, size_t end) const;
  bool isWorthMore(uint32_t a, uint32_t b) const;
  void findUses();
  void findMemory();
  void findExposed();
  void findUnhidden();
  void findReplays();
  void findChoices();
  void findCalls();
  Savings findSavings() const;
  /// With what is best for the place.
  int64_t getMost(const Savings &savings, uint32_t module, size_t op) const;
  void findCuts(const Savings &savings);
  void findSaved(Cut &cut, const Savings &savings) const;
  Cut makeCut(size_t op, const Savings &savings) const;
  /// The last one that reads it for a module, by what is recomputed of that.
  Ends getEnds(const Life &life, uint32_t module) const;
  /// Where memory ends if nothing is recomputed; and at the least, if so much
  /// of one module is.
  uint32_t getEnd(const Life &life) const;
  uint32_t getLeastEnd(const Life &life, uint32_t module,
                       Recompute recompute) const;

  int64_t phi[2];
  std::vector<uint8_t> isCheap; ///< By module: true of `Program::cheap`.
  bool isExact; ///< All costs are whole nanoseconds: nothing is rounded.
  std::vector<int64_t> mandatory,
      inUse;                           ///< By computation, nothing recomputed.
  std::vector<int64_t> gatherCalls;    ///< Of `gathered` up to each.
  std::vector<int64_t> reductionCalls; ///< Of `reduced` from each.
  std::vector<double> shares; ///< By unit: what it fills of a backward call.
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_BOUNDFACTS_H
