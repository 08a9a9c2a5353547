//===- Layout.cpp - From decisions to places ------------------------------===//
//
// One walk along the computations finds slots, uses and calls; calls are placed
// when all uses are known.
//
//===----------------------------------------------------------------------===//

#include "Layout.h"

#include <algorithm>
#include <utility>

using namespace fsdp::planner;

Layout::Layout(const StepModel &model, const Program &program)
    : model(model), program(program), forwardGroup(program.ops.size(), nobody),
      backwardBegin(program.ops.size(), nobody),
      backwardEnd(program.ops.size(), nobody),
      completes(program.ops.size(), false) {
  for (uint32_t g = 0; g != program.groups.size(); ++g) {
    const RecomputeGroup &group = program.groups[g];
    for (uint32_t op = group.forwardBegin; op != group.forwardEnd; ++op)
      forwardGroup[op] = g;
    backwardBegin[group.backwardBegin] = g;
    backwardEnd[group.backwardEnd - 1] = g;
  }
  std::vector<uint8_t> isComplete(model.units.size(), false);
  for (size_t op = program.ops.size(); op-- != 0;)
    if (uint32_t unit = program.ops[op].gradient; unit != nobody)
      completes[op] = !std::exchange(isComplete[unit], true);
}

//===----------------------------------------------------------------------===//
// The walk
//===----------------------------------------------------------------------===//

bool Layout::isGathered(uint32_t unit, Phase phase) const {
  if (startsResident(unit))
    return false;
  bool isThere = phase == Phase::Backward && uses[unit].first[0] != nobody;
  return !isThere || !(decisions->units[unit].keep || isResident(unit));
}

uint32_t Layout::getEnd(uint32_t unit, Phase phase) const {
  if (isResident(unit) && program.role != Program::Role::Last)
    return nobody;
  const Use &use = uses[unit];
  bool isKept = decisions->units[unit].keep || isResident(unit);
  return phase == Phase::Backward || (isKept && use.last[1] != nobody)
             ? use.last[1]
             : use.last[0];
}

void Layout::addUse(uint32_t unit, Phase phase, uint32_t place) {
  Use &use = uses[unit];
  use.last[size_t(phase)] = place;
  if (use.first[size_t(phase)] != nobody)
    return;
  use.first[size_t(phase)] = place;
  addSlot(place);
  if (!isGathered(unit, phase))
    return;
  bool joins = decisions->units[unit][phase].joins && !gathers.empty() &&
               gathers.back().phase == phase;
  uint32_t begin = uint32_t(gatherUnits.size());
  if (!joins)
    gathers.push_back({begin, begin, uint32_t(slots.size()) - 1, place, place,
                       0, phase, 0, 0, 0});
  gatherUnits.push_back(unit);
  ++gathers.back().end;
}

void Layout::addReduction(uint32_t unit, uint32_t place) {
  addSlot(place);
  bool isOpen = !std::exchange(isClosed, false) && !reductions.empty();
  bool joins = isOpen && decisions->units[unit].reduction.joins;
  uint32_t begin = uint32_t(reductionUnits.size());
  if (!joins)
    reductions.push_back(
        {begin, begin, 0, 0, 0, nobody, Phase::Backward, 0, 0, 0});
  reductionUnits.push_back(unit);
  Call &call = reductions.back();
  ++call.end;
  call.slot = uint32_t(slots.size()) - 1;
  call.launch = call.wait = place;
}

void Layout::emit(const ComputeOp &op, uint32_t index, bool isReplay) {
  auto place = uint32_t(steps.size());
  if (op.weights != nobody)
    addUse(op.weights, isReplay ? Phase::Backward : op.phase, place);
  Step step = {op.duration, std::max<int64_t>(op.change, 0), op.transient,
               std::max<int64_t>(-op.change, 0)};
  auto isRecomputed = [&](uint32_t group) {
    return group != nobody &&
           decisions->recompute[program.groups[group].module];
  };
  if (isReplay) {
    steps.push_back(step);
    return;
  }
  if (uint32_t group = forwardGroup[index]; isRecomputed(group)) {
    step.transient += step.takes;
    step.takes = step.frees = 0;
    if (index + 1 == program.groups[group].forwardEnd)
      step.takes = program.groups[group].keptBytes;
  }
  if (uint32_t group = backwardEnd[index]; isRecomputed(group))
    step.frees += program.groups[group].keptBytes;
  steps.push_back(step);
  if (op.update != nobody) {
    isClosed = true;
    if (uses[op.update].update == nobody)
      uses[op.update].update = place;
  }
  if (op.gradient == nobody)
    return;
  if (uses[op.gradient].gradient == nobody)
    uses[op.gradient].gradient = place;
  if (completes[index])
    addReduction(op.gradient, place + 1);
}

