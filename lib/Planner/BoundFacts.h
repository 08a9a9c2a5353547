//===- BoundFacts.h - What bounds are computed from -------------*- C++ -*-===//
//
// Sums over a program before any decision; computations by their place in it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_BOUNDFACTS_H
#define FSDP_LIB_PLANNER_BOUNDFACTS_H

#include "fsdp/Planner/StepModel.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <optional>
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
  static constexpr size_t mostNearest = 4;
  using Set = std::bitset<mostNearest>; ///< Of `nearest`.
  /// What collectives are summed up of: the links in a node or those between
  /// nodes, of which each collective takes its part; each stream, on which they
  /// run one after the other; or all of them, where those that do not take
  /// turns fill one link.
  static constexpr size_t byStream = numLinks, together = numLinks + 1,
                          numViews = numLinks + 2;
  using ByView = std::array<int64_t, numViews>;
  struct Totals { ///< Picoseconds.
    int64_t gathers = 0, reductions = 0, allReduces = 0;
  };
  /// Units to gather. What is there takes all of its room.
  struct Gathers {
    /// A unit, and what it would take to gather it; or a piece that may be kept
    /// of it and what that saves, and then what it lacks.
    struct Part {
      int64_t bytes, transfer;
    };
    std::vector<Part> parts; ///< Those first on which room is best spent.
    /// By number, of so many: the fewest bytes, and the longest transfers.
    std::vector<int64_t> bytes, transfers;
    int64_t latency; ///< Of the fastest call.
  };
  /// A computation at which memory is looked at.
  struct Cut {
    size_t op = 0;
    int64_t inUse = 0; ///< Bytes of units in use.
    /// Nanoseconds in which fixed calls are waited for, up to it and after it.
    int64_t idleBefore = 0, idleAfter = 0;
    /// Units that are gathered before, and after it unless they are there.
    std::array<Gathers, numViews> before, after;
    /// Reductions of gradients that it completes, or a later one does, and what
    /// follows these.
    std::array<Totals, numViews> reductions;
    bool hasReductions = false;
    /// Those of `after` in the order in which room saves most calls; none,
    /// where some of them are used in the forward.
    std::vector<uint32_t> byCalls;
  };

  // Picoseconds of collectives that nothing avoids, in as few calls as memory
  // allows.
  int64_t sumGathers(const Choice &choice, size_t view) const;
  CollectiveCost getGather(const Traffic &own, size_t view) const {
    return weigh(own.gather, Stream::Gather, own.gatherGroup, view);
  }
  CollectiveCost getPiece(const Traffic &own, size_t view) const {
    return weigh(own.piece.gather, Stream::Gather, own.piece.group, view);
  }
  CollectiveCost getReduction(const Traffic &own, size_t view) const {
    return weigh(own.reduction, Stream::Reduce, own.reduceGroup, view);
  }
  /// What the backward gathers may be a piece that was kept.
  CollectiveCost getLeastGather(uint32_t unit, size_t view) const;
  /// Of units of which as many as fit into `room` bytes are there already, in
  /// so many calls.
  int64_t sumGathers(const Gathers &gathers, int64_t room, int64_t calls) const;
  /// B5: the fewest calls of the forward's gathers up to a computation; of
  /// gathers after a cut with so many bytes of room; of reductions of gradients
  /// that are complete at a computation or later. At least 1.
  int64_t countGathers(size_t op) const;
  int64_t countGathers(const Cut &cut, int64_t room) const;
  int64_t countReductions(size_t op) const;
  /// Of the totals by view: nanoseconds in which at least one of all these
  /// runs.
  template <typename GetTotals> int64_t combine(GetTotals &&getTotals) const {
    int64_t most = 0;
    for (size_t view : views)
      most = std::max(most, join(getTotals(view), view));
    return most;
  }
  int64_t toNanoseconds(int64_t picoseconds) const;
  int64_t scaleByPhi(int64_t time) const { return time * phi[0] / phi[1]; }

  /// Bytes beside those of units in use that nothing avoids, at a computation
  /// that always runs.
  int64_t getMandatory(size_t op, const Choice &choice) const;
  /// The same, if of `nearest` these are recomputed whole, and no others.
  int64_t getMandatory(size_t op, const Choice &choice, Set whole) const;
  /// There are such modules.
  bool isPossible(const Choice &choice, Set whole) const;
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
  std::vector<size_t> views; ///< Those that say more than others.
  int64_t room;              ///< M.
  bool mayStartGathered; ///< Units may be there from the micro-batch before.
  std::vector<int64_t> compute;   ///< C[..i), by i.
  std::vector<Choice> allChoices; ///< By their replays.
  std::vector<Choice> choices;    ///< Those of them that fit.
  /// A few modules, which the backward computes again first: whether all
  /// of one is recomputed decides what collectives there have to run beside.
  std::vector<uint32_t> nearest;
  std::vector<int64_t> replaysFrom; ///< The most at an operation or later.
  std::vector<Use> uses;
  std::vector<uint32_t> gathered;          ///< For the forward, by first use.
  std::array<Gathers, numViews> byWorth;   ///< The same.
  std::vector<uint32_t> reduced;           ///< By completion.
  std::array<Totals, numViews> reductions; ///< Of all.
  std::vector<Cut> cuts;
  std::vector<int64_t> leastMandatory; ///< Recomputed as is best for a place.
  int64_t head = 0, tail = 0;          ///< h and t, nanoseconds.
  int64_t idle = 0; ///< In which fixed calls are waited for, such as copies.
  int64_t lastUpdate = 0;  ///< C from the update of the last gradient on.
  bool endsReduced = true; ///< No unit is first used after the last gradient.
  bool isExact; ///< All costs are whole nanoseconds: nothing is rounded.

