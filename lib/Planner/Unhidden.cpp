//===- Unhidden.cpp - Collectives that nothing runs beside ----------------===//

#include "Unhidden.h"

#include <algorithm>
#include <queue>

using namespace fsdp::planner;

//===----------------------------------------------------------------------===//
// What is there in any case
//===----------------------------------------------------------------------===//

Unhidden::Unhidden(const BoundFacts &facts)
    : facts(facts), program(facts.program) {
  while (middle + 1 < program.ops.size() &&
         program.ops[middle + 1].phase == Phase::Forward)
    ++middle;
  firstCopies.resize(facts.uses.size());
  for (auto &own : firstCopies)
    own.fill(nobody);
  for (uint32_t i = uint32_t(program.ops.size()); i-- != 0;) {
    const ComputeOp &op = program.ops[i];
    if (op.weights != nobody && op.onlyIf != nobody &&
        op.onlyIf == facts.model.units[op.weights].module)
      firstCopies[op.weights][size_t(op.recompute)] = i;
  }
  // By module, of all of it: the first copy that reads a unit.
  std::vector<uint32_t> first(facts.model.modules.size(), nobody);
  for (uint32_t unit = 0; unit != facts.uses.size(); ++unit)
    if (uint32_t module = facts.model.units[unit].module; module != nobody)
      first[module] = std::min(first[module], getFirstCopy(unit));
  for (uint32_t unit = 0; unit != facts.uses.size(); ++unit) {
    uint32_t module = facts.model.units[unit].module, own = getFirstCopy(unit);
    followsInModule.push_back(module != nobody && own != nobody &&
                              first[module] < own);
  }
  for (const ComputeOp &op : program.ops) {
    slowed.push_back(
        1000 * (op.duration +
                (op.duration * facts.model.contention + 1023) / 1024 + 1));
    auto found =
        std::find(facts.nearest.begin(), facts.nearest.end(), op.onlyIf);
    nearestAt.push_back(op.onlyIf == nobody || found == facts.nearest.end()
                            ? nobody
                            : uint32_t(found - facts.nearest.begin()));
  }
  for (size_t all = 0; all != numRecomputes; ++all)
    states[all] = makeState(Recompute(all));
}

Unhidden::State Unhidden::makeState(Recompute all) const {
  State state = {
      facts.uses, std::vector<int64_t>(program.ops.size() + 1, 0), {}};
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    const ComputeOp &op = program.ops[i];
    if (op.weights == nobody || op.onlyIf == nobody || !isCertain(i, all))
      continue;
    auto phase = size_t(op.phase);
    uint32_t &first = state.uses[op.weights].first[phase];
    uint32_t &last = state.uses[op.weights].last[phase];
    first = std::min(first, i);
    last = last == nobody ? i : std::max(last, i);
  }
  for (uint32_t unit = 0; unit != state.uses.size(); ++unit)
    for (size_t phase = 0; phase != numPhases; ++phase) {
      const BoundFacts::Use &use = state.uses[unit];
      if (use.first[phase] == nobody)
        continue;
      state.order[phase].push_back(unit);
      state.inUse[use.first[phase]] += program.traffic[unit].gatheredBytes;
      state.inUse[use.last[phase] + 1] -= program.traffic[unit].gatheredBytes;
    }
  for (size_t i = 1; i < state.inUse.size(); ++i)
    state.inUse[i] += state.inUse[i - 1];
  for (size_t phase = 0; phase != numPhases; ++phase)
    std::sort(state.order[phase].begin(), state.order[phase].end(),
              [&](uint32_t a, uint32_t b) {
                return state.uses[a].first[phase] < state.uses[b].first[phase];
              });
  return state;
}

std::optional<Unhidden::Case>
Unhidden::makeCase(const BoundFacts::Choice &choice,
                   std::optional<BoundFacts::Set> whole) const {
  size_t count = program.recomputable.size();
  Recompute all = count && choice.all == count     ? Recompute::All
                  : count && choice.cheap == count ? Recompute::Cheap
                                                   : Recompute::None;
  Case known = {whole, all,
                std::vector<int64_t>(program.ops.size(), facts.room)};
  for (uint32_t op = 0; op != program.ops.size(); ++op) {
    if (!isCertain(op, all))
      continue;
    known.room[op] -=
        states[size_t(all)].inUse[op] +
        (program.ops[op].onlyIf != nobody ? facts.leastMandatory[op]
         : whole ? facts.getMandatory(op, choice, *whole)
                 : facts.getMandatory(op, choice));
    if (known.room[op] < 0)
      return std::nullopt;
  }
  return known;
}

//===----------------------------------------------------------------------===//
// Windows
//===----------------------------------------------------------------------===//

namespace {
/// The nearest place with less than so much, of places that are added in order.
class Nearest {
public:
  void add(uint32_t place, int64_t value) {
    while (!least.empty() && least.back().first >= value)
      least.pop_back();
    least.emplace_back(value, place);
  }
  /// Or `none`.
  uint32_t findBelow(int64_t value, uint32_t none) const {
    auto found = std::lower_bound(
        least.begin(), least.end(), value,
        [](const auto &entry, int64_t most) { return entry.first < most; });
    return found == least.begin() ? none : std::prev(found)->second;
  }

private:
  std::vector<std::pair<int64_t, uint32_t>> least; ///< Values grow.
};
} // namespace