void Layout::build(const ProgramDecisions &newDecisions,
                   const std::vector<uint8_t> &newResident, bool lean) {
  decisions = &newDecisions;
  resident = &newResident;
  steps.clear();
  slots.clear();
  gathers.clear();
  reductions.clear();
  gatherUnits.clear();
  reductionUnits.clear();
  uses.assign(model.units.size(), {});
  isClosed = false;
  addSlot(0);
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    if (uint32_t group = backwardBegin[i];
        group != nobody && decisions->recompute[program.groups[group].module])
      for (uint32_t op : program.groups[group].replayed)
        emit(program.ops[op], op, true);
    emit(program.ops[i], i, false);
  }
  placeCalls(lean);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

static void add(CollectiveCost &sum, const CollectiveCost &cost) {
  sum.latency = std::max(sum.latency, cost.latency);
  sum.transfer += cost.transfer;
}

void Layout::placeCalls(bool lean) {
  uint32_t before = 0;
  for (Call &call : gathers) {
    CollectiveCost cost;
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = gatherUnits[i];
      add(cost, model.units[unit].gather);
      call.bytes +=
          model.units[unit].gatheredBytes + model.units[unit].sentBytes;
      // Not before what the forward had of it ends.
      if (uint32_t last = uses[unit].last[0];
          call.phase == Phase::Backward && last != nobody)
        call.bound = std::max(call.bound, last + 1);
    }
    call.duration = getDuration(cost);
    uint32_t ahead =
        decisions->units[gatherUnits[call.begin]][call.phase].ahead;
    if (!lean)
      call.launch =
          std::max(slots[call.slot - std::min(call.slot, ahead)], call.bound);
    call.launch = before = std::max(before, call.launch);
  }
  for (Call &call : reductions) {
    CollectiveCost cost, all;
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = reductionUnits[i];
      add(cost, model.units[unit].reduction);
      add(all, model.units[unit].allReduce);
      call.bytes += model.units[unit].gradientBytes;
      call.bound = std::min(call.bound, uses[unit].update);
    }
    call.duration = getDuration(cost);
    call.allReduce = getDuration(all);
    size_t wait = decisions->units[reductionUnits[call.begin]].reduction.wait;
    if (!lean)
      call.wait = std::min(getPlace(call.slot + wait), call.bound);
  }
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

int64_t Layout::findMemory() {
  size_t count = steps.size();
  atPlace.assign(count + 1, 0);
  afterWaits.assign(count + 1, 0);
  int64_t alive = 0;
  for (uint32_t unit = 0; unit != model.units.size(); ++unit)
    if (startsResident(unit)) {
      int64_t bytes = model.units[unit].gatheredBytes;
      alive += bytes;
      const Use &use = uses[unit];
      if (uint32_t end = use.last[1] != nobody ? use.last[1] : use.last[0];
          program.role == Program::Role::Last && end != nobody)
        atPlace[end + 1] -= bytes;
    }
  for (const Call &call : gathers)
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = gatherUnits[i];
      const Unit &own = model.units[unit];
      atPlace[call.launch] += own.gatheredBytes + own.sentBytes;
      afterWaits[uses[unit].first[size_t(call.phase)]] -= own.sentBytes;
      if (uint32_t end = getEnd(unit, call.phase); end != nobody)
        atPlace[end + 1] -= own.gatheredBytes;
    }
  for (const Call &call : reductions)
    for (uint32_t i = call.begin; i != call.end; ++i) {
      const Unit &own = model.units[reductionUnits[i]];
      afterWaits[uses[reductionUnits[i]].gradient] += own.gradientBytes;
      atPlace[call.launch] += own.reducedBytes;
      (call.wait > call.launch ? atPlace : afterWaits)[call.wait] -=
          own.gradientBytes;
    }
  boundary.resize(count + 1);
  inside.resize(count + 1);
  int64_t most = 0;
  for (size_t place = 0; place != count; ++place) {
    const Step &step = steps[place];
    alive += atPlace[place];
    boundary[place] = alive;
    most = std::max(most, alive);
    alive += afterWaits[place] + step.takes;
    inside[place] = alive + step.transient;
    most = std::max(most, inside[place]);
    alive -= step.frees;
  }
  boundary[count] = alive + atPlace[count];
  inside[count] = 0;
  return std::max(most, boundary[count]);
}
