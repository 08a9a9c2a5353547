//===- Baselines.cpp - What others decide ---------------------------------===//
//
// A policy says how many calls ahead a gather is launched. That is a number of
// slots as soon as it is known which units are gathered, and in which calls.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Baselines.h"

#include "Layout.h"

#include <algorithm>

using namespace fsdp::planner;

const char *fsdp::planner::getName(Policy policy) {
  switch (policy) {
  case Policy::NoOverlap:
    return "no-overlap";
  case Policy::Fsdp1:
    return "fsdp1";
  case Policy::Fsdp2:
    return "fsdp2";
  case Policy::ManualBlock:
    return "manual-block";
  }
  return "";
}

static uint16_t toSlots(size_t count) {
  return uint16_t(std::min<size_t>(count, mostSlots));
}

void fsdp::planner::applyPolicy(const StepModel &model, size_t program,
                                Policy policy, ProgramDecisions &decisions,
                                const std::vector<uint8_t> &resident) {
  Layout layout(model, model.programs[program]);
  layout.build(decisions, resident);
  for (size_t i = 0; i != layout.gathers.size(); ++i) {
    const Layout::Call &call = layout.gathers[i];
    size_t calls = policy == Policy::NoOverlap ? 0
                   : policy == Policy::Fsdp2 && call.phase == Phase::Forward
                       ? 2
                       : 1;
    uint32_t slot = i >= calls ? layout.gathers[i - calls].slot : 0;
    // Nothing holds what is within a limit, while the host runs ahead.
    if (policy == Policy::ManualBlock && i < calls)
      slot = call.slot;
    decisions.units[layout.gatherUnits[call.begin]][call.phase].ahead =
        toSlots(call.slot - slot);
  }
  for (size_t i = 0; i != layout.reductions.size(); ++i) {
    const Layout::Call &call = layout.reductions[i];
    size_t slots = mostSlots;
    if (i + 1 != layout.reductions.size())
      slots = layout.reductions[i + 1].slot - call.slot;
    decisions.units[layout.reductionUnits[call.begin]].reduction.wait =
        policy == Policy::NoOverlap ? 0 : toSlots(slots);
  }
}

Decisions fsdp::planner::makeBaseline(const StepModel &model, Policy policy,
                                      bool keep, bool recompute) {
  Decisions decisions = makeDecisions(model);
  for (size_t p = 0; p != model.programs.size(); ++p) {
    ProgramDecisions &own = decisions.programs[p];
    std::fill(own.recompute.begin(), own.recompute.end(), recompute);
    for (size_t u = 0; u != model.units.size(); ++u)
      own.units[u].keep = keep || model.units[u].module == nobody;
    // The order of uses says who follows whom; each is a call of its own yet.
    Layout layout(model, model.programs[p]);
    layout.build(own, decisions.resident);
    auto isSame = [&](uint32_t a, uint32_t b) {
      return model.units[a].module == model.units[b].module &&
             model.units[a].module != nobody;
    };
    for (size_t i = 1; i < layout.gatherUnits.size(); ++i) {
      uint32_t unit = layout.gatherUnits[i];
      own.units[unit][layout.gathers[i].phase].joins =
          isSame(layout.gatherUnits[i - 1], unit);
    }
    for (size_t i = 1; i < layout.reductionUnits.size(); ++i)
      own.units[layout.reductionUnits[i]].reduction.joins =
          isSame(layout.reductionUnits[i - 1], layout.reductionUnits[i]);
    applyPolicy(model, p, policy, own, decisions.resident);
  }
  return decisions;
}