/// In front of the first use are copies of its own module, beside which it does
/// not run from the first one on that reads it. The first of these, and what
/// may run beside others after it at the most, whatever is recomputed.
std::pair<uint32_t, int64_t> Unhidden::findEnd(uint32_t unit, uint32_t first,
                                               const Case &known) const {
  uint32_t module = facts.model.units[unit].module, end = first;
  std::array<int64_t, numRecomputes> here = {};
  int64_t beside = 0;
  for (uint32_t op = first; op-- != 0;) {
    const ComputeOp &copy = program.ops[op];
    if (copy.onlyIf == nobody || copy.onlyIf != module)
      break;
    if (isOut(op, known))
      continue;
    if (op < firstCopies[unit][size_t(copy.recompute)]) {
      here[size_t(copy.recompute)] += slowed[op];
      continue;
    }
    end = op;
    beside = *std::max_element(here.begin(), here.end());
  }
  return {end, beside};
}

/// It has memory from its launch on, so all computations from there to its
/// first use have room for it. If there is none at the first use of the unit
/// that is gathered before, it is a call of its own; where its module is
/// recomputed, that may be another unit of the module.
std::vector<Unhidden::Window> Unhidden::listGathers(const Case &known,
                                                    size_t cut, uint32_t begin,
                                                    size_t view) const {
  const State &state = getState(known);
  std::vector<Window> windows;
  for (size_t phase = begin == 0 ? 0 : 1; phase != numPhases; ++phase) {
    Nearest tight;
    uint32_t place = begin, before = nobody;
    for (uint32_t unit : state.order[phase]) {
      const BoundFacts::Use &use = state.uses[unit];
      uint32_t first = use.first[phase];
      const Traffic &own = program.traffic[unit];
      for (; place < first; ++place)
        tight.add(place, known.room[place]);
      uint32_t earliest = tight.findBelow(own.gatheredBytes, nobody) + 1;
      bool isForward = phase == 0;
      // What is in use at the cut may stay.
      bool isThere = !isForward &&
                     (facts.model.units[unit].staysGathered || first <= cut ||
                      (use.first[0] != nobody && use.last[0] >= cut));
      if (!isThere) {
        uint32_t launch = std::max(earliest, begin);
        bool mayJoin = (before != nobody && launch <= before) ||
                       (!isForward && followsInModule[unit] &&
                        launch < getFirstCopy(unit));
        auto [end, beside] = findEnd(unit, first, known);
        CollectiveCost cost = isForward ? facts.getGather(own, view)
                                        : facts.getLeastGather(unit, view);
        int64_t work = cost.transfer + (mayJoin ? 0 : cost.latency) - beside;
        windows.push_back(
            {std::max<int64_t>(work, 0), launch, std::max(end, launch),
             isForward ? 0 : std::max<int64_t>(own.gatheredBytes, 1)});
      }
      before = first;
    }
  }
  return windows;
}

/// What it reads lives to its wait, so all computations from the end of the
/// gradient to there have room for it. Where there is room to leave the
/// gradient until the next one is complete, both may be one call. The last one
/// is the tail.
std::vector<Unhidden::Window>
Unhidden::listReductions(const Case &known, uint32_t begin, size_t view) const {
  const State &state = getState(known);
  std::vector<Window> windows;
  Nearest tight; // of places from the last on
  auto place = uint32_t(program.ops.size());
  for (size_t i = facts.reduced.size(); i-- != 0;) {
    uint32_t unit = facts.reduced[i];
    const BoundFacts::Use &use = state.uses[unit];
    const Traffic &own = program.traffic[unit];
    if (use.complete + 1 < begin)
      break;
    while (place > use.complete + 1) {
      --place;
      tight.add(place, known.room[place]);
    }
    if (i + 1 == facts.reduced.size() || !own.isReduced)
      continue;
    auto count = uint32_t(program.ops.size());
    uint32_t left = tight.findBelow(own.gradientBytes, count);
    int64_t bytes =
        std::min(own.gradientBytes,
                 own.getHeldBytes() + (own.isCast ? 0 : own.gradientBytes));
    bool mayJoin = left > state.uses[facts.reduced[i + 1]].complete;
    CollectiveCost cost = facts.getReduction(own, view);
    windows.push_back(
        {cost.transfer + (mayJoin ? 0 : cost.latency), use.complete + 1,
         std::max(std::min(use.update, tight.findBelow(bytes, count)),
                  use.complete + 1),
         0});
  }
  return windows;
}

//===----------------------------------------------------------------------===//
// The earliest deadline first
//===----------------------------------------------------------------------===//

/// Computations that hide windows of their own alone, and not all of them.
struct Unhidden::Block {
  uint32_t begin, end;
  int64_t unhidden; ///< Picoseconds.
};

namespace {
/// Of windows with one deadline: the earliest begin, and what nothing hides.
struct Late {
  uint32_t begin = nobody;
  int64_t missed = 0;
};
} // namespace

