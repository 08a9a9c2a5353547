//===- Layout.cpp - From decisions to places ------------------------------===//
//
// First uses and complete gradients, in their order, make calls; then these are
// placed.
//
//===----------------------------------------------------------------------===//

#include "Layout.h"

#include "fsdp/Planner/Placement.h"

#include <algorithm>

using namespace fsdp::planner;

/// True if some groups of units take turns.
static bool takeTurns(const StepModel &model, const Program &program) {
  if (model.overlaps.empty())
    return false;
  std::vector<uint8_t> isUsed(model.overlaps.size(), false);
  for (const Traffic &own : program.traffic) {
    isUsed[own.gatherGroup] = true;
    if (own.piece.bytes)
      isUsed[own.piece.group] = true;
    if (own.isReduced)
      isUsed[own.reduceGroup] = true;
    if (own.isAllReduced)
      isUsed[own.allReduceGroup] = true;
  }
  for (size_t a = 0; a != isUsed.size(); ++a)
    for (size_t b = 0; b != isUsed.size(); ++b)
      if (isUsed[a] && isUsed[b] && model.overlaps[a][b])
        return true;
  return false;
}

/// Whether a wait may say something about other launches: units take turns,
/// gathers take copies, or fixed calls stand where units have something in
/// flight. That of a loss does not: it is launched before all reductions, and
/// waited for after all gathers.
static bool mayKnowOthers(const StepModel &model, const Program &program) {
  bool isCopiedIn = false, isCopiedOut = false;
  for (const Traffic &own : program.traffic) {
    isCopiedIn |= own.copyIn.has_value();
    isCopiedOut |= own.copyOut.has_value();
  }
  if ((isCopiedIn && isCopiedOut) || takeTurns(model, program))
    return true;
  bool isAfterGradient = false, isAwaited = false;
  for (const ComputeOp &op : program.ops) {
    if (isAwaited && op.weights != nobody)
      return true;
    isAfterGradient |= op.gradient != nobody;
    if (isAfterGradient && op.launches != nobody)
      return true;
    isAwaited |= op.awaits != nobody;
  }
  return false;
}

Layout::Layout(const StepModel &model, const Program &program,
               const std::vector<Scenario> &scenarios)
    : model(model), program(program), endsEarly(mayKnowOthers(model, program)),
      maker(model, program, scenarios) {}

/// A search goes back and forth between sets of recomputed modules that differ
/// by one or two.
void Layout::findOrder() {
  constexpr size_t mostOrders = 32;
  auto found =
      std::find_if(orders.begin(), orders.end(), [&](const Order &own) {
        return own.recompute == decisions->recompute;
      });
  bool isNew = found == orders.end();
  if (isNew)
    found =
        orders.size() < mostOrders ? orders.emplace(found) : std::prev(found);
  orders.splice(orders.begin(), orders, found);
  if (isNew)
    maker.make(decisions->recompute, orders.front());
}

void Layout::build(const ProgramDecisions &newDecisions,
                   const std::vector<uint8_t> &newResident, bool lean) {
  decisions = &newDecisions;
  resident = &newResident;
  gathers.clear();
  reductions.clear();
  gatherUnits.clear();
  reductionUnits.clear();
  pieces.clear();
  findOrder();
  for (const Order::FirstUse &use : getOrder().firstUses)
    addGather(use);
  for (const Order::Completion &completion : getOrder().completions)
    addReduction(completion);
  std::sort(pieces.begin(), pieces.end(),
            [](const Kept &a, const Kept &b) { return a.stretch < b.stretch; });
  placeGathers(lean);
  placeReductions(lean);
  findEnds();
}

uint32_t Layout::getEnd(uint32_t unit, Phase phase) const {
  const Order::Use &use = getOrder().uses[unit];
  return phase == Phase::Backward || (isKept(unit) && use.last[1] != nobody)
             ? use.last[1]
             : use.last[0];
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// A call is over one group, and from one memory to one.
static bool areGatheredAlike(const Traffic &a, const Traffic &b,
                             bool areOfPieces) {
  if (areOfPieces)
    return a.piece.group == b.piece.group;
  return a.gatherGroup == b.gatherGroup &&
         a.copyIn.has_value() == b.copyIn.has_value();
}

void Layout::addGather(const Order::FirstUse &use) {
  auto [unit, phase, isAgain, slot] = use;
  if (startsResident(unit) || (isAgain && isKept(unit)))
    return;
  bool isOfPiece = isAgain && decisions->units[unit].keep == Keep::Piece &&
                   program.traffic[unit].piece.bytes;
  if (isOfPiece)
    pieces.push_back({getOrder().uses[unit].last[0], unit});
  bool joins = decisions->units[unit][phase].joins && !gathers.empty() &&
               gathers.back().phase == phase &&
               gathers.back().isOfPieces == isOfPiece &&
               areGatheredAlike(program.traffic[gatherUnits.back()],
                                program.traffic[unit], isOfPiece);
  uint32_t begin = uint32_t(gatherUnits.size());
  uint32_t place = getOrder().slots[slot];
  if (!joins)
    gathers.push_back(
        {begin, begin, slot, place, place, 0, phase, isOfPiece, 0, {}});
  gatherUnits.push_back(unit);
  ++gathers.back().end;
}

static bool areReducedAlike(const Traffic &a, const Traffic &b) {
  return a.isReduced == b.isReduced && a.isAllReduced == b.isAllReduced &&
         a.copyOut.has_value() == b.copyOut.has_value() &&
         (!a.isReduced || a.reduceGroup == b.reduceGroup) &&
         (!a.isAllReduced || a.allReduceGroup == b.allReduceGroup);
}

void Layout::addReduction(const Order::Completion &completion) {
  auto [unit, isClosed, slot] = completion;
  bool joins = !isClosed && !reductions.empty() &&
               decisions->units[unit].reduction.joins &&
               areReducedAlike(program.traffic[reductionUnits.back()],
                               program.traffic[unit]);
  uint32_t begin = uint32_t(reductionUnits.size());
  if (!joins)
    reductions.push_back(
        {begin, begin, 0, 0, 0, nobody, Phase::Backward, false, 0, {}});
  reductionUnits.push_back(unit);
  Call &call = reductions.back();
  ++call.end;
  call.slot = slot;
  call.launch = call.wait = getOrder().slots[slot];
}

void Layout::placeGathers(bool lean) {
  const Order &order = getOrder();
  uint32_t before = 0;
  for (Call &call : gathers) {
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = gatherUnits[i];
      call.bytes += getGatheredBytes(unit) + getSentBytes(call, unit);
      // Not before what the forward had of it ends.
      if (uint32_t last = order.uses[unit].last[0];
          call.phase == Phase::Backward && last != nobody)
        call.bound = std::max(call.bound, last + 1);
    }
    uint32_t ahead =
        decisions->units[gatherUnits[call.begin]][call.phase].ahead;
    if (!lean)
      call.launch = std::max(
          order.slots[call.slot - std::min(call.slot, ahead)], call.bound);
    call.launch = before = std::max(before, call.launch);
  }
}

