//===- CollectiveFacts.cpp - Collectives that nothing avoids --------------===//
//
// How long they take of links and streams, in how few calls they are, and what
// of them computations cannot hide.
//
//===----------------------------------------------------------------------===//

#include "BoundFacts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

using namespace fsdp::planner;

int64_t BoundFacts::toNanoseconds(int64_t picoseconds) const {
  int64_t rounded = isExact ? 0 : 500 * int64_t(model.units.size());
  return std::max<int64_t>(picoseconds - rounded, 0) / 1000;
}

CollectiveCost BoundFacts::weigh(const CollectiveCost &cost, Stream stream,
                                 uint32_t group, size_t view) const {
  int64_t part =
      view < numLinks ? model.getLinks(stream, group)[view] : wholeLink;
  auto take = [&](int64_t time) {
    return time / wholeLink * part + time % wholeLink * part / wholeLink;
  };
  return {take(cost.latency), take(cost.transfer)};
}

/// At most one collective of each stream runs at once. If none of these take
/// turns, all of them fill a link.
bool BoundFacts::areTogether(
    const std::array<Ways, numCollectiveStreams> &ways) const {
  using Way = Ways::value_type;
  std::vector<Way> running;
  auto takesTurn = [&](const Way &way) {
    return !model.overlaps.empty() &&
           std::any_of(running.begin(), running.end(), [&](const Way &other) {
             return model.overlaps[way.second][other.second] != 0;
           });
  };
  auto fill = [&](size_t link) {
    return std::all_of(running.begin(), running.end(), [&](const Way &way) {
      return way.first[link] == wholeLink;
    });
  };
  std::function<bool(size_t)> visit = [&](size_t stream) {
    if (stream == ways.size())
      return running.size() < 2 || fill(0) || fill(1);
    if (!visit(stream + 1)) // none of it runs
      return false;
    for (const Way &way : ways[stream]) {
      if (takesTurn(way))
        continue;
      running.push_back(way);
      bool isRight = visit(stream + 1);
      running.pop_back();
      if (!isRight)
        return false;
    }
    return true;
  };
  return visit(0);
}

/// Streams say nothing that links do not, where each fills a link.
void BoundFacts::findViews() {
  std::array<Ways, numCollectiveStreams> all; // each once
  auto add = [&](bool isThere, Stream stream, uint32_t group) {
    Ways::value_type way = {model.getLinks(stream, group), group};
    Ways &ways = all[size_t(stream)];
    if (isThere && std::find(ways.begin(), ways.end(), way) == ways.end())
      ways.push_back(way);
  };
  for (const Traffic &own : program.traffic) {
    add(true, Stream::Gather, own.gatherGroup);
    add(own.piece.bytes, Stream::Gather, own.piece.group);
    add(own.isReduced, Stream::Reduce, own.reduceGroup);
    add(own.isAllReduced, Stream::AllReduce, own.allReduceGroup);
  }
  if (model.sharesCore || areTogether(all)) {
    views = {together};
    return;
  }
  auto areAll = [&](const Ways &ways, size_t link, int64_t part) {
    return std::all_of(ways.begin(), ways.end(), [&](const auto &way) {
      return way.first[link] == part;
    });
  };
  for (size_t link = 0; link != numLinks; ++link)
    if (!std::all_of(all.begin(), all.end(),
                     [&](const Ways &ways) { return areAll(ways, link, 0); }))
      views.push_back(link);
  if (!std::all_of(all.begin(), all.end(), [&](const Ways &ways) {
        return areAll(ways, 0, wholeLink) || areAll(ways, 1, wholeLink);
      }))
    views.push_back(byStream);
}

int64_t BoundFacts::join(const Totals &totals, size_t view) const {
  auto [gathers, reductions, allReduces] = totals;
  if (view == byStream)
    return toNanoseconds(std::max({gathers, reductions, allReduces}));
  return toNanoseconds(gathers) + toNanoseconds(reductions) +
         toNanoseconds(allReduces);
}

/// What no other so many calls are faster than.
template <typename GetCost>
static int64_t sumCosts(const std::vector<uint32_t> &units, int64_t calls,
                        GetCost &&get) {
  if (units.empty())
    return 0;
  int64_t latency = 0, transfer = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (uint32_t unit : units) {
    CollectiveCost cost = get(unit);
    latency = std::max(latency, cost.latency);
    least = std::min(least, cost.latency);
    transfer += cost.transfer;
  }
  return latency + (calls - 1) * least + transfer;
}

