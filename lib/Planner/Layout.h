//===- Layout.h - Where everything of a program stands ----------*- C++ -*-===//
//
// A program under decisions: its computations in the order in which they run,
// and for each collective the place of its launch and of its wait. Places are
// those of Order.h.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_LAYOUT_H
#define FSDP_LIB_PLANNER_LAYOUT_H

#include "Order.h"
#include "Streams.h"
#include "fsdp/Planner/Decisions.h"

#include <algorithm>
#include <list>

namespace fsdp::planner {

class Layout {
public:
  Layout(const StepModel &model, const Program &program,
         const std::vector<Scenario> &scenarios = {});

  /// Some launches may be known to be done before the wait for them.
  bool mayEndEarly() const { return endsEarly; }

  /// Where the compute stream knows that a launch is done, perhaps before its
  /// wait: a place, and whether after the launches there.
  struct End {
    uint32_t place;
    bool isLate;

    bool operator<(const End &other) const {
      return place != other.place ? place < other.place : isLate < other.isLate;
    }
  };
  /// Units that are gathered, or reduced, in one call.
  struct Call {
    uint32_t begin, end; ///< Of the units in its list.
    uint32_t slot;       ///< Of a gather's first use; of a reduction's launch.
    uint32_t launch;     ///< Place.
    uint32_t wait;       ///< Place; of a gather, its first use.
    uint32_t bound;      ///< Of a gather's launch below, of a wait above.
    Phase phase;
    bool isOfPieces; ///< Of a gather: of what ranks have kept.
    int64_t bytes;   ///< Alive while it is in flight, and no longer.
    /// Of what it launches on each stream; no later than its wait.
    std::array<End, numStreams> ends;
  };

  /// Everything as it is decided; or, `lean`, all launches and waits where
  /// memory is alive for the shortest time.
  void build(const ProgramDecisions &decisions,
             const std::vector<uint8_t> &resident, bool lean = false);

  /// How many calls somebody has issued.
  struct Issued {
    size_t gathers = 0, reductions = 0;
  };
  /// Issues what is launched up to a place, in the order of issue: at one
  /// place, reductions come first.
  template <typename Self, typename Reduce, typename Gather>
  static void issueUpTo(Self &layout, uint32_t place, Issued &issued,
                        Reduce &&reduce, Gather &&gather) {
    auto getNext = [](const std::vector<Call> &calls, size_t next) {
      return next != calls.size() ? calls[next].launch : nobody;
    };
    for (;;) {
      uint32_t gatherAt = getNext(layout.gathers, issued.gathers),
               reductionAt = getNext(layout.reductions, issued.reductions);
      if (std::min(gatherAt, reductionAt) > place)
        return;
      if (reductionAt <= gatherAt)
        reduce(layout.reductions[issued.reductions++]);
      else
        gather(layout.gathers[issued.gathers++]);
    }
  }

  /// Finds where calls have ended, once all is placed: see Ends.cpp.
  void findEnds();
  /// Computes `launching`, `boundary` and `inside`. Returns the most of them.
  int64_t findMemory();
  int64_t findMost() const;

  const CollectiveCost &getGatherCost(const Call &call, uint32_t unit) const {
    const Traffic &own = program.traffic[unit];
    return call.isOfPieces ? own.piece.gather : own.gather;
  }
  /// Of what is recomputed.
  const Order &getOrder() const { return orders.front(); }
  /// A unit of which a piece is kept, at the end of a stretch.
  struct Kept {
    uint32_t stretch, unit;
  };
  const std::vector<Kept> &getPieces() const { return pieces; }
  /// By scenario.
  const std::vector<Times> &getTimes() const { return maker.times; }