/// Who waits for a reduction has waited for those before it.
void Layout::placeReductions(bool lean) {
  const Order &order = getOrder();
  uint32_t next = nobody;
  for (size_t number = reductions.size(); number-- != 0;) {
    Call &call = reductions[number];
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = reductionUnits[i];
      const Traffic &own = program.traffic[unit];
      call.bytes += own.getHeldBytes() + (own.isCast ? 0 : own.gradientBytes);
      call.bound = std::min(call.bound, order.uses[unit].update);
    }
    size_t wait = decisions->units[reductionUnits[call.begin]].reduction.wait;
    if (!lean)
      call.wait =
          std::min({order.getPlace(call.slot + wait), call.bound, next});
    next = call.wait;
  }
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// What ends with a stretch has ended at the next place.
void Layout::addChanges() {
  const Order &order = getOrder();
  changes.assign(order.stretches.size() + 1, {});
  auto end = [&](const Call &call, Stream stream, int64_t bytes) {
    End own = call.ends[size_t(stream)];
    Change &change = changes[own.place];
    (own.isLate ? change.awaits : change.frees) += bytes;
  };
  for (const Call &call : gathers)
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = gatherUnits[i];
      int64_t sent = getSentBytes(call, unit);
      changes[call.launch].gathers += getGatheredBytes(unit) + sent;
      changes[getEnd(unit, call.phase) + 1].frees += getGatheredBytes(unit);
      if (call.isOfPieces) { // which lies there already
        sent = program.traffic[unit].piece.bytes;
        changes[order.uses[unit].last[0] + 1].keeps += sent;
      }
      end(call, Stream::Gather, sent);
    }
  for (const Call &call : reductions) {
    Change &launch = changes[call.launch];
    for (uint32_t i = call.begin; i != call.end; ++i) {
      uint32_t unit = reductionUnits[i];
      const Traffic &own = program.traffic[unit];
      changes[order.uses[unit].gradient].begins += own.gradientBytes;
      launch.reduces += own.getHeldBytes() + own.reducedBytes + own.resultBytes;
      if (own.isCast)
        launch.drops += own.gradientBytes;
      else
        end(call, own.isReduced ? Stream::Reduce : Stream::AllReduce,
            own.gradientBytes);
      for (Stream stream : {Stream::Reduce, Stream::AllReduce, Stream::Copy})
        end(call, stream, own.heldBytes[size_t(stream)]);
      if (uint32_t last = order.uses[unit].lastUpdate; last != nobody)
        changes[last + 1].frees += own.resultBytes;
    }
  }
}

int64_t Layout::findMemory() {
  addChanges();
  size_t count = getOrder().stretches.size();
  launching.resize(count + 1);
  boundary.resize(count + 1);
  inside.resize(count + 1);
  int64_t alive = 0;
  for (uint32_t unit = 0; unit != model.units.size(); ++unit)
    if ((*resident)[unit]) // also of programs that gather it themselves
      alive += model.units[unit].residentBytes;
  for (size_t place = 0; place <= count; ++place) {
    const Change &change = changes[place];
    alive += change.keeps;
    if (change.keeps) // what is kept a piece of is still there
      inside[place - 1] = std::max(inside[place - 1], alive);
    alive += change.reduces - change.frees;
    launching[place] = alive;
    alive += change.gathers - change.drops;
    boundary[place] = alive;
    inside[place] = 0;
    if (place == count)
      break;
    const Order::Stretch &stretch = getOrder().stretches[place];
    alive += change.begins - change.awaits;
    inside[place] = alive + stretch.most;
    alive += stretch.change;
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
  const Order &order = layout.getOrder();
  Placement placement;
  placement.ops = order.ops;
  auto convert = [&](const std::vector<Layout::Call> &calls,
                     const std::vector<uint32_t> &units) {
    std::vector<Placement::Call> converted;
    for (const Layout::Call &call : calls)
      converted.push_back(
          {call.phase,
           {units.begin() + call.begin, units.begin() + call.end},
           order.getBegin(call.launch),
           order.getBegin(call.wait)});
    return converted;
  };
  placement.gathers = convert(layout.gathers, layout.gatherUnits);
  placement.reductions = convert(layout.reductions, layout.reductionUnits);
  return placement;
}