/// Collectives run one after the other, the one with the earliest deadline
/// first. From the begin of what misses its deadline on, nothing with a later
/// one has run until then: a block goes back to the earliest begin of what has.
std::vector<Unhidden::Block>
Unhidden::findBlocks(const std::vector<Window> &windows, const Case &known,
                     uint32_t begin) const {
  using Pending = std::pair<uint32_t, size_t>; // end, window
  std::priority_queue<Pending, std::vector<Pending>, std::greater<Pending>> all;
  auto count = uint32_t(program.ops.size());
  std::vector<Block> blocks;
  std::vector<int64_t> rest;
  std::vector<uint32_t> earliest(count, nobody); // begin of what runs beside it
  std::vector<Late> late(count + 1);             // by deadline
  size_t next = 0;
  for (uint32_t op = begin;; ++op) {
    for (; next != windows.size() && windows[next].begin <= op; ++next) {
      const Window &window = windows[next];
      rest.push_back(window.work);
      if (window.begin < window.end)
        all.emplace(window.end, next);
      else
        blocks.push_back({window.begin, window.end, window.work});
    }
    for (; !all.empty() && all.top().first <= op; all.pop()) {
      Late &there = late[op];
      there.begin = std::min(there.begin, windows[all.top().second].begin);
      there.missed += rest[all.top().second];
    }
    if (op == count)
      break;
    for (int64_t time = isOut(op, known) ? 0 : slowed[op];
         !all.empty() && time != 0;) {
      auto [end, window] = all.top();
      int64_t done = std::min(rest[window], time);
      rest[window] -= done;
      time -= done;
      earliest[op] = std::min(earliest[op], windows[window].begin);
      if (rest[window] == 0)
        all.pop();
    }
  }
  for (uint32_t end = count + 1; end-- != begin;) {
    if (late[end].missed == 0)
      continue;
    Block block = {late[end].begin, end, late[end].missed};
    uint32_t op = end;
    while (op-- > block.begin) {
      block.begin = std::min(block.begin, earliest[op]);
      if (op > block.begin && late[op].missed != 0) {
        block.begin = std::min(block.begin, late[op].begin);
        block.unhidden += late[op].missed;
      }
    }
    blocks.push_back(block);
    end = block.begin + 1;
  }
  return blocks;
}

/// Picoseconds. Units that are there at the cut have no gather after it: as
/// many as fit, those first that save most.
int64_t Unhidden::sum(std::vector<Window> windows, const Case &known,
                      uint32_t begin, int64_t roomAtCut) const {
  std::sort(windows.begin(), windows.end(),
            [](const Window &a, const Window &b) { return a.begin < b.begin; });
  std::vector<Block> blocks = findBlocks(windows, known, begin);
  int64_t total = 0;
  for (const Block &block : blocks)
    total += block.unhidden;
  std::vector<std::pair<const Window *, Block *>> there;
  for (const Window &window : windows)
    for (Block &block : blocks)
      if (window.bytes != 0 && block.begin <= window.begin &&
          window.end <= block.end)
        there.emplace_back(&window, &block);
  std::sort(there.begin(), there.end(), [](const auto &a, const auto &b) {
    return double(a.first->work) * double(b.first->bytes) >
           double(b.first->work) * double(a.first->bytes);
  });
  double saved = 0;
  for (auto [window, block] : there) {
    double part = std::min(
        {1.0, double(roomAtCut) / double(window->bytes),
         double(block->unhidden) / double(std::max<int64_t>(window->work, 1))});
    if (part <= 0)
      continue;
    saved += part * double(window->work);
    roomAtCut -= int64_t(part * double(window->bytes));
    block->unhidden -= int64_t(part * double(window->work));
  }
  return std::max<int64_t>(total - int64_t(saved * (1 + 1e-9)) - 1, 0);
}

/// Of a link, what all collectives take of it. They take turns on a link that
/// each of them fills, and on a stream.
int64_t Unhidden::find(const Case &known, size_t cut, uint32_t begin,
                       size_t view) const {
  std::vector<Window> gathers = listGathers(known, cut, begin, view),
                      reductions = listReductions(known, begin, view);
  // Each call is rounded once.
  int64_t rounded =
      facts.isExact ? 0 : 500 * int64_t(gathers.size() + reductions.size());
  int64_t time, free = known.room[cut];
  if (view != BoundFacts::byStream) {
    gathers.insert(gathers.end(), reductions.begin(), reductions.end());
    time = sum(std::move(gathers), known, begin, free);
  } else {
    time = std::max(sum(std::move(gathers), known, begin, free),
                    sum(std::move(reductions), known, begin, 0));
  }
  return std::max<int64_t>(time - rounded, 0) / 1000;
}

int64_t Unhidden::find(const Case &known, size_t cut, uint32_t begin) const {
  if (facts.mayStartGathered || facts.model.sharesCore || program.ops.empty())
    return 0;
  int64_t most = 0;
  for (size_t view : facts.views)
    most = std::max(most, find(known, cut, begin, view));
  return most;
}