int64_t BoundFacts::sumGathers(const Choice &choice, size_t view) const {
  if (!mayStartGathered)
    return sumCosts(
        gathered, countGathers(program.ops.size()),
        [&](uint32_t unit) { return getGather(program.traffic[unit], view); });
  // What is there from the start stays, where memory is scarcest as well.
  int64_t free = room;
  for (const Cut &cut : cuts)
    free = std::min(free, room - getMandatory(cut.op, choice));
  return sumGathers(byWorth[view], free, 1);
}

CollectiveCost BoundFacts::getLeastGather(uint32_t unit, size_t view) const {
  const Traffic &own = program.traffic[unit];
  CollectiveCost whole = getGather(own, view);
  if (!own.piece.bytes)
    return whole;
  CollectiveCost rest = getPiece(own, view);
  return {std::min(whole.latency, rest.latency),
          std::min(whole.transfer, rest.transfer)};
}

BoundFacts::Totals BoundFacts::sumReductionsFrom(size_t op, size_t view) const {
  std::vector<uint32_t> units;
  for (uint32_t unit : reduced)
    if (uses[unit].complete >= op)
      units.push_back(unit);
  int64_t calls = countReductions(op);
  return {0,
          sumCosts(units, calls,
                   [&](uint32_t unit) {
                     return getReduction(program.traffic[unit], view);
                   }),
          sumCosts(units, calls, [&](uint32_t unit) {
            const Traffic &own = program.traffic[unit];
            return weigh(own.allReduce, Stream::AllReduce, own.allReduceGroup,
                         view);
          })};
}

/// Room is spent on parts of units, those first on which it is best spent, and
/// on no more of them than fit of the smallest.
int64_t BoundFacts::sumGathers(const Gathers &gathers, int64_t roomLeft,
                               int64_t calls) const {
  auto fit = std::upper_bound(gathers.bytes.begin() + 1, gathers.bytes.end(),
                              roomLeft) -
             gathers.bytes.begin() - 1;
  int64_t transfer = 0;
  bool isAny = false;
  for (const Gathers::Part &part : gathers.parts) {
    if (part.bytes <= roomLeft) {
      roomLeft -= part.bytes;
      continue;
    }
    // A part of what fits in part, rounded so that more of it is there.
    double there = double(roomLeft) / double(part.bytes);
    transfer += int64_t(double(part.transfer) * (1 - there) * (1 - 1e-9));
    roomLeft = 0;
    isAny = true;
  }
  transfer = std::max(transfer, gathers.transfers.back() -
                                    gathers.transfers[size_t(fit)]);
  return isAny ? calls * gathers.latency + transfer : 0;
}

/// All units of a call of the forward are there at the first use of its first,
/// and all gradients of a call when its last is complete. Calls have neighbours
/// in the order of use, so that a walk finds the fewest.
void BoundFacts::findCalls() {
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  size_t count = gathered.size();
  gatherCalls.assign(count, none);
  for (size_t i = 0; i != count; ++i) {
    int64_t before = i ? gatherCalls[i - 1] : 0;
    int64_t most = room - leastMandatory[uses[gathered[i]].first[0]];
    int64_t bytes = 0;
    for (size_t j = i; j != count; ++j) {
      bytes += program.traffic[gathered[j]].gatheredBytes;
      if (j != i && bytes > most)
        break;
      gatherCalls[j] = std::min(gatherCalls[j], before + 1);
    }
  }
  count = reduced.size();
  reductionCalls.assign(count, none);
  for (size_t j = count; j-- != 0;) {
    int64_t after = j + 1 != count ? reductionCalls[j + 1] : 0;
    uint32_t op = uses[reduced[j]].complete;
    int64_t most = room - leastMandatory[op] - inUse[op] +
                   program.traffic[reduced[j]].gradientBytes;
    int64_t bytes = 0;
    for (size_t i = j + 1; i-- != 0;) {
      bytes += program.traffic[reduced[i]].gradientBytes;
      if (i != j && bytes > most)
        break;
      reductionCalls[i] = std::min(reductionCalls[i], after + 1);
    }
  }
  // A call of the backward has at most what there is room for at the first use
  // of its first unit; that is no later than the first use of each.
  std::vector<int64_t> most(program.ops.size(), 0); // up to each computation
  for (size_t i = 0; i != program.ops.size(); ++i)
    if (program.ops[i].phase == Phase::Backward)
      most[i] = std::max(i ? most[i - 1] : 0, room - leastMandatory[i]);
  shares.assign(uses.size(), 0);
  for (size_t unit = 0; unit != uses.size(); ++unit)
    if (uint32_t first = uses[unit].first[1]; first != nobody) {
      int64_t bytes = program.traffic[unit].gatheredBytes;
      shares[unit] =
          double(bytes) / double(std::max<int64_t>({most[first], bytes, 1}));
    }
}

