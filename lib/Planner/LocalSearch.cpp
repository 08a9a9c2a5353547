//===- LocalSearch.cpp - Threshold accepting ------------------------------===//
//
// Goes on from an answer by small changes, and takes one that is worse by less
// than a threshold, which falls to nothing. Two threads do so at once, and now
// and then return to the best of both. Dueck and Scheuer, Journal of
// Computational Physics 90 (1990) 161.
//
//===----------------------------------------------------------------------===//

#include "ProgramSearch.h"

#include <algorithm>
#include <future>
#include <utility>

using namespace fsdp::planner;

/// At once, each with every second of the changes.
static constexpr int64_t numWalks = 2;
/// Each begins with the best of all walks.
static constexpr int64_t numRounds = 16;

/// Units of a module of which all is recomputed are used forwards in the
/// backward, and otherwise backwards; their calls stay what they were.
void ProgramSearch::setRecompute(ProgramDecisions &wanted, uint32_t module,
                                 Recompute recompute) const {
  Recompute before = std::exchange(wanted.recompute[module], recompute);
  if ((before == Recompute::All) == (recompute == Recompute::All))
    return;
  const std::vector<uint32_t> &units = unitsOf[module];
  for (size_t i = 0; i != units.size() / 2; ++i)
    std::swap(wanted.units[units[i]][Phase::Backward].joins,
              wanted.units[units[units.size() - 1 - i]][Phase::Backward].joins);
}

/// Blocks of a model are alike: what is good for one is good for its
/// neighbours.
void ProgramSearch::copyCalls(ProgramDecisions &wanted, uint32_t module,
                              size_t count, bool isAfter) const {
  const std::vector<uint32_t> &from = unitsOf[module];
  for (uint32_t other = module; count-- != 0;) {
    if (isAfter ? ++other == unitsOf.size() : other-- == 0)
      return;
    const std::vector<uint32_t> &to = unitsOf[other];
    for (size_t i = 0; i != std::min(from.size(), to.size()); ++i) {
      Keep keep = wanted.units[to[i]].keep;
      wanted.units[to[i]] = wanted.units[from[i]];
      wanted.units[to[i]].keep = keep;
    }
  }
}

Keep ProgramSearch::pickOther(uint32_t unit, Keep keep, Random &random) const {
  if (!program.traffic[unit].piece.bytes)
    return keep == Keep::None ? Keep::All : Keep::None;
  return Keep((size_t(keep) + 1 + random.get(2)) % 3);
}

