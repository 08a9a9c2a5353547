//===- ProgramSearch.cpp - Starts, sizes and counts -----------------------===//
//
// Most of a plan is three numbers for the sizes of calls and two counts. A
// blocked answer of that form is found by a grid and by binary search: less
// that is recomputed is faster as long as it fits.
//
//===----------------------------------------------------------------------===//

#include "ProgramSearch.h"

#include <algorithm>
#include <tuple>

using namespace fsdp::planner;

/// Launches so far ahead, and waits so far after them, are of use: what is
/// hidden is hidden by a few neighbours.
static constexpr uint16_t farAhead = 64;

void EvaluationMeter::report() {
  if (options.progress && !options.progress({stage, count, findTime()}))
    isStopped = true;
}

ProgramSearch::ProgramSearch(const StepModel &model, size_t number,
                             std::vector<uint8_t> resident,
                             EvaluationMeter &meter)
    : model(model), program(model.programs[number]), number(number),
      resident(std::move(resident)), meter(meter),
      evaluator(model, number, meter.options.scenarios), layout(model, program),
      modules(program.recomputable) {
  leanest = makeDecisions(model).programs[number];
  leanestOutcome.peakBytes = std::numeric_limits<int64_t>::max();
  layout.build(leanest, this->resident);
  for (const Layout::Call &call : layout.gathers)
    for (uint32_t i = call.begin; i != call.end; ++i)
      if (layout.getOrder().uses[layout.gatherUnits[i]].first[1] != nobody &&
          call.phase == Phase::Forward &&
          !model.units[layout.gatherUnits[i]].staysGathered)
        mayKeep.push_back(layout.gatherUnits[i]);
  unitsOf.resize(model.modules.size());
  for (uint32_t unit : mayKeep)
    if (uint32_t module = model.units[unit].module; module != nobody)
      unitsOf[module].push_back(unit);
  numStates.assign(model.modules.size(), 1);
  for (const auto *some : {&program.recomputable, &program.cheap})
    for (uint32_t module : *some)
      ++numStates[module];
}

//===----------------------------------------------------------------------===//
// Trying
//===----------------------------------------------------------------------===//

void ProgramSearch::remember(const Outcome &outcome,
                             const ProgramDecisions &exact,
                             const ProgramDecisions &wanted) {
  if (!isWithin(outcome)) {
    if (outcome.peakBytes < leanestOutcome.peakBytes) {
      leanestOutcome = outcome;
      leanest = exact;
    }
    return;
  }
  auto getKey = [&](const Outcome &of, int64_t penalty) {
    return std::make_tuple(std::max<int64_t>(of.time - slowest, 0),
                           of.meanTime + penalty, of.peakBytes);
  };
  auto isBetter = [&](int64_t penalty) {
    return !best ||
           getKey(outcome, penalty) < getKey(best->outcome, best->penalty);
  };
  if (!isBetter(0))
    return;
  int64_t penalty = findPenalty(exact);
  if (!isBetter(penalty))
    return;
  best = {outcome, penalty, exact, wanted};
}

/// Many times what it is slower, so that it is taken only where little else
/// would do.
int64_t ProgramSearch::findPenalty(const ProgramDecisions &exact) {
  constexpr int64_t factor = 16;
  int64_t penalty = 0;
  if (rivals.empty())
    return penalty;
  std::vector<int64_t> times = onOthers->findTimes(exact, resident);
  for (size_t i = 0; i != times.size(); ++i)
    penalty += factor * std::max<int64_t>(times[i] - rivals[i], 0);
  return penalty;
}

bool ProgramSearch::penalize(const std::vector<Baseline> &baselines) {
  onOthers.emplace(model, number, meter.options.others);
  for (const Baseline &baseline : baselines) {
    std::vector<int64_t> times =
        onOthers->findTimes(baseline.decisions.programs[number], resident);
    if (rivals.empty())
      rivals = times;
    for (size_t i = 0; i != times.size(); ++i)
      rivals[i] = std::min(rivals[i], times[i]);
  }
  best->penalty = findPenalty(best->exact);
  return best->penalty != 0;
}

std::optional<int64_t> ProgramSearch::consider(const ProgramDecisions &wanted) {
  return meter.spend() ? fit(wanted) : std::nullopt;
}

std::optional<int64_t> ProgramSearch::fit(const ProgramDecisions &wanted,
                                          int64_t mostTime) {
  scratch = wanted;
  Outcome outcome = evaluator.fit(scratch, resident, mostTime);
  if (outcome.time > mostTime)
    return std::nullopt;
  remember(outcome, scratch, wanted);
  if (!isWithin(outcome))
    return std::nullopt;
  return outcome.meanTime + findPenalty(scratch);
}

