//===- Bounds.cpp - What no decisions can beat ----------------------------===//
//
// Sums of collectives are kept in picoseconds and become whole nanoseconds at
// the end, less half a nanosecond for each call that may have been rounded. All
// divisions round down.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Bounds.h"

#include "Unhidden.h"

#include <algorithm>
#include <limits>

using namespace fsdp::planner;

struct ProgramBounds::Facts : BoundFacts {
  using BoundFacts::BoundFacts;

  static constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const Unhidden unhidden{*this};

  /// C + phi K + (1 - phi) w, where w is what is exposed of K, or else
  /// `waited`: of collectives, no more than w runs beside nothing.
  int64_t addCollectives(int64_t computed, int64_t collectives, int64_t exposed,
                         int64_t waited) const {
    int64_t without = std::max(std::min(exposed, collectives), waited);
    return computed + without +
           scaleByPhi(std::max<int64_t>(collectives - without, 0));
  }
  /// What of collectives runs beside nothing: at least `alone`, of which only
  /// the first gather is `first`, and the tail. No gather runs beside the last
  /// reduction, if all are before it.
  int64_t addTail(int64_t alone, int64_t first) const {
    return endsReduced ? std::max(alone, first) + tail
                       : std::max(alone, first + tail);
  }
  /// `gathersMore`: picoseconds of more gathers, by view.
  int64_t boundWhole(const Choice &choice, const ByView &gathersMore,
                     int64_t alone) const {
    int64_t collectives = combine([&](size_t view) {
      Totals totals = reductions[view];
      totals.gathers = sumGathers(choice, view) + gathersMore[view];
      return totals;
    });
    return addCollectives(compute.back() + choice.replays, collectives,
                          addTail(alone, head), idle);
  }
  int64_t boundBefore(const Cut &cut, const Choice &choice,
                      int64_t replayed) const;
  int64_t boundAfter(const Cut &cut, const Choice &choice, int64_t replayed,
                     int64_t alone) const;
  int64_t boundAt(const Cut &cut, const Choice &choice, int64_t alone) const;
  int64_t boundCase(const Choice &choice,
                    std::optional<BoundFacts::Set> nearestWhole,
                    int64_t least) const;
  int64_t boundCases(const Choice &choice, int64_t least) const;
};

ProgramBounds::ProgramBounds(const StepModel &model, size_t program)
    : facts(std::make_unique<Facts>(model, model.programs[program])) {}

ProgramBounds::~ProgramBounds() = default;

/// The first choice is the shortest. What depends on nothing else is least for
/// it.
std::optional<int64_t> ProgramBounds::boundCompute() const {
  if (facts->choices.empty())
    return std::nullopt;
  return facts->compute.back() + facts->choices.front().replays;
}

std::optional<int64_t>
ProgramBounds::boundContention(const std::vector<uint32_t> &units,
                               const std::vector<uint32_t> &pieces) const {
  Facts::ByView moreGathers = {};
  for (size_t view : facts->views) {
    for (uint32_t unit : units)
      moreGathers[view] +=
          facts->getGather(facts->program.traffic[unit], view).transfer;
    for (uint32_t unit : pieces)
      moreGathers[view] +=
          facts->getPiece(facts->program.traffic[unit], view).transfer;
  }
  std::optional<int64_t> least;
  for (const BoundFacts::Choice &choice : facts->choices) {
    int64_t time = facts->boundWhole(choice, moreGathers, 0);
    least = least ? std::min(*least, time) : time;
    if (!facts->mayStartGathered)
      break; // memory decides nothing
  }
  return least;
}

std::optional<int64_t> ProgramBounds::boundHeadTail() const {
  if (facts->choices.empty())
    return std::nullopt;
  int64_t replays = facts->choices.front().replays;
  return facts->findHead(facts->program.ops.size()) +
         std::max(facts->compute.back() + replays, facts->findTail(0, replays));
}

//===----------------------------------------------------------------------===//
// The cut
//===----------------------------------------------------------------------===//

/// From the start to the end of the computation.
int64_t ProgramBounds::Facts::boundBefore(const Cut &cut, const Choice &choice,
                                          int64_t replayed) const {
  int64_t computed = compute[cut.op + 1] + replayed;
  int64_t free =
      mayStartGathered ? room - getMandatory(cut.op, choice) - cut.inUse : 0;
  int64_t gathers = combine([&](size_t view) {
    return Totals{sumGathers(cut.before[view], free, countGathers(cut.op))};
  });
  bool isExposed =
      !gathered.empty() && uses[gathered.front()].first[0] <= cut.op;
  return std::max(
      addCollectives(computed, gathers, isExposed ? head : 0, cut.idleBefore),
      computed + findHead(cut.op));
}