int64_t BoundFacts::countGathers(size_t op) const {
  int64_t calls = 1;
  for (size_t i = 0; i != gathered.size() && uses[gathered[i]].first[0] <= op;
       ++i)
    calls = gatherCalls[i];
  return mayStartGathered ? 1 : calls;
}

int64_t BoundFacts::countGathers(const Cut &cut, int64_t roomLeft) const {
  double calls = 0;
  for (uint32_t unit : cut.byCalls) {
    int64_t bytes = program.traffic[unit].gatheredBytes;
    int64_t there = std::min(bytes, roomLeft);
    roomLeft -= there;
    if (bytes)
      calls += shares[unit] * double(bytes - there) / double(bytes);
  }
  return std::max<int64_t>(int64_t(std::ceil(calls * (1 - 1e-9))), 1);
}

int64_t BoundFacts::countReductions(size_t op) const {
  for (size_t i = 0; i != reduced.size(); ++i)
    if (uses[reduced[i]].complete >= op)
      return reductionCalls[i];
  return 1;
}

int64_t BoundFacts::findHead(size_t op) const {
  if (mayStartGathered)
    return 0;
  int64_t latency = 0, transfer = 0, most = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i != gathered.size(); ++i) {
    const CollectiveCost &cost = program.traffic[gathered[i]].gather;
    uint32_t first = uses[gathered[i]].first[0];
    if (first > op)
      break;
    latency = std::max(latency, cost.latency);
    least = std::min(least, cost.latency);
    transfer += cost.transfer;
    int64_t all = latency + (gatherCalls[i] - 1) * least + transfer;
    most = std::max(most, toNanoseconds(all) - compute[first]);
  }
  return most;
}

int64_t BoundFacts::findTail(size_t begin, int64_t replayed) const {
  if (reduced.empty())
    return 0;
  int64_t all = getDurationAlone(program.traffic[reduced.back()].allReduce);
  int64_t latency = 0, transfer = 0, most = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = reduced.size(); i-- != 0;) {
    uint32_t complete = uses[reduced[i]].complete;
    if (complete < begin)
      break;
    const CollectiveCost &cost = program.traffic[reduced[i]].reduction;
    int64_t later = replaysFrom[complete]; // which may run beside it
    latency = std::max(latency, cost.latency);
    least = std::min(least, cost.latency);
    transfer += cost.transfer;
    int64_t reductions = latency + (reductionCalls[i] - 1) * least + transfer;
    most = std::max(most, compute[complete + 1] - compute[begin] +
                              std::max<int64_t>(replayed - later, 0) +
                              toNanoseconds(reductions) + all + lastUpdate);
  }
  return most;
}

int64_t BoundFacts::getDurationAlone(const CollectiveCost &cost) const {
  return toNanoseconds(cost.latency + cost.transfer);
}

/// What the compute stream waits for fixed calls, of computations in a range:
/// at least as long as if there were nothing else, all computations ran, and
/// all of them beside collectives. To take longer shortens waits by no more.
int64_t BoundFacts::findIdle(size_t begin, size_t end) const {
  if (model.sharesCore)
    return 0; // nothing runs beside anything
  std::array<int64_t, numStreams> free = {};
  std::vector<int64_t> ends(program.calls.size(), 0);
  int64_t now = 0, waited = 0;
  for (size_t i = begin; i != end; ++i) {
    const ComputeOp &op = program.ops[i];
    if (op.launches != nobody) {
      const FixedCall &call = program.calls[op.launches];
      int64_t &last = free[size_t(call.stream)];
      last = ends[op.launches] = std::max(last, now) + call.duration;
    }
    if (op.awaits != nobody && ends[op.awaits] > now) {
      waited += ends[op.awaits] - now;
      now = ends[op.awaits];
    }
    now += slow(op.duration);
  }
  return waited;
}

void BoundFacts::findExposed() {
  idle = findIdle(0, program.ops.size());
  for (Cut &cut : cuts) {
    cut.idleBefore = findIdle(0, cut.op + 1);
    cut.idleAfter = findIdle(cut.op + 1, program.ops.size());
  }
  if (!gathered.empty() && !mayStartGathered) {
    uint32_t unit = gathered.front();
    head = std::max<int64_t>(getDurationAlone(program.traffic[unit].gather) -
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
  beside += replaysFrom[use.complete];
  const Traffic &unit = program.traffic[reduced.back()];
  tail = std::max<int64_t>(getDurationAlone(unit.reduction) +
                               getDurationAlone(unit.allReduce) - slow(beside),
                           0);
}