void ProgramSearch::setLimits(ProgramDecisions &decisions, uint16_t ahead,
                              uint16_t wait) {
  for (UnitDecision &unit : decisions.units) {
    for (UnitDecision::Gather &gather : unit.gathers)
      gather.ahead = ahead;
    unit.reduction.wait = wait;
  }
}

/// What is given is always tried, whatever the number of evaluations.
void ProgramSearch::start(const ProgramDecisions &decisions) {
  ++meter.count;
  Outcome outcome = evaluator.evaluate(decisions, resident);
  if (isWithin(outcome))
    slowest = std::min(slowest, outcome.time);
  remember(outcome, decisions, decisions);
  consider(decisions);
  ProgramDecisions wanted = decisions;
  setLimits(wanted, farAhead, farAhead);
  consider(wanted);
}

void ProgramSearch::adopt(const ProgramDecisions &decisions) {
  ++meter.count;
  remember(evaluator.evaluate(decisions, resident), decisions, decisions);
  consider(decisions);
}

/// All that may be done by steps to less or more recomputation: a first list,
/// and then a second one. What is decided stays on the ladder that it is on.
ProgramSearch::Steps
ProgramSearch::listSteps(const ProgramDecisions &decisions) const {
  auto has = [&](const std::vector<uint32_t> &list, Recompute recompute) {
    return std::any_of(list.begin(), list.end(), [&](uint32_t module) {
      return decisions.recompute[module] == recompute;
    });
  };
  bool isWhole = has(program.cheap, Recompute::None) &&
                 has(modules, Recompute::All) &&
                 !has(modules, Recompute::Cheap);
  Steps steps;
  for (uint32_t module : modules) {
    Recompute own = decisions.recompute[module];
    bool isCheap = !isWhole && numStates[module] > 2;
    if (own == Recompute::All)
      steps.less[0].emplace_back(module,
                                 isCheap ? Recompute::Cheap : Recompute::None);
    if (own != Recompute::None && isCheap)
      steps.less[1].emplace_back(module, Recompute::None);
    if (own == Recompute::None && isCheap)
      steps.more[0].emplace_back(module, Recompute::Cheap);
    if (own != Recompute::All)
      steps.more[1].emplace_back(module, Recompute::All);
  }
  return steps;
}

/// With another budget, most of them stay good: launches and waits are as early
/// and late as there is room for, or where they were.
void ProgramSearch::startNear(const ProgramDecisions &decisions) {
  ProgramDecisions wanted = decisions;
  setLimits(wanted, farAhead, farAhead);
  considerNear(wanted);
  considerNear(decisions);
}

void ProgramSearch::considerNear(const ProgramDecisions &decisions) {
  Steps steps = listSteps(decisions);
  size_t less = steps.less[0].size() + steps.less[1].size();
  size_t more = steps.more[0].size() + steps.more[1].size();
  for (Placement placement :
       {Placement::Even, Placement::First, Placement::Last}) {
    auto take = [&](ProgramDecisions &wanted, const Steps::Lists &lists,
                    size_t count) {
      for (const auto &list : lists) {
        size_t own = std::min(count, list.size());
        for (size_t i = 0; i != list.size(); ++i)
          if (isChosen(i, own, list.size(), placement))
            setRecompute(wanted, list[i].first, list[i].second);
        count -= own;
      }
    };
    size_t low = 0, high = less + more;
    while (low != high) {
      size_t middle = (low + high) / 2;
      ProgramDecisions wanted = decisions;
      if (middle < less)
        take(wanted, steps.less, less - middle);
      else
        take(wanted, steps.more, middle - less);
      if (consider(wanted))
        high = middle;
      else
        low = middle + 1;
    }
  }
}

void ProgramSearch::startLean() {
  ProgramDecisions lean = makeDecisions(model).programs[number];
  auto attempt = [&] {
    ++meter.count;
    remember(evaluator.evaluate(lean, resident), lean, lean);
  };
  if (modules.size() <= mostExactUnits) {
    for (size_t set = 0; set != countRecomputes(); ++set) {
      lean.recompute = getRecompute(set);
      attempt();
    }
    return;
  }
  for (Ladder ladder : getLadders())
    for (Placement placement :
         {Placement::First, Placement::Last, Placement::Even})
      for (size_t step = 0; step <= countSteps(ladder); ++step) {
        // A few numbers of one ladder are enough, unless nothing fits.
        if (best && (ladder != getLadders().front() ||
                     (step != countSteps(ladder) && step % 8)))
          continue;
        setRecomputed(lean, step, {ladder, placement});
        attempt();
      }
  // One after the other, until none makes it leaner.
  for (bool isLeaner = true; !best && isLeaner;) {
    isLeaner = false;
    for (uint32_t module : modules)
      for (size_t state = 0; !best && state != numStates[module]; ++state) {
        lean = leanest;
        if (std::exchange(lean.recompute[module], Recompute(state)) ==
            Recompute(state))
          continue;
        int64_t before = leanestOutcome.peakBytes;
        attempt();
        isLeaner |= leanestOutcome.peakBytes < before;
      }
  }
}