private:
  /// By how much is recomputed of a module, the module, and computation: the
  /// most bytes that are not there then, less those that are there only then.
  using Savings = std::array<std::vector<std::vector<int64_t>>, numRecomputes>;
  using Ends = std::array<uint32_t, numRecomputes>;
  /// The most that so many modules save at a place, by number: if all of each
  /// is recomputed, if what is cheap is, and if the better of both is.
  struct Sums {
    std::vector<int64_t> byAll, byCheap, byAny;

    /// No more than if each is recomputed as is best here, nor than those that
    /// save most in either way, even if these are the same.
    int64_t get(size_t all, size_t cheap) const {
      return std::min(byAll[all] + byCheap[std::min(cheap, byCheap.size() - 1)],
                      byAny[std::min(all + cheap, byAny.size() - 1)]);
    }
  };
  struct Saved {
    Sums all, others; ///< Of all modules, and beside `nearest`.
    std::vector<int64_t> whole, cheap; ///< Of `nearest`.
  };
  int64_t getDurationAlone(const CollectiveCost &cost) const;
  int64_t slow(int64_t time) const { ///< All of it beside collectives.
    return time + (time * model.contention + 1023) / 1024;
  }
  int64_t findIdle(size_t begin, size_t end) const;
  bool isWorthMore(uint32_t a, uint32_t b) const;
  /// The part of a link that a collective takes, as if it were all of it.
  CollectiveCost weigh(const CollectiveCost &cost, Stream stream,
                       uint32_t group, size_t view) const;
  Totals sumReductionsFrom(size_t op, size_t view) const;
  int64_t join(const Totals &totals, size_t view) const;
  /// What collectives of a stream take of links, each with its group.
  using Ways = std::vector<std::pair<LinkUse, uint32_t>>;
  bool areTogether(const std::array<Ways, numCollectiveStreams> &ways) const;
  void findViews();
  /// `cut`: the place where units may be there, or pieces of them.
  Gathers makeGathers(const std::vector<uint32_t> &units, size_t view,
                      std::optional<size_t> cut = {}) const;
  void findNearest();
  void findUses();
  void findMemory();
  void findExposed();
  void findReplays();
  void findChoices();
  void findCalls();
  Savings findSavings() const;
  /// With what is best for the place.
  int64_t getMost(const Savings &savings, uint32_t module, size_t op) const;
  void findCuts();
  Saved findSaved(size_t op, const Savings &savings) const;
  Cut makeCut(size_t op) const;
  /// The last one that reads it for a module, by what is recomputed of that.
  Ends getEnds(const Life &life, uint32_t module) const;
  /// Where memory ends if nothing is recomputed; and at the least, if so much
  /// of one module is.
  uint32_t getEnd(const Life &life) const;
  uint32_t getLeastEnd(const Life &life, uint32_t module,
                       Recompute recompute) const;

  int64_t phi[2];
  std::vector<uint8_t> isCheap; ///< By module: true of `Program::cheap`.
  std::vector<int64_t> mandatory,
      inUse;                           ///< By computation, nothing recomputed.
  std::vector<Saved> saved;            ///< Those that differ.
  std::vector<uint32_t> savedAt;       ///< Of a computation, in `saved`.
  std::vector<int64_t> gatherCalls;    ///< Of `gathered` up to each.
  std::vector<int64_t> reductionCalls; ///< Of `reduced` from each.
  std::vector<double> shares; ///< By unit: what it fills of a backward call.
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_BOUNDFACTS_H
