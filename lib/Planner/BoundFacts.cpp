//===- BoundFacts.cpp - What bounds are computed from ---------------------===//

#include "BoundFacts.h"

#include <algorithm>
#include <functional>

using namespace fsdp::planner;

BoundFacts::BoundFacts(const StepModel &model, const Program &program)
    : model(model), program(program),
      room(model.budget - model.persistentBytes),
      mayStartGathered(program.role == Program::Role::Middle ||
                       program.role == Program::Role::Last),
      compute(1, 0), replays(1, 0), uses(model.units.size()) {
  phi[0] = model.sharesCore ? 1 : model.contention;
  phi[1] = model.sharesCore ? 1 : 1024 + model.contention;
  isExact = true;
  for (const Unit &unit : model.units)
    for (const CollectiveCost &cost :
         {unit.gather, unit.reduction, unit.allReduce})
      isExact &= cost.latency % 1000 == 0 && cost.transfer % 1000 == 0;
  for (const ComputeOp &op : program.ops)
    compute.push_back(compute.back() + op.duration);
  for (const RecomputeGroup &group : program.groups)
    replays.push_back(getReplay(group));
  std::sort(replays.begin() + 1, replays.end());
  for (size_t r = 1; r < replays.size(); ++r)
    replays[r] += replays[r - 1];
  findUses();
  findMemory();
  findExposed();
}

int64_t BoundFacts::getReplay(const RecomputeGroup &group) const {
  int64_t time = 0;
  for (uint32_t op : group.replayed)
    time += program.ops[op].duration;
  return time;
}

void BoundFacts::findUses() {
  std::vector<uint32_t> completes(program.ops.size(), nobody);
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    const ComputeOp &op = program.ops[i];
    if (op.weights != nobody) {
      Use &use = uses[op.weights];
      auto phase = size_t(op.phase);
      if (use.first[phase] == nobody) {
        use.first[phase] = i;
        if (op.phase == Phase::Forward)
          gathered.push_back(op.weights);
      }
      use.last[phase] = i;
    }
    if (op.gradient != nobody) {
      Use &use = uses[op.gradient];
      if (use.gradient == nobody)
        use.gradient = i;
      use.complete = i;
    }
    if (op.update != nobody && uses[op.update].update == nobody)
      uses[op.update].update = i;
  }
  for (uint32_t unit = 0; unit != uses.size(); ++unit)
    if (uses[unit].complete != nobody)
      completes[uses[unit].complete] = unit;
  for (uint32_t unit : completes)
    if (unit != nobody)
      reduced.push_back(unit);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// What a module saves at a computation if it is recomputed.
int64_t BoundFacts::getSaving(const RecomputeGroup &group, size_t op) const {
  if (op < group.forwardBegin || op >= group.backwardBegin)
    return 0;
  int64_t saved = op >= group.forwardEnd ? -group.keptBytes : 0;
  for (size_t i = group.forwardBegin;
       i != std::min<size_t>(op, group.forwardEnd); ++i)
    saved += program.ops[i].change;
  return std::max<int64_t>(saved, 0);
}

BoundFacts::Cut BoundFacts::makeCut(size_t op) const {
  Cut cut = {op, {}, inUse[op], true, {}, {}};
  std::vector<int64_t> savings;
  for (const RecomputeGroup &group : program.groups) {
    savings.push_back(getSaving(group, op));
    cut.isBeforeReplays &= op < group.backwardBegin;
  }
  std::sort(savings.begin(), savings.end(), std::greater<int64_t>());
  cut.mandatory.push_back(mandatory[op]);
  for (int64_t saving : savings)
    cut.mandatory.push_back(cut.mandatory.back() - saving);
  auto isIn = [&](const Use &use, size_t phase) {
    return use.first[phase] != nobody && use.first[phase] <= op &&
           op <= use.last[phase];
  };
  auto isLater = [&](const Use &use, size_t phase) {
    return use.first[phase] != nobody && use.first[phase] > op;
  };
  for (uint32_t unit = 0; unit != uses.size(); ++unit) {
    const Use &use = uses[unit];
    bool isThere = isIn(use, 0) || isIn(use, 1);
    bool isAfter = isLater(use, 0) || isLater(use, 1);
    if (isAfter && !isThere)
      cut.after.push_back(unit);
    // One that is there from the start need not be there now, in the last.
    bool isAvoidable =
        mayStartGathered &&
        (isThere || (program.role == Program::Role::Last && !isAfter));
    if (use.first[0] != nobody && use.first[0] <= op && !isAvoidable)
      cut.before.push_back(unit);
  }
  auto isBetter = [&](uint32_t a, uint32_t b) {
    const Unit &left = model.units[a], &right = model.units[b];
    double leftWorth =
        double(left.gather.transfer) * double(right.gatheredBytes);
    double rightWorth =
        double(right.gather.transfer) * double(left.gatheredBytes);
    return leftWorth != rightWorth ? leftWorth > rightWorth : a < b;
  };
  std::sort(cut.before.begin(), cut.before.end(), isBetter);
  std::sort(cut.after.begin(), cut.after.end(), isBetter);
  return cut;
}