//===----------------------------------------------------------------------===//
// Sizes and counts
//===----------------------------------------------------------------------===//

void ProgramSearch::clearJoins(ProgramDecisions &decisions) {
  for (UnitDecision &unit : decisions.units) {
    for (UnitDecision::Gather &gather : unit.gathers)
      gather.joins = false;
    unit.reduction.joins = false;
  }
}

/// Where calls of so many units begin, of `count`. Nothing runs beside the
/// first call, so they may grow: 1, 2, 4 and so on units.
static std::vector<bool> findBorders(size_t count, uint32_t size,
                                     bool growing) {
  std::vector<bool> isBorder(count, false);
  uint32_t call = growing ? 1 : size;
  for (size_t i = 0; i < count; i += call, call = std::min(2 * call, size))
    isBorder[i] = true;
  return isBorder;
}

/// Calls of so many units each, in the order of use that the rest decides.
void ProgramSearch::setSizes(ProgramDecisions &decisions, Sizes sizes) {
  clearJoins(decisions);
  layout.build(decisions, resident, /*lean=*/true);
  size_t count[numPhases] = {0, 0};
  for (const Layout::Call &call : layout.gathers)
    ++count[size_t(call.phase)];
  std::vector<bool> borders[numPhases] = {
      findBorders(count[0], sizes.forward, sizes.growing),
      findBorders(count[1], sizes.backward, sizes.growing)};
  size_t next[numPhases] = {0, 0};
  for (size_t i = 0; i != layout.gathers.size(); ++i) {
    auto phase = size_t(layout.gathers[i].phase);
    decisions.units[layout.gatherUnits[i]].gathers[phase].joins =
        !borders[phase][next[phase]++];
  }
  // Nothing runs beside the last reduction: from there, a call begins where the
  // one after it begins in the other direction.
  size_t reductions = layout.reductionUnits.size();
  std::vector<bool> isEnd =
      findBorders(reductions, sizes.reduction, sizes.growing);
  for (size_t i = 1; i < reductions; ++i)
    decisions.units[layout.reductionUnits[i]].reduction.joins =
        !isEnd[reductions - i];
}

bool ProgramSearch::isChosen(size_t i, size_t count, size_t all,
                             Placement placement) {
  switch (placement) {
  case Placement::First:
    return i < count;
  case Placement::Last:
    return i >= all - count;
  case Placement::Even:
    return (i + 1) * count / all != i * count / all;
  }
  return false;
}

size_t ProgramSearch::countRecomputes() const {
  size_t count = 1;
  for (uint32_t module : modules)
    count *= numStates[module];
  return count;
}

std::vector<Recompute> ProgramSearch::getRecompute(size_t number) const {
  std::vector<Recompute> recompute(model.modules.size());
  for (uint32_t module : modules) {
    recompute[module] = Recompute(number % numStates[module]);
    number /= numStates[module];
  }
  return recompute;
}

std::vector<ProgramSearch::Ladder> ProgramSearch::getLadders() const {
  if (program.cheap.empty())
    return {Ladder::Whole};
  return {Ladder::Whole, Ladder::Cheap};
}

void ProgramSearch::setRecomputed(ProgramDecisions &decisions, size_t steps,
                                  Recomputed how) const {
  const std::vector<uint32_t> &cheap = program.cheap;
  size_t most = how.ladder == Ladder::Cheap ? cheap.size() : 0;
  size_t first = std::min(steps, most);
  for (uint32_t module : modules)
    decisions.recompute[module] = Recompute::None;
  for (size_t i = 0; i != cheap.size(); ++i)
    if (isChosen(i, first, cheap.size(), how.placement))
      decisions.recompute[cheap[i]] = Recompute::Cheap;
  for (size_t i = 0; i != modules.size(); ++i)
    if (isChosen(i, steps - first, modules.size(), how.placement))
      decisions.recompute[modules[i]] = Recompute::All;
}

void ProgramSearch::setKept(ProgramDecisions &decisions, size_t count,
                            Placement placement, Keep rest) const {
  for (size_t i = 0; i != mayKeep.size(); ++i)
    decisions.units[mayKeep[i]].keep =
        isChosen(i, count, mayKeep.size(), placement)
            ? Keep::All
            : limitKeep(mayKeep[i], rest);
}

