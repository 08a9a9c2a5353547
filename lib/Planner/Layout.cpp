//===- Layout.cpp - From decisions to places ------------------------------===//
//
// One walk along the computations finds slots, uses and calls; calls are placed
// when all uses are known.
//
//===----------------------------------------------------------------------===//

#include "Layout.h"

#include "fsdp/Planner/Placement.h"

#include <algorithm>
#include <utility>

using namespace fsdp::planner;

Layout::Layout(const StepModel &model, const Program &program)
    : model(model), program(program), completes(program.ops.size(), false) {
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
  return !isThere || !isKept(unit);
}

uint32_t Layout::getEnd(uint32_t unit, Phase phase) const {
  if (isResident(unit) && program.role != Program::Role::Last)
    return nobody;
  const Use &use = uses[unit];
  return phase == Phase::Backward || (isKept(unit) && use.last[1] != nobody)
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
               gathers.back().phase == phase &&
               program.traffic[gatherUnits.back()].gatherGroup ==
                   program.traffic[unit].gatherGroup;
  uint32_t begin = uint32_t(gatherUnits.size());
  if (!joins)
    gathers.push_back(
        {begin, begin, uint32_t(slots.size()) - 1, place, place, 0, phase, 0});
  gatherUnits.push_back(unit);
  ++gathers.back().end;
}

/// A call is over one group.
static bool areReducedAlike(const Traffic &a, const Traffic &b) {
  return a.isReduced == b.isReduced && a.isAllReduced == b.isAllReduced &&
         (!a.isReduced || a.reduceGroup == b.reduceGroup) &&
         (!a.isAllReduced || a.allReduceGroup == b.allReduceGroup);
}

void Layout::addReduction(uint32_t unit, uint32_t place) {
  addSlot(place);
  bool isOpen = !std::exchange(isClosed, false) && !reductions.empty();
  bool joins = isOpen && decisions->units[unit].reduction.joins &&
               areReducedAlike(program.traffic[reductionUnits.back()],
                               program.traffic[unit]);
  uint32_t begin = uint32_t(reductionUnits.size());
  if (!joins)
    reductions.push_back({begin, begin, 0, 0, 0, nobody, Phase::Backward, 0});
  reductionUnits.push_back(unit);
  Call &call = reductions.back();
  ++call.end;
  call.slot = uint32_t(slots.size()) - 1;
  call.launch = call.wait = place;
}

void Layout::emit(const ComputeOp &op, uint32_t index) {
  auto place = uint32_t(steps.size());
  if (op.weights != nobody)
    addUse(op.weights, op.phase, place);
  steps.push_back({index, std::max<int64_t>(op.change, 0), op.transient,
                   std::max<int64_t>(-op.change, 0), op.launches, op.awaits});
  if (op.launches != nobody || op.awaits != nobody)
    fixedPlaces.push_back(place);
  if (op.update != nobody) {
    isClosed = true;
    Use &use = uses[op.update];
    use.lastUpdate = place;
    if (use.update == nobody)
      use.update = place;
  }
  if (op.gradient == nobody)
    return;
  if (uses[op.gradient].gradient == nobody)
    uses[op.gradient].gradient = place;
  if (completes[index])
    addReduction(op.gradient, place + 1);
}

void Layout::addLives() {
  for (const Life &life : program.lives) {
    if (!isThere(life.begin))
      continue;
    uint32_t end = placeOf[life.end];
    for (const Life::Read &read : life.reads)
      if (bool(decisions->recompute[read.module]) == read.ifRecomputed)
        end = std::max(end, placeOf[read.op]);
    steps[placeOf[life.begin]].takes += life.bytes;
    steps[end].frees += life.bytes;
  }
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
  fixedPlaces.clear();
  uses.assign(model.units.size(), {});
  isClosed = false;
  addSlot(0);
  placeOf.resize(program.ops.size());
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    placeOf[i] = uint32_t(steps.size());
    if (isThere(i))
      emit(program.ops[i], i);
  }
  addLives();
  placeCalls(lean);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

