//===- Unhidden.cpp - Collectives that nothing runs beside ----------------===//
//
// B6: what a collective reads or writes takes memory from its launch to its
// wait, so that it runs beside no computation that leaves no room for it.
//
//===----------------------------------------------------------------------===//

#include "BoundFacts.h"

#include <algorithm>

using namespace fsdp::planner;

namespace {
/// What of collectives runs beside no computation, since memory is not there
/// before, or is needed after.
class Unhidden {
public:
  explicit Unhidden(const BoundFacts &facts);

  int64_t sumGathers() const;
  int64_t sumReductions() const;

private:
  /// Of the computations that run in any case, and of replays, which may.
  bool isCertain(uint32_t op) const {
    return program.ops[op].onlyIf == nobody ||
           (facts.isAllReplayed && program.ops[op].recompute == Recompute::All);
  }
  int64_t getSlowed(uint32_t op) const { // picoseconds
    int64_t duration = program.ops[op].duration;
    return 1000 *
           (duration + (duration * facts.model.contention + 1023) / 1024 + 1);
  }
  bool hasRoom(uint32_t op, int64_t bytes) const {
    return !isCertain(op) || facts.room - used[op] >= bytes;
  }
  int64_t findGather(uint32_t unit, Phase phase, uint32_t before) const;

  const BoundFacts &facts;
  const Program &program;
  std::vector<BoundFacts::Use> uses; ///< With replays, if these run.
  /// By unit: the first copies in its module's replays that read it.
  std::vector<std::array<uint32_t, numRecomputes>> firstCopies;
  std::vector<int64_t> used; ///< Bytes at a computation, at the least.
};
} // namespace

Unhidden::Unhidden(const BoundFacts &facts)
    : facts(facts), program(facts.program), uses(facts.uses),
      used(facts.leastMandatory) {
  firstCopies.resize(uses.size());
  for (auto &own : firstCopies)
    own.fill(nobody);
  for (uint32_t i = uint32_t(program.ops.size()); i-- != 0;) {
    const ComputeOp &op = program.ops[i];
    if (op.weights == nobody || op.onlyIf == nobody)
      continue;
    if (op.onlyIf == facts.model.units[op.weights].module)
      firstCopies[op.weights][size_t(op.recompute)] = i;
    if (!isCertain(i))
      continue;
    BoundFacts::Use &use = uses[op.weights];
    auto phase = size_t(op.phase);
    use.first[phase] = std::min(use.first[phase], i);
    use.last[phase] =
        use.last[phase] == nobody ? i : std::max(use.last[phase], i);
  }
  for (uint32_t unit = 0; unit != uses.size(); ++unit)
    for (size_t phase = 0; phase != numPhases; ++phase)
      if (uint32_t first = uses[unit].first[phase]; first != nobody)
        for (uint32_t i = first; i <= uses[unit].last[phase]; ++i)
          used[i] += program.traffic[unit].gatheredBytes;
}

/// It has memory from its launch on, so all computations from there to its
/// first use have room for it. Where its own module is recomputed, the copy
/// that reads it may be its first use. `before`: the first use of the unit that
/// is gathered before; if the memory is not there at that place, the gather is
/// a call of its own.
int64_t Unhidden::findGather(uint32_t unit, Phase phase,
                             uint32_t before) const {
  const Traffic &own = program.traffic[unit];
  uint32_t module = facts.model.units[unit].module;
  int64_t all = own.gather.latency + own.gather.transfer, beside = 0;
  uint32_t launch = uses[unit].first[size_t(phase)];
  for (; launch != 0 && beside < all; --launch) {
    uint32_t op = launch - 1;
    if (!hasRoom(op, own.gatheredBytes))
      break;
    const ComputeOp &there = program.ops[op];
    if (there.onlyIf == nobody || there.onlyIf != module ||
        op < firstCopies[unit][size_t(there.recompute)])
      beside += getSlowed(op);
  }
  bool mayJoin = before != nobody && launch <= before;
  return std::max<int64_t>(all - (mayJoin ? own.gather.latency : 0) - beside,
                           0);
}

/// A unit that is kept has no gather for the backward: those for which there is
/// room between the phases, where that is worth most.
int64_t Unhidden::sumGathers() const {
  uint32_t middle = 0; // the last computation of the forward
  while (middle + 1 != program.ops.size() &&
         program.ops[middle + 1].phase == Phase::Forward)
    ++middle;
  std::vector<std::pair<uint32_t, uint32_t>> order[numPhases]; // first uses
  for (uint32_t unit = 0; unit != uses.size(); ++unit)
    for (size_t phase = 0; phase != numPhases; ++phase)
      if (uses[unit].first[phase] != nobody)
        order[phase].emplace_back(uses[unit].first[phase], unit);
  int64_t sum = 0;
  std::vector<std::pair<int64_t, uint32_t>> again; // of the backward
  for (size_t phase = 0; phase != numPhases; ++phase) {
    std::sort(order[phase].begin(), order[phase].end());
    uint32_t before = nobody;
    for (auto [first, unit] : order[phase]) {
      int64_t own = findGather(unit, Phase(phase), before);
      before = first;
      const BoundFacts::Use &use = uses[unit];
      bool isThere = use.first[0] != nobody && use.last[0] >= middle;
      if (phase == 0)
        sum += own;
      else if (!isThere && !facts.model.units[unit].staysGathered)
        again.emplace_back(own, unit);
    }
  }
  auto getBytes = [&](uint32_t unit) {
    return program.traffic[unit].gatheredBytes;
  };
  std::sort(again.begin(), again.end(), [&](const auto &a, const auto &b) {
    double left = double(a.first) * double(getBytes(b.second));
    double right = double(b.first) * double(getBytes(a.second));
    return left != right ? left > right : a.second < b.second;
  });
  int64_t room = std::max<int64_t>(facts.room - used[middle], 0);
  for (auto [own, unit] : again) {
    int64_t kept = std::min(room, getBytes(unit));
    room -= kept;
    if (kept != getBytes(unit))
      sum += int64_t(double(own) * (1 - double(kept) / double(getBytes(unit))) *
                     (1 - 1e-9));
  }
  return sum;
}

/// What it reads lives to its wait, so all computations from the end of the
/// gradient to there have room for it. Where there is room to leave the
/// gradient until the next one is complete, both may be one call, which is
/// launched there. The last reduction is the tail.
int64_t Unhidden::sumReductions() const {
  int64_t sum = 0;
  for (size_t i = 0; i + 1 < facts.reduced.size(); ++i) {
    uint32_t unit = facts.reduced[i];
    const Traffic &own = program.traffic[unit];
    uint32_t begin = uses[unit].complete + 1;
    uint32_t next = uses[facts.reduced[i + 1]].complete, left = begin;
    while (left <= next && hasRoom(left, own.gradientBytes))
      ++left;
    if (!own.isReduced || left > next)
      continue;
    int64_t bytes = own.castBytes + (own.isCast ? 0 : own.gradientBytes);
    int64_t all = own.reduction.latency + own.reduction.transfer, beside = 0;
    for (uint32_t op = begin;
         op != program.ops.size() && beside < all && hasRoom(op, bytes); ++op)
      beside += getSlowed(op);
    sum += std::max<int64_t>(all - beside, 0);
  }
  return sum;
}

/// Collectives of one stream, or of one link, run one after the other, so what
/// no computation runs beside adds up.
void BoundFacts::findUnhidden() {
  if (mayStartGathered || program.ops.empty())
    return;
  Unhidden sums(*this);
  unhidden = combine(sums.sumGathers(), sums.sumReductions(), 0);
}