  const StepModel &model;
  const Program &program;
  std::vector<Call> gathers, reductions; ///< In the order of issue.
  std::vector<uint32_t> gatherUnits, reductionUnits;
  /// Bytes alive at each place: when its reductions have taken theirs, when its
  /// gathers have as well, and during the stretch.
  std::vector<int64_t> launching, boundary, inside;

private:
  void findOrder();
  void addGather(const Order::FirstUse &use);
  void addReduction(const Order::Completion &completion);
  void placeGathers(bool lean);
  void placeReductions(bool lean);
  void addChanges();
  /// What a gather sends, if not what lies there in any case.
  int64_t getSentBytes(const Call &call, uint32_t unit) const {
    return call.isOfPieces ? 0 : program.traffic[unit].sentBytes;
  }
  /// What a gather takes to the end of the unit: what stays has its memory.
  int64_t getGatheredBytes(uint32_t unit) const {
    return isResident(unit) ? 0 : program.traffic[unit].gatheredBytes;
  }
  /// The stretch after which what was gathered in a phase ends.
  uint32_t getEnd(uint32_t unit, Phase phase) const;
  bool isKept(uint32_t unit) const {
    return decisions->units[unit].keep == Keep::All ||
           model.units[unit].staysGathered || isResident(unit);
  }
  bool isResident(uint32_t unit) const {
    return program.role != Program::Role::Whole && (*resident)[unit] &&
           model.units[unit].residentBytes;
  }
  bool startsResident(uint32_t unit) const {
    return program.role != Program::Role::First && isResident(unit);
  }

  bool endsEarly;
  std::vector<Kept> pieces; ///< In their order.
  OrderMaker maker;
  std::list<Order> orders; ///< The latest first.
  const ProgramDecisions *decisions = nullptr;
  const std::vector<uint8_t> *resident = nullptr;
  /// What happens at a place, in this order; bytes.
  struct Change {
    int64_t keeps = 0;   ///< Taken by the stretch before it, at its end.
    int64_t frees = 0;   ///< What ends there.
    int64_t reduces = 0; ///< Taken by launches of reductions.
    int64_t drops = 0;   ///< Freed by these: gradients that they have cast.
    int64_t gathers = 0; ///< Taken by launches of gathers.
    int64_t awaits = 0;  ///< Freed by waits that follow the launches.
    int64_t begins = 0;  ///< Taken by the stretch: gradients.
  };
  std::vector<Change> changes;
};

/// Runs a layout; keeps its memory from one to the next.
class Machine {
public:
  /// The time at which all is done, in one of the scenarios of the layout.
  int64_t run(const Layout &layout, size_t scenario);

private:
  using OwnStreams = Streams<numStreams>;
  using Counts = OwnStreams::Counts;
  /// How many launches are done before the compute stream goes on, in front of
  /// the launches of a place and after them.
  struct Waits {
    Counts early, late;
  };

  int64_t sum(const Layout &layout,
              const std::vector<int64_t> &durations) const;
  void start(const Layout &layout);
  /// Queues a launch; returns how many its stream has then. `place`: twice that
  /// of the layout, and one more if a computation launches it.
  uint32_t issue(Stream stream, int64_t duration, uint64_t place,
                 uint32_t group, Counts needs);
  uint32_t issueCopies(const Layout::Call &call,
                       const std::vector<uint32_t> &units,
                       const std::vector<Traffic> &traffic,
                       std::optional<int64_t> Traffic::*copy,
                       const Counts &needs);
  void issueGather(const Layout &layout, const Layout::Call &call);
  void issueReduction(const Layout &layout, const Layout::Call &call);
  /// Of the units of a call.
  int64_t getGatherDuration(const Layout &layout,
                            const Layout::Call &call) const;
  int64_t getDuration(const Layout::Call &call,
                      const std::vector<uint32_t> &units,
                      CollectiveCost Times::Costs::*cost) const;

  OwnStreams streams;
  std::vector<Waits> waits;
  std::vector<Counts> latest;  ///< By group: the launches up to its last.
  std::vector<uint32_t> fixed; ///< Of their streams: the launches up to each.
  const StepModel *model = nullptr;
  const Times *times = nullptr;
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_LAYOUT_H