/// From the number that was fewest before, in steps that double, and then by
/// halves: most often, it is that or one nearby.
std::optional<int64_t> ProgramSearch::considerFewest(ProgramDecisions &wanted,
                                                     Sizes sizes,
                                                     Recomputed how,
                                                     size_t more) {
  auto tryCount = [&](size_t count) {
    setRecomputed(wanted, count, how);
    setSizes(wanted, sizes);
    return consider(wanted);
  };
  const size_t most = countSteps(how.ladder);
  size_t &fewest = fewestSteps[size_t(how.ladder)];
  size_t low = 0, high = most + 1, next = std::min(fewest, most);
  std::optional<int64_t> time;
  for (size_t stride = 1; low != high; stride *= 2) {
    if (std::optional<int64_t> here = tryCount(next)) {
      time = here;
      high = next;
    } else {
      low = next + 1;
    }
    if (!time)
      next = most; // perhaps none fits
    else if (!low)
      next = high - std::min(stride, high);
    else
      next = std::min(low + stride - 1, (low + high) / 2);
  }
  fewest = std::min(high, most);
  if (!time)
    return std::nullopt;
  // One more leaves room for what is launched early.
  for (size_t i = 1; i <= more && high + i <= most; ++i)
    if (std::optional<int64_t> here = tryCount(high + i))
      time = std::min(time, here);
  return time;
}

void ProgramSearch::searchSizes() {
  size_t mostGranularities = isCoarse() ? 2 : 4;
  std::vector<uint32_t> sizes;
  for (uint32_t size = 1; size <= 64 && size <= model.units.size();
       size *= isCoarse() ? 4 : 2)
    sizes.push_back(size);
  ProgramDecisions wanted = makeDecisions(model).programs[number];
  Ladder ladder = getLadders().back();
  auto attempt = [&](Sizes own, uint16_t wait) {
    setLimits(wanted, farAhead, wait);
    std::optional<int64_t> time =
        considerFewest(wanted, own, {ladder, Placement::Even}, 0);
    if (!time)
      return;
    Granularity here = {*time, own, wait};
    auto isFaster = [](const Granularity &a, const Granularity &b) {
      return a.time < b.time;
    };
    granularities.insert(std::upper_bound(granularities.begin(),
                                          granularities.end(), here, isFaster),
                         here);
    if (granularities.size() > mostGranularities)
      granularities.pop_back();
  };
  for (bool growing : {true, false})
    for (uint16_t wait : {uint16_t(2), farAhead})
      for (uint32_t forward : sizes)
        for (uint32_t backward : sizes)
          for (uint32_t reduction : sizes)
            // Very different sizes were never worth it.
            if (std::max(forward, backward) <= 8 * std::min(forward, backward))
              attempt({forward, backward, reduction, growing}, wait);
}

/// Cheap copies are worth it on some machines: the ladder that is faster with
/// nothing kept, of which one was searched for the sizes.
ProgramSearch::Ladder ProgramSearch::findLadder(ProgramDecisions &wanted,
                                                const Granularity &own) {
  if (program.cheap.empty())
    return Ladder::Whole;
  setKept(wanted, 0, Placement::Last, Keep::None);
  std::optional<int64_t> time =
      considerFewest(wanted, own.sizes, {Ladder::Whole, Placement::Even}, 0);
  return time && *time < own.time ? Ladder::Whole : Ladder::Cheap;
}

/// Pieces are worth their memory and their copies where few ranks gather faster
/// than all: what is faster of all other units, with nothing kept whole.
Keep ProgramSearch::findRest(ProgramDecisions &wanted, const Granularity &own,
                             Ladder ladder) {
  if (!mayKeepPieces(model))
    return Keep::None;
  auto find = [&](Keep rest) {
    setKept(wanted, 0, Placement::Last, rest);
    return considerFewest(wanted, own.sizes, {ladder, Placement::Even}, 0);
  };
  std::optional<int64_t> none = find(Keep::None), pieces = find(Keep::Piece);
  return pieces && (!none || *pieces < *none) ? Keep::Piece : Keep::None;
}

void ProgramSearch::searchCounts() {
  size_t parts = isCoarse() ? 4 : 8;
  ProgramDecisions wanted = makeDecisions(model).programs[number];
  for (const Granularity &own : granularities) {
    setLimits(wanted, farAhead, own.wait);
    Ladder ladder = findLadder(wanted, own);
    Keep rest = findRest(wanted, own, ladder);
    for (Placement keep : {Placement::Last, Placement::First})
      for (Placement recompute :
           {Placement::Even, Placement::First, Placement::Last})
        for (size_t part = 0; part <= parts; ++part) {
          setKept(wanted, mayKeep.size() * part / parts, keep, rest);
          if (!considerFewest(wanted, own.sizes, {ladder, recompute}, 2))
            break; // more that is kept fits even less
        }
  }
}
