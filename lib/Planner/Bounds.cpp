//===- Bounds.cpp - What no decisions can beat ----------------------------===//
//
// Sums of collectives are kept in picoseconds and become whole nanoseconds at
// the end, less half a nanosecond for each call that may have been rounded. All
// divisions round down.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Bounds.h"

#include "BoundFacts.h"

#include <algorithm>

using namespace fsdp::planner;

struct ProgramBounds::Facts : BoundFacts {
  using BoundFacts::BoundFacts;

  /// The least over all numbers of recomputed modules that fit.
  template <typename Function>
  std::optional<int64_t> minimize(Function &&bound) const {
    std::optional<int64_t> least;
    for (size_t r = 0; r != replays.size(); ++r)
      if (fits(r)) {
        int64_t time = bound(r);
        least = least ? std::min(*least, time) : time;
      }
    return least;
  }

  /// C + phi K + (1 - phi) exposed.
  int64_t addCollectives(int64_t computed, int64_t collectives,
                         int64_t exposed) const {
    exposed = std::min(exposed, collectives);
    return computed + exposed + scaleByPhi(collectives - exposed);
  }
  int64_t boundWhole(size_t r, int64_t moreGathers) const {
    return addCollectives(
        compute.back() + replays[r],
        combine(sumGathers(r) + moreGathers, sumReductions(), sumAllReduces()),
        // No gather runs beside the last reduction, if all are before it.
        endsReduced ? std::max(head, unhidden) + tail
                    : std::max(head + tail, unhidden));
  }
  int64_t boundBefore(const Cut &cut, size_t r, int64_t replayed) const;
  int64_t boundAfter(const Cut &cut, size_t r, int64_t replayed) const;
};

ProgramBounds::ProgramBounds(const StepModel &model, size_t program)
    : facts(std::make_unique<Facts>(model, model.programs[program])) {}

ProgramBounds::~ProgramBounds() = default;

std::optional<int64_t> ProgramBounds::boundCompute() const {
  return facts->minimize(
      [&](size_t r) { return facts->compute.back() + facts->replays[r]; });
}

std::optional<int64_t>
ProgramBounds::boundContention(int64_t moreGathers) const {
  return facts->minimize(
      [&](size_t r) { return facts->boundWhole(r, moreGathers); });
}

std::optional<int64_t> ProgramBounds::boundHeadTail() const {
  int64_t head = facts->findHead(facts->program.ops.size());
  return facts->minimize([&](size_t r) {
    return head + std::max(facts->compute.back() + facts->replays[r],
                           facts->findTail(0, facts->replays[r]));
  });
}

//===----------------------------------------------------------------------===//
// The cut
//===----------------------------------------------------------------------===//

/// From the start to the end of the computation.
int64_t ProgramBounds::Facts::boundBefore(const Cut &cut, size_t r,
                                          int64_t replayed) const {
  int64_t computed = compute[cut.op + 1] + replayed;
  int64_t free = mayStartGathered ? room - cut.mandatory[r] - cut.inUse : 0;
  int64_t gathers =
      combine(sumGathers(cut.before, free, countGathers(cut.op)), 0, 0);
  bool isExposed =
      !gathered.empty() && uses[gathered.front()].first[0] <= cut.op;
  return std::max(addCollectives(computed, gathers, isExposed ? head : 0),
                  computed + findHead(cut.op));
}

/// From there to the end of the program. A gather for it that is not there is
/// launched after it, and so is a reduction of a gradient that it completes.
int64_t ProgramBounds::Facts::boundAfter(const Cut &cut, size_t r,
                                         int64_t replayed) const {
  size_t next = cut.op + 1;
  int64_t computed = compute.back() - compute[next] + replayed;
  int64_t free = room - cut.mandatory[r] - cut.inUse;
  int64_t gathers = sumGathers(cut.after, free, countGathers(cut, free));
  auto [reductions, allReduces] = sumReductionsFrom(cut.op);
  int64_t collectives = combine(gathers, reductions, allReduces);
  bool isExposed = reductions != 0;
  return std::max({addCollectives(computed, collectives, isExposed ? tail : 0),
                   collectives + (isExposed && endsReduced ? lastUpdate : 0),
                   findTail(next, replayed)});
}

/// A replay before the cut takes its time there, after it it may run beside
/// collectives: as many of them as can are after it.
std::optional<int64_t> ProgramBounds::boundMemoryCut() const {
  return facts->minimize([&](size_t r) {
    int64_t most = 0;
    for (const BoundFacts::Cut &cut : facts->cuts) {
      int64_t after =
          std::min(facts->replays[r], facts->replaysFrom[cut.op + 1]);
      most =
          std::max(most, facts->boundBefore(cut, r, facts->replays[r] - after) +
                             facts->boundAfter(cut, r, after));
    }
    return most;
  });
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
  int64_t most = 0;
  for (const BoundFacts::Cut &cut : facts->cuts)
    most = std::max(most, cut.mandatory.back() + cut.inUse);
  return facts->model.persistentBytes + most;
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