/// From there to the end of the program. A gather for it that is not there is
/// launched after it, and so is a reduction of a gradient that it completes.
int64_t ProgramBounds::Facts::boundAfter(const Cut &cut, const Choice &choice,
                                         int64_t replayed,
                                         int64_t alone) const {
  size_t next = cut.op + 1;
  int64_t computed = compute.back() - compute[next] + replayed;
  int64_t free = room - getMandatory(cut.op, choice) - cut.inUse;
  int64_t calls = countGathers(cut, free);
  int64_t collectives = combine([&](size_t view) {
    Totals totals = cut.reductions[view];
    totals.gathers = sumGathers(cut.after[view], free, calls);
    return totals;
  });
  return std::max(
      {addCollectives(computed, collectives,
                      cut.hasReductions ? addTail(alone, 0) : alone,
                      cut.idleAfter),
       collectives + (cut.hasReductions && endsReduced ? lastUpdate : 0),
       findTail(next, replayed)});
}

/// A replay before the cut takes its time there, after it it may run beside
/// collectives: as many of them as can are after it.
int64_t ProgramBounds::Facts::boundAt(const Cut &cut, const Choice &choice,
                                      int64_t alone) const {
  int64_t after = std::min(choice.replays, replaysFrom[cut.op + 1]);
  return boundBefore(cut, choice, choice.replays - after) +
         boundAfter(cut, choice, after, alone);
}

/// The most of what the whole and the cuts say with B6, if of the nearest
/// modules these are recomputed; no more than it takes to see that it is not
/// less than `least`. `most`, if there is no room for it.
int64_t
ProgramBounds::Facts::boundCase(const Choice &choice,
                                std::optional<BoundFacts::Set> nearestWhole,
                                int64_t least) const {
  std::optional<Unhidden::Case> known = unhidden.makeCase(choice, nearestWhole);
  if (!known)
    return most;
  int64_t time = boundWhole(choice, {}, unhidden.find(*known));
  for (size_t i = 0; i != cuts.size() && time < least; ++i)
    if (unhidden.isAfterForward(cuts[i]))
      time = std::max(
          time, boundAt(cuts[i], choice, unhidden.findAfter(cuts[i], *known)));
  return time;
}

/// The least of all cases of a choice, if it is less than `least`.
int64_t ProgramBounds::Facts::boundCases(const Choice &choice,
                                         int64_t least) const {
  int64_t time = boundCase(choice, std::nullopt, least);
  if (time >= least || nearest.empty() || mayStartGathered)
    return time;
  int64_t leastCase = most;
  for (unsigned long set = 0; set >> nearest.size() == 0; ++set)
    if (isPossible(choice, set))
      leastCase = std::min(leastCase, boundCase(choice, Set(set), leastCase));
  return std::max(time, leastCase);
}

/// Choices become longer: those that take as long as the least without any
/// collective are no less. Of a choice, as many cuts are looked at as it takes
/// to see that it is not the least; most often the one that said so last does.
std::optional<int64_t> ProgramBounds::boundMemoryCut() const {
  const std::vector<BoundFacts::Cut> &cuts = facts->cuts;
  int64_t least = Facts::most;
  size_t first = 0;
  auto visit = [&](auto &&bound) {
    for (const BoundFacts::Choice &choice : facts->choices) {
      if (facts->compute.back() + choice.replays >= least)
        break;
      int64_t time = 0;
      size_t at = first;
      for (size_t i = 0; i != cuts.size() && time < least; ++i) {
        at = (first + i) % cuts.size();
        time = std::max(time, facts->boundAt(cuts[at], choice, 0));
      }
      first = at;
      if (time < least)
        bound(choice, time);
    }
  };
  // That which is the least at first sight is near it.
  const BoundFacts::Choice *near = nullptr;
  visit([&](const BoundFacts::Choice &choice, int64_t time) {
    least = time;
    near = &choice;
  });
  if (!near)
    return std::nullopt;
  least = std::max(least, facts->boundCases(*near, Facts::most));
  visit([&](const BoundFacts::Choice &choice, int64_t time) {
    least = std::min(least, std::max(time, facts->boundCases(choice, least)));
  });
  if (least == Facts::most)
    return std::nullopt;
  return least;
}

//===----------------------------------------------------------------------===//
// All of them
//===----------------------------------------------------------------------===//

std::optional<Bound> ProgramBounds::findLargest() const {
  std::optional<Bound> largest;
  auto add = [&](const char *name, std::optional<int64_t> time) {
    if (time && (!largest || *time > largest->time))
      largest = Bound{name, *time};
  };
  add("compute", boundCompute());
  add("contention", boundContention());
  add("memory cut", boundMemoryCut());
  add("head and tail", boundHeadTail());
  return largest;
}

int64_t ProgramBounds::boundBudget() const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const BoundFacts::Choice &choice : facts->allChoices)
    least = std::min(least, facts->findLeastRoom(choice));
  return facts->model.persistentBytes + least;
}

std::optional<Bound> fsdp::planner::findBound(const StepModel &model) {
  Bound sum;
  int64_t longest = -1;
  for (size_t p = 0; p != model.programs.size(); ++p) {
    std::optional<Bound> own = ProgramBounds(model, p).findLargest();
    if (!own)
      return std::nullopt;
    int64_t time = own->time * model.programs[p].count;
    sum.time += time;
    if (time > longest) {
      longest = time;
      sum.name = own->name;
    }
  }
  return sum;
}
