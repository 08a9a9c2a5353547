//===- Layout.h - Where everything of a program stands ----------*- C++ -*-===//
//
// A program under decisions: its computations in the order in which they run,
// and for each collective the place of its launch and of its wait. Place p is
// in front of computation p; the last place is the end.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_LAYOUT_H
#define FSDP_LIB_PLANNER_LAYOUT_H

#include "fsdp/Planner/Decisions.h"

namespace fsdp::planner {

/// Of one call; picoseconds in, whole nanoseconds out.
inline int64_t getDuration(const CollectiveCost &cost) {
  return (cost.latency + cost.transfer + 500) / 1000;
}

class Layout {
public:
  Layout(const StepModel &model, const Program &program);

  /// A computation as it runs: memory that it takes before and frees after.
  struct Step {
    int64_t duration, takes, transient, frees;
  };
  /// Units that are gathered, or reduced, in one call.
  struct Call {
    uint32_t begin, end; ///< Of the units in its list.
    uint32_t slot;       ///< Of a gather's first use; of a reduction's launch.
    uint32_t launch;     ///< Place.
    uint32_t wait;       ///< Place; of a gather, its first use.
    uint32_t bound;      ///< Of a gather's launch below, of a wait above.
    Phase phase;
    int64_t bytes; ///< Alive while it is in flight, and no longer.
    int64_t duration;
    int64_t allReduce; ///< Duration of what follows a reduction.
  };
  /// The places of the computations that use a unit, or `nobody`.
  struct Use {
    std::array<uint32_t, numPhases> first = {nobody, nobody};
    std::array<uint32_t, numPhases> last = {nobody, nobody};
    uint32_t gradient = nobody; ///< The first part of it.
    uint32_t update = nobody;
  };

  /// Everything as it is decided; or, `lean`, all launches and waits where
  /// memory is alive for the shortest time.
  void build(const ProgramDecisions &decisions,
             const std::vector<uint8_t> &resident, bool lean = false);

  /// Computes `boundary` and `inside`. Returns the most of both.
  int64_t findMemory();

  /// The place of a slot; the end, of what is past all of them.
  uint32_t getPlace(size_t slot) const {
    return slot < slots.size() ? slots[slot] : uint32_t(steps.size());
  }

  const StepModel &model;
  const Program &program;
  std::vector<Step> steps;
  std::vector<uint32_t> slots;           ///< Their places, ascending.
  std::vector<Call> gathers, reductions; ///< In the order of issue.
  std::vector<uint32_t> gatherUnits, reductionUnits;
  std::vector<Use> uses; ///< By unit.
  /// Bytes alive at each place when its launches have taken theirs, and during
  /// each computation.
  std::vector<int64_t> boundary, inside;

private:
  void emit(const ComputeOp &op, uint32_t index, bool isReplay);
  void addUse(uint32_t unit, Phase phase, uint32_t place);
  void addReduction(uint32_t unit, uint32_t place);
  void placeCalls(bool lean);
  bool isGathered(uint32_t unit, Phase phase) const;
  /// The computation after which what was gathered in a phase ends; `nobody`
  /// if it stays.
  uint32_t getEnd(uint32_t unit, Phase phase) const;
  bool isResident(uint32_t unit) const {
    return program.role != Program::Role::Whole && (*resident)[unit];
  }
  bool startsResident(uint32_t unit) const {
    return program.role != Program::Role::First && isResident(unit);
  }
  void addSlot(uint32_t place) {
    if (slots.empty() || slots.back() != place)
      slots.push_back(place);
  }

  // What follows from the program alone, by operation.
  std::vector<uint32_t> forwardGroup, backwardBegin, backwardEnd;
  std::vector<uint8_t> completes; ///< A gradient.

  /// What was reduced last has been read: nothing joins its call.
  bool isClosed = false;
  const ProgramDecisions *decisions = nullptr;
  const std::vector<uint8_t> *resident = nullptr;
  std::vector<int64_t> atPlace, afterWaits;
};

/// Runs a layout; keeps its memory from one to the next.
class Machine {
public:
  /// The time at which all is done.
  int64_t run(const Layout &layout);

private:
  /// Collectives that are started one after the other, once released.
  struct Stream {
    uint32_t released = 0, done = 0;
    bool isActive = false;
    int64_t end = 0;  ///< Of the active one, unless others start or end.
    int64_t work = 0; ///< Parts left of it, where links are shared.
    std::vector<int64_t> durations;
  };
  enum { Gather, Reduce, AllReduce, numStreams };
  /// How many calls are done before the compute stream goes on: of gathers; of
  /// reductions, in front of launches and behind them.
  struct Waits {
    uint32_t gathers, early, late;
  };

  void start(const Layout &layout);
  void moveTo(int64_t time);
  void update();
  void waitFor(const Stream &stream, uint32_t count);
  void compute(int64_t duration);

  Stream streams[numStreams];
  std::vector<Waits> waits;
  bool sharesLink = false;
  uint32_t numActive = 0;
  int64_t contention = 0, now = 0, nextEnd = 0;
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_LAYOUT_H
