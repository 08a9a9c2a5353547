//===- Unhidden.h - Collectives that nothing runs beside --------*- C++ -*-===//
//
// B6: what a collective reads or writes takes memory from its launch to its
// wait, so that it runs beside no computation that leaves no room for it. A
// gather may run beside those from the last one without room for the unit to
// the first use, a reduction beside those from the last part of the gradient to
// the first one without room for it. How much of all of them computations can
// hide at best is what the earliest deadline first finds.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_UNHIDDEN_H
#define FSDP_LIB_PLANNER_UNHIDDEN_H

#include "BoundFacts.h"

#include <optional>

namespace fsdp::planner {

class Unhidden {
public:
  explicit Unhidden(const BoundFacts &facts);

  /// What is known of what is recomputed, and the bytes that it leaves at each
  /// computation; where it is not certain that one runs, as many as there may
  /// be.
  struct Case {
    /// Which of the nearest modules are recomputed whole; nothing, if any may.
    std::optional<BoundFacts::Set> whole;
    Recompute all; ///< What of all modules is.
    std::vector<int64_t> room;
  };
  /// Nothing, if there is no room for it.
  std::optional<Case> makeCase(const BoundFacts::Choice &choice,
                               std::optional<BoundFacts::Set> whole) const;

  /// Nanoseconds in which collectives run, and no computation. Of the last
  /// reduction and of what is all-reduced there is none in it.
  int64_t find(const Case &known) const { return find(known, middle, 0); }
  /// Of those after a cut that is not in the forward, as `boundAfter`.
  int64_t findAfter(const BoundFacts::Cut &cut, const Case &known) const {
    return find(known, cut.op, uint32_t(cut.op + 1));
  }
  bool isAfterForward(const BoundFacts::Cut &cut) const {
    return cut.op >= middle;
  }

private:
  /// A collective, and the computations [begin, end) beside which it may run.
  struct Window {
    int64_t work; ///< Picoseconds.
    uint32_t begin, end;
    int64_t bytes; ///< Of a unit that may be there already; else 0.
  };
  /// With so much of all modules recomputed for certain.
  struct State {
    std::vector<BoundFacts::Use> uses;
    std::vector<int64_t> inUse; ///< Bytes of units at a computation.
    std::array<std::vector<uint32_t>, numPhases> order; ///< Units, by use.
  };
  struct Block;

  bool isCertain(uint32_t op, Recompute all) const {
    return program.ops[op].onlyIf == nobody ||
           (all != Recompute::None && program.ops[op].recompute == all);
  }
  uint32_t getFirstCopy(uint32_t unit) const {
    return firstCopies[unit][size_t(Recompute::All)];
  }
  State makeState(Recompute all) const;
  int64_t find(const Case &known, size_t cut, uint32_t begin) const;
  int64_t find(const Case &known, size_t cut, uint32_t begin,
               size_t view) const;
  std::vector<Window> listGathers(const Case &known, size_t cut, uint32_t begin,
                                  size_t view) const;
  std::vector<Window> listReductions(const Case &known, uint32_t begin,
                                     size_t view) const;
  std::pair<uint32_t, int64_t> findEnd(uint32_t unit, uint32_t first,
                                       const Case &known) const;
  std::vector<Block> findBlocks(const std::vector<Window> &windows,
                                const Case &known, uint32_t begin) const;
  int64_t sum(std::vector<Window> windows, const Case &known, uint32_t begin,
              int64_t roomAtCut) const;
  /// Whether it never runs then.
  bool isOut(uint32_t op, const Case &known) const {
    return known.whole && nearestAt[op] != nobody &&
           (*known.whole)[nearestAt[op]] !=
               (program.ops[op].recompute == Recompute::All);
  }
  const State &getState(const Case &known) const {
    return states[size_t(known.all)];
  }

  const BoundFacts &facts;
  const Program &program;
  uint32_t middle = 0; ///< The last computation of the forward.
  std::array<State, numRecomputes> states;
  /// By unit: the first copies in its module's replays that read it.
  std::vector<std::array<uint32_t, numRecomputes>> firstCopies;
  /// By unit: if its module is recomputed, another one is read before it.
  std::vector<uint8_t> followsInModule;
  std::vector<int64_t> slowed; ///< Picoseconds beside collectives.
  /// Of a copy in one of the nearest modules: its number; else `nobody`.
  std::vector<uint32_t> nearestAt;
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_UNHIDDEN_H
