//===- ProgramSearch.cpp - Starts, sizes and counts -----------------------===//
//
// Most of a plan is three numbers for the sizes of calls and two counts. A
// blocked answer of that form is found by a grid and by binary search: fewer
// recomputed modules are faster as long as they fit.
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
  auto key = [&](const Outcome &of) {
    return std::make_tuple(std::max<int64_t>(of.time - slowest, 0), of.meanTime,
                           of.peakBytes);
  };
  if (hasBest && key(bestOutcome) <= key(outcome))
    return;
  hasBest = true;
  bestOutcome = outcome;
  best = exact;
  bestWanted = wanted;
}

std::optional<int64_t> ProgramSearch::consider(const ProgramDecisions &wanted) {
  if (!meter.spend())
    return std::nullopt;
  scratch = wanted;
  Outcome outcome = evaluator.fit(scratch, resident);
  remember(outcome, scratch, wanted);
  if (!isWithin(outcome))
    return std::nullopt;
  return outcome.meanTime;
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

/// With another budget, most of them stay good.
void ProgramSearch::startNear(const ProgramDecisions &decisions) {
  std::vector<uint32_t> chosen, others;
  for (uint32_t module : modules)
    (decisions.recompute[module] ? chosen : others).push_back(module);
  for (Placement placement :
       {Placement::Even, Placement::First, Placement::Last}) {
    auto toggle = [&](ProgramDecisions &wanted,
                      const std::vector<uint32_t> &list, size_t count) {
      for (size_t i = 0; i != list.size(); ++i)
        if (isChosen(i, count, list.size(), placement))
          toggleRecompute(wanted, list[i]);
    };
    size_t low = 0, high = modules.size();
    while (low != high) {
      size_t middle = (low + high) / 2;
      ProgramDecisions wanted = decisions;
      setLimits(wanted, farAhead, farAhead);
      if (middle < chosen.size())
        toggle(wanted, chosen, chosen.size() - middle);
      else
        toggle(wanted, others, middle - chosen.size());
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
    for (size_t set = 0; set != size_t(1) << modules.size(); ++set) {
      for (size_t i = 0; i != modules.size(); ++i)
        lean.recompute[modules[i]] = set >> i & 1;
      attempt();
    }
    return;
  }
  for (Placement placement :
       {Placement::First, Placement::Last, Placement::Even})
    for (size_t count = 0; count <= modules.size(); ++count) {
      // A few numbers are enough, unless nothing fits.
      if (hasBest && count != modules.size() && count % 8)
        continue;
      setCounts(lean, count, 0, placement, Placement::Last);
      attempt();
    }
  // One after the other, until none makes it leaner.
  for (bool isLeaner = true; !hasBest && isLeaner;) {
    isLeaner = false;
    for (size_t i = 0; !hasBest && i != modules.size(); ++i) {
      lean = leanest;
      lean.recompute[modules[i]] ^= 1;
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

void ProgramSearch::setCounts(ProgramDecisions &decisions, size_t recomputed,
                              size_t kept, Placement recompute,
                              Placement keep) const {
  for (size_t i = 0; i != modules.size(); ++i)
    decisions.recompute[modules[i]] =
        isChosen(i, recomputed, modules.size(), recompute);
  for (size_t i = 0; i != mayKeep.size(); ++i)
    decisions.units[mayKeep[i]].keep = isChosen(i, kept, mayKeep.size(), keep);
}

std::optional<int64_t> ProgramSearch::considerFewest(ProgramDecisions &wanted,
                                                     Sizes sizes, size_t kept,
                                                     Placement recompute,
                                                     Placement keep,
                                                     size_t more) {
  auto tryCount = [&](size_t count) {
    setCounts(wanted, count, kept, recompute, keep);
    setSizes(wanted, sizes);
    return consider(wanted);
  };
  size_t low = 0, high = modules.size();
  std::optional<int64_t> time = tryCount(high);
  if (!time)
    return std::nullopt;
  while (low != high) {
    size_t middle = (low + high) / 2;
    if (std::optional<int64_t> here = tryCount(middle)) {
      time = here;
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  // One more leaves room for what is launched early.
  for (size_t i = 1; i <= more && high + i <= modules.size(); ++i)
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
  auto attempt = [&](Sizes own, uint16_t wait) {
    setLimits(wanted, farAhead, wait);
    std::optional<int64_t> time =
        considerFewest(wanted, own, 0, Placement::Even, Placement::Last, 0);
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

void ProgramSearch::searchCounts() {
  size_t parts = isCoarse() ? 4 : 8;
  ProgramDecisions wanted = makeDecisions(model).programs[number];
  for (const Granularity &own : granularities)
    for (Placement keep : {Placement::Last, Placement::First})
      for (Placement recompute :
           {Placement::Even, Placement::First, Placement::Last})
        for (size_t part = 0; part <= parts; ++part) {
          setLimits(wanted, farAhead, own.wait);
          if (!considerFewest(wanted, own.sizes, mayKeep.size() * part / parts,
                              recompute, keep, 2))
            break; // more that is kept fits even less
        }
}