void ProgramSearch::move(ProgramDecisions &wanted, Random &random) const {
  constexpr uint16_t limits[] = {0, 1, 2, 3, 4, 6, 8, 16, 64};
  size_t numUnits = wanted.units.size();
  if (!numUnits)
    return;
  auto unit = uint32_t(random.get(numUnits));
  UnitDecision &own = wanted.units[unit];
  uint16_t limit = limits[random.get(std::size(limits))];
  switch (random.get(12)) {
  case 0: // one more or less
  case 1:
    if (!modules.empty()) {
      uint32_t module = modules[random.get(modules.size())];
      size_t states = numStates[module];
      size_t next = size_t(wanted.recompute[module]) + 1;
      if (states > 2)
        next += random.get(states - 1);
      setRecompute(wanted, module, Recompute(next % states));
    }
    return;
  case 2: { // one instead of another
    if (modules.empty())
      return;
    uint32_t a = modules[random.get(modules.size())],
             b = modules[random.get(modules.size())];
    Recompute ofA = wanted.recompute[a], ofB = wanted.recompute[b];
    if (size_t(ofA) < numStates[b] && size_t(ofB) < numStates[a]) {
      setRecompute(wanted, a, ofB);
      setRecompute(wanted, b, ofA);
    }
    return;
  }
  case 3: // a unit
    own.keep = pickOther(unit, own.keep, random);
    return;
  case 4: { // a module
    Keep keep = pickOther(unit, own.keep, random);
    own.keep = keep;
    if (uint32_t module = model.units[unit].module; module != nobody)
      for (uint32_t other : unitsOf[module])
        wanted.units[other].keep = limitKeep(other, keep);
    return;
  }
  case 5: { // a border, or its move to a neighbour
    UnitDecision::Gather &gather = own.gathers[random.get(numPhases)];
    gather.joins = !gather.joins;
    if (unit + 1 != numUnits && random.get(2)) {
      UnitDecision::Gather &next =
          wanted.units[unit + 1].gathers[&gather - own.gathers.data()];
      next.joins = !gather.joins;
    }
    return;
  }
  case 6:
    own.reduction.joins = !own.reduction.joins;
    if (unit + 1 != numUnits && random.get(2))
      wanted.units[unit + 1].reduction.joins = !own.reduction.joins;
    return;
  case 7:
    own.gathers[random.get(numPhases)].ahead = limit;
    return;
  case 8:
    own.reduction.wait = limit;
    return;
  case 9: { // that one unit is kept instead of another
    auto other = uint32_t(random.get(numUnits));
    Keep keep =
        std::exchange(own.keep, limitKeep(unit, wanted.units[other].keep));
    wanted.units[other].keep = limitKeep(other, keep);
    return;
  }
  case 10: // the calls of a module, for some before or after it
    if (uint32_t module = model.units[unit].module; module != nobody) {
      size_t count = size_t(1) << random.get(7);
      copyCalls(wanted, module, count, /*isAfter=*/random.get(2));
    }
    return;
  default: // of all units
    for (UnitDecision &any : wanted.units)
      if (limit % 2)
        any.reduction.wait = limit;
      else
        any.gathers[limit / 2 % numPhases].ahead = limit;
    return;
  }
}

/// Every second of the changes from `first` to `end`, of so many in all; counts
/// all of them, or none.
void ProgramSearch::walk(int64_t first, int64_t end, int64_t all, bool counts,
                         Random &random) {
  // A low threshold brings large programs most of the way; now and then a high
  // one brings small ones out of a corner.
  constexpr double lowThreshold = 0.0003, highThreshold = 0.003;
  // What is slower by much more than that as predicted is so in the mean.
  constexpr double certainly = 0.001;
  ProgramDecisions current = best->wanted, next;
  int64_t currentCost = best->getCost();
  for (int64_t i = first; i < end && !meter.isStopped; i += numWalks) {
    if (counts)
      meter.spend(std::min(numWalks, end - i));
    next = current;
    for (size_t moves = 1 + random.get(2); moves != 0; --moves)
      move(next, random);
    if (next == current) // what was drawn was there: it counts, and is known
      continue;
    double left = 1 - double(i) / double(all);
    bool isHigh = i * numRounds / all % 4 == 3;
    double threshold = (isHigh ? highThreshold : lowThreshold) * left * left;
    auto share = [&](double part) {
      return int64_t(part * double(best->outcome.meanTime));
    };
    int64_t most = currentCost + share(threshold);
    int64_t mostTime =
        most - best->outcome.meanTime + best->outcome.time + share(certainly);
    std::optional<int64_t> cost = fit(next, mostTime);
    if (cost && *cost <= most) {
      std::swap(current, next);
      currentCost = *cost;
    }
  }
}

void ProgramSearch::searchNearby(int64_t evaluations, uint64_t seed) {
  if (!best || evaluations <= 0)
    return;
  ProgramSearch other(model, number, resident, meter);
  other.slowest = slowest;
  other.rivals = rivals;
  if (onOthers)
    other.onOthers.emplace(model, number, meter.options.others);
  Random random = {std::mt19937_64(seed)}, others = {std::mt19937_64(~seed)};
  for (int64_t round = 0; round != numRounds && !meter.isDone(); ++round) {
    int64_t begin = evaluations * round / numRounds,
            end = evaluations * (round + 1) / numRounds;
    other.best = best;
    auto beside = std::async(std::launch::async, [&] {
      other.walk(begin + 1, end, evaluations, /*counts=*/false, others);
    });
    walk(begin, end, evaluations, /*counts=*/true, random);
    beside.get();
    remember(other.best->outcome, other.best->exact, other.best->wanted);
  }
}