void BoundFacts::findMemory() {
  size_t count = program.ops.size();
  mandatory.assign(count + 1, 0);
  inUse.assign(count + 1, 0);
  for (uint32_t unit = 0; unit != uses.size(); ++unit) {
    const Use &use = uses[unit];
    if (use.gradient != nobody) {
      mandatory[use.gradient] += model.units[unit].gradientBytes;
      mandatory[use.complete + 1] -= model.units[unit].gradientBytes;
    }
    for (size_t phase = 0; phase != numPhases; ++phase)
      if (use.first[phase] != nobody) {
        inUse[use.first[phase]] += model.units[unit].gatheredBytes;
        inUse[use.last[phase] + 1] -= model.units[unit].gatheredBytes;
      }
  }
  for (size_t i = 1; i < count; ++i) {
    mandatory[i] += mandatory[i - 1];
    inUse[i] += inUse[i - 1];
  }
  int64_t alive = 0;
  for (size_t i = 0; i != count; ++i) {
    const ComputeOp &op = program.ops[i];
    alive += std::max<int64_t>(op.change, 0);
    mandatory[i] += alive + op.transient;
    alive += std::min<int64_t>(op.change, 0);
  }
  leastMandatory = mandatory;
  for (const RecomputeGroup &group : program.groups)
    for (size_t op = group.forwardBegin; op != group.backwardBegin; ++op)
      if (op < group.forwardEnd)
        leastMandatory[op] -= getSaving(group, op);
  // The saving is the same from the end of a forward to its backward.
  std::vector<int64_t> change(count + 1, 0);
  for (const RecomputeGroup &group : program.groups)
    if (group.forwardEnd != group.backwardBegin) {
      int64_t saving = getSaving(group, group.forwardEnd);
      change[group.forwardEnd] -= saving;
      change[group.backwardBegin] += saving;
    }
  int64_t saved = 0;
  for (size_t i = 0; i != count; ++i)
    leastMandatory[i] += saved += change[i];

  // Where memory is largest, and where the forward meets the backward.
  auto findMost = [&](const std::vector<int64_t> &bytes) {
    size_t most = 0;
    for (size_t i = 0; i != count; ++i)
      if (bytes[i] + inUse[i] > bytes[most] + inUse[most])
        most = i;
    return most;
  };
  std::vector<size_t> ops;
  if (count)
    ops = {findMost(mandatory), findMost(leastMandatory)};
  for (size_t i = 0; i != count; ++i)
    if (program.ops[i].phase == Phase::Backward) {
      ops.push_back(i);
      if (i)
        ops.push_back(i - 1);
      break;
    }
  size_t firstReplay = count;
  for (const RecomputeGroup &group : program.groups)
    firstReplay = std::min<size_t>(firstReplay, group.backwardBegin);
  for (size_t part : {1, 2, 3}) // of the forward
    if (firstReplay && count)
      ops.push_back((firstReplay - 1) * part / 3);
  std::sort(ops.begin(), ops.end());
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  for (size_t op : ops)
    cuts.push_back(makeCut(op));
}