void Layout::placeCalls(bool lean) {
  uint32_t before = 0;
  for (Call &call : gathers) {
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = gatherUnits[i];
      const Traffic &own = program.traffic[unit];
      call.bytes += own.gatheredBytes + own.sentBytes;
      // Not before what the forward had of it ends.
      if (uint32_t last = uses[unit].last[0];
          call.phase == Phase::Backward && last != nobody)
        call.bound = std::max(call.bound, last + 1);
    }
    uint32_t ahead =
        decisions->units[gatherUnits[call.begin]][call.phase].ahead;
    if (!lean)
      call.launch =
          std::max(slots[call.slot - std::min(call.slot, ahead)], call.bound);
    call.launch = before = std::max(before, call.launch);
  }
  // Who waits for a reduction has waited for those before it.
  uint32_t next = nobody;
  for (size_t number = reductions.size(); number-- != 0;) {
    Call &call = reductions[number];
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = reductionUnits[i];
      const Traffic &own = program.traffic[unit];
      call.bytes += own.castBytes + (own.isCast ? 0 : own.gradientBytes);
      call.bound = std::min(call.bound, uses[unit].update);
    }
    size_t wait = decisions->units[reductionUnits[call.begin]].reduction.wait;
    if (!lean)
      call.wait = std::min({getPlace(call.slot + wait), call.bound, next});
    next = call.wait;
  }
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

int64_t Layout::findMemory() {
  size_t count = steps.size();
  changes.assign(count + 1, {});
  int64_t alive = 0;
  for (uint32_t unit = 0; unit != model.units.size(); ++unit)
    if (startsResident(unit)) {
      int64_t bytes = program.traffic[unit].gatheredBytes;
      alive += bytes;
      const Use &use = uses[unit];
      if (uint32_t end = use.last[1] != nobody ? use.last[1] : use.last[0];
          program.role == Program::Role::Last && end != nobody)
        changes[end + 1].frees += bytes;
    }
  for (const Call &call : gathers)
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = gatherUnits[i];
      const Traffic &own = program.traffic[unit];
      changes[call.launch].gathers += own.gatheredBytes + own.sentBytes;
      changes[call.wait].awaits += own.sentBytes;
      if (uint32_t end = getEnd(unit, call.phase); end != nobody)
        changes[end + 1].frees += own.gatheredBytes;
    }
  for (const Call &call : reductions) {
    Change &launch = changes[call.launch];
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = reductionUnits[i];
      const Traffic &own = program.traffic[unit];
      changes[uses[unit].gradient].begins += own.gradientBytes;
      launch.reduces += own.castBytes + own.reducedBytes + own.resultBytes;
      launch.drops += own.isCast ? own.gradientBytes : 0;
      if (uint32_t end = uses[unit].lastUpdate; end != nobody)
        changes[end + 1].frees += own.resultBytes;
    }
    Change &wait = changes[call.wait];
    (call.wait > call.launch ? wait.frees : wait.awaits) += call.bytes;
  }
  launching.resize(count + 1);
  boundary.resize(count + 1);
  inside.resize(count + 1);
  const Step end = {};
  for (size_t place = 0; place <= count; ++place) {
    const Step &step = place != count ? steps[place] : end;
    const Change &change = changes[place];
    alive += change.reduces - change.frees;
    launching[place] = alive;
    alive += change.gathers - change.drops;
    boundary[place] = alive;
    alive += change.begins - change.awaits + step.takes;
    inside[place] = place != count ? alive + step.transient : 0;
    alive -= step.frees;
  }
  return findMost();
}

int64_t Layout::findMost() const {
  int64_t most = 0;
  for (size_t place = 0; place != boundary.size(); ++place)
    most = std::max({most, launching[place], boundary[place], inside[place]});
  return most;
}

Placement fsdp::planner::place(const StepModel &model, size_t program,
                               const Decisions &decisions) {
  Layout layout(model, model.programs[program]);
  layout.build(decisions.programs[program], decisions.resident);
  Placement placement;
  for (uint32_t op = 0; op != layout.placeOf.size(); ++op)
    if (layout.isThere(op))
      placement.ops.push_back(op);
  auto convert = [](const std::vector<Layout::Call> &calls,
                    const std::vector<uint32_t> &units) {
    std::vector<Placement::Call> converted;
    for (const Layout::Call &call : calls)
      converted.push_back(
          {call.phase,
           {units.begin() + call.begin, units.begin() + call.end},
           call.launch,
           call.wait});
    return converted;
  };
  placement.gathers = convert(layout.gathers, layout.gatherUnits);
  placement.reductions = convert(layout.reductions, layout.reductionUnits);
  return placement;
}
