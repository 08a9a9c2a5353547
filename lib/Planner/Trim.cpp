//===- Trim.cpp - Nothing is there that wins no time ----------------------===//
//
// `Evaluator::fit` takes all the memory that there is. Much of it wins nothing,
// even where the network has half the bandwidth; and buffers that fill an arena
// at all times leave more gaps between them. Where collectives hide
// computations, some are done twice for memory that nothing needs: they cost
// time as soon as the network is faster.
//
//===----------------------------------------------------------------------===//

#include "ProgramSearch.h"

using namespace fsdp::planner;

/// The last launch first, and the first wait: each is a limit to those before
/// it, or after it.
void ProgramSearch::trim() {
  if (!best)
    return;
  std::vector<Scenario> scenarios = {getHalfNetwork()}; // slower most often
  scenarios.insert(scenarios.end(), meter.options.scenarios.begin(),
                   meter.options.scenarios.end());
  Evaluator onAll(model, number, scenarios);
  std::vector<int64_t> fastest = onAll.findTimes(best->exact, resident);
  ProgramDecisions trimmed = best->exact;
  auto isAsFast = [&] {
    std::vector<int64_t> times = onAll.findTimes(trimmed, resident, fastest);
    if (times.empty())
      return false;
    int64_t penalty = findPenalty(trimmed);
    if (penalty > best->penalty)
      return false;
    best->penalty = penalty;
    fastest = times;
    return true;
  };
  auto lower = [&](uint16_t &slots) {
    uint16_t most = slots;
    for (size_t next = 0; next < most; next += 1 + next / 4) {
      slots = uint16_t(next);
      if (isAsFast())
        return;
    }
    slots = most;
  };
  layout.build(best->exact, resident);
  // What a call does not begin with counts for nothing.
  setLimits(trimmed, 0, 0);
  for (const Layout::Call &call : layout.gathers) {
    uint32_t unit = layout.gatherUnits[call.begin];
    trimmed.units[unit][call.phase] = best->exact.units[unit][call.phase];
  }
  for (const Layout::Call &call : layout.reductions) {
    uint32_t unit = layout.reductionUnits[call.begin];
    trimmed.units[unit].reduction = best->exact.units[unit].reduction;
  }
  for (auto call = layout.gathers.rbegin(); call != layout.gathers.rend();
       ++call)
    lower(trimmed.units[layout.gatherUnits[call->begin]][call->phase].ahead);
  for (const Layout::Call &call : layout.reductions)
    lower(trimmed.units[layout.reductionUnits[call.begin]].reduction.wait);
  for (uint32_t module : modules)
    for (Recompute less : {Recompute::None, Recompute::Cheap}) {
      if (trimmed.recompute[module] == Recompute::None ||
          trimmed.recompute[module] == less ||
          size_t(less) >= numStates[module])
        break;
      ProgramDecisions before = trimmed;
      setRecompute(trimmed, module, less);
      if (isAsFast())
        break;
      trimmed = std::move(before);
    }
  best->exact = std::move(trimmed);
  best->outcome = evaluator.evaluate(best->exact, resident);
}