bool BoundFacts::fits(size_t r) const {
  for (const Cut &cut : cuts)
    if (cut.mandatory[r] + cut.inUse > room)
      return false;
  return true;
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

int64_t BoundFacts::toNanoseconds(int64_t picoseconds) const {
  int64_t rounded = isExact ? 0 : 500 * int64_t(model.units.size());
  return std::max<int64_t>(picoseconds - rounded, 0) / 1000;
}

int64_t BoundFacts::combine(int64_t gathers, int64_t reductions,
                            int64_t allReduces) const {
  if (model.sharesLink || model.sharesCore)
    return toNanoseconds(gathers) + toNanoseconds(reductions) +
           toNanoseconds(allReduces);
  return toNanoseconds(std::max({gathers, reductions, allReduces}));
}

/// One call for all of them: what no other calls are faster than.
template <typename GetCost>
static int64_t sumCosts(const StepModel &model,
                        const std::vector<uint32_t> &units, GetCost &&get) {
  int64_t latency = 0, transfer = 0;
  for (uint32_t unit : units) {
    const CollectiveCost &cost = get(model.units[unit]);
    latency = std::max(latency, cost.latency);
    transfer += cost.transfer;
  }
  return latency + transfer;
}

static const CollectiveCost &getGather(const Unit &unit) { return unit.gather; }
static const CollectiveCost &getReduction(const Unit &unit) {
  return unit.reduction;
}
static const CollectiveCost &getAllReduce(const Unit &unit) {
  return unit.allReduce;
}

int64_t BoundFacts::sumGathers() const {
  return mayStartGathered ? 0 : sumCosts(model, gathered, getGather);
}

int64_t BoundFacts::sumReductions() const {
  return sumCosts(model, reduced, getReduction);
}

int64_t BoundFacts::sumAllReduces() const {
  return sumCosts(model, reduced, getAllReduce);
}

std::pair<int64_t, int64_t> BoundFacts::sumReductionsFrom(size_t op) const {
  std::vector<uint32_t> units;
  for (uint32_t unit : reduced)
    if (uses[unit].complete >= op)
      units.push_back(unit);
  return {sumCosts(model, units, getReduction),
          sumCosts(model, units, getAllReduce)};
}

int64_t BoundFacts::sumGathers(const std::vector<uint32_t> &units,
                               int64_t roomLeft) const {
  int64_t transfer = 0;
  int64_t latency = std::numeric_limits<int64_t>::max();
  bool isAny = false;
  for (uint32_t number : units) {
    const Unit &unit = model.units[number];
    latency = std::min(latency, unit.gather.latency);
    if (unit.gatheredBytes <= roomLeft) {
      roomLeft -= unit.gatheredBytes;
      continue;
    }
    // A part of what fits in part, rounded so that more of it is there.
    double part = double(roomLeft) / double(unit.gatheredBytes);
    transfer += int64_t(double(unit.gather.transfer) * (1 - part) * (1 - 1e-9));
    roomLeft = 0;
    isAny = true;
  }
  return isAny ? latency + transfer : 0;
}

int64_t BoundFacts::findMoreLatency() const {
  if (mayStartGathered || gathered.empty())
    return 0;
  int64_t bytes = 0, least = std::numeric_limits<int64_t>::max();
  int64_t latency = least;
  for (uint32_t unit : gathered) {
    bytes += model.units[unit].gatheredBytes;
    least = std::min(least, leastMandatory[uses[unit].first[0]]);
    latency = std::min(latency, model.units[unit].gather.latency);
  }
  int64_t most = room - std::max<int64_t>(least, 0);
  return most <= 0 ? 0 : (bytes - 1) / most * latency;
}

int64_t BoundFacts::findHead(size_t op) const {
  if (mayStartGathered)
    return 0;
  int64_t latency = 0, transfer = 0, most = 0;
  for (uint32_t unit : gathered) {
    uint32_t first = uses[unit].first[0];
    if (first > op)
      break;
    latency = std::max(latency, model.units[unit].gather.latency);
    transfer += model.units[unit].gather.transfer;
    most = std::max(most, toNanoseconds(latency + transfer) - compute[first]);
  }
  return most;
}

int64_t BoundFacts::findTail(size_t begin, size_t r) const {
  if (reduced.empty())
    return 0;
  int64_t all = getDurationAlone(model.units[reduced.back()].allReduce);
  int64_t latency = 0, transfer = 0, most = 0, later = 0;
  size_t group = program.groups.size();
  for (size_t i = reduced.size(); i-- != 0;) {
    uint32_t complete = uses[reduced[i]].complete;
    if (complete < begin)
      break;
    // Replays behind it may run beside it.
    while (group && program.groups[group - 1].backwardBegin > complete)
      later += getReplay(program.groups[--group]);
    latency = std::max(latency, model.units[reduced[i]].reduction.latency);
    transfer += model.units[reduced[i]].reduction.transfer;
    most = std::max(most, compute[complete + 1] - compute[begin] +
                              std::max<int64_t>(replays[r] - later, 0) +
                              toNanoseconds(latency + transfer) + all +
                              lastUpdate);
  }
  return most;
}

int64_t BoundFacts::getDurationAlone(const CollectiveCost &cost) const {
  return toNanoseconds(cost.latency + cost.transfer);
}

void BoundFacts::findExposed() {
  auto slow = [&](int64_t time) {
    return time + (time * model.contention + 1023) / 1024;
  };
  if (!gathered.empty() && !mayStartGathered) {
    uint32_t unit = gathered.front();
    head = std::max<int64_t>(getDurationAlone(model.units[unit].gather) -
                                 slow(compute[uses[unit].first[0]]),
                             0);
  }
  if (reduced.empty())
    return;
  const Use &use = uses[reduced.back()];
  for (const Use &other : uses)
    for (uint32_t first : other.first)
      endsReduced &= first == nobody || first <= use.complete;
  if (use.update != nobody)
    lastUpdate = compute.back() - compute[use.update];
  int64_t beside = compute.back() - lastUpdate - compute[use.complete + 1];
  for (const RecomputeGroup &group : program.groups)
    if (group.backwardBegin > use.complete)
      beside += getReplay(group);
  const Unit &unit = model.units[reduced.back()];
  tail = std::max<int64_t>(getDurationAlone(unit.reduction) +
                               getDurationAlone(unit.allReduce) - slow(beside),
                           0);
}
