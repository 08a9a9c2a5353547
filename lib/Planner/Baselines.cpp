//===- Baselines.cpp - What others decide ---------------------------------===//
//
// A policy says which units go in one call, how early a gather is launched, and
// how late a reduction is waited for. These are numbers of slots as soon as it
// is known which units are gathered.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Baselines.h"

#include "Layout.h"
#include "fsdp/Planner/Evaluator.h"

#include <algorithm>
#include <optional>

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
  case Policy::Megatron:
    return "megatron";
  case Policy::Inductor:
    return "inductor";
  case Policy::XlaLhs:
    return "xla-lhs";
  case Policy::DeepCompileP:
    return "deepcompile-p";
  case Policy::DeepCompileS:
    return "deepcompile-s";
  case Policy::DeepCompilePS:
    return "deepcompile-ps";
  case Policy::TorchtitanMemory:
    return "torchtitan-memory";
  }
  return "";
}

static bool isDeepCompile(Policy policy) {
  return policy == Policy::DeepCompileP || policy == Policy::DeepCompileS ||
         policy == Policy::DeepCompilePS;
}
static bool decidesKeep(Policy policy) {
  return policy == Policy::DeepCompileS || policy == Policy::DeepCompilePS;
}
static bool decidesRecompute(Policy policy) {
  return policy == Policy::TorchtitanMemory;
}
static bool isByModule(Policy policy) {
  return policy != Policy::Inductor && policy != Policy::XlaLhs &&
         !isDeepCompile(policy);
}

/// The most that go in one call, where bytes decide about that.
static int64_t getCallBytes(Policy policy) {
  return isDeepCompile(policy)        ? 1'000'000'000
         : policy == Policy::Inductor ? 500'000'000
                                      : 30 << 20;
}

static uint16_t toSlots(size_t count) {
  return uint16_t(std::min<size_t>(count, mostSlots));
}

namespace {

/// Decides one program as a policy does.
class PolicyMaker {
public:
  PolicyMaker(const StepModel &model, size_t number, Policy policy,
              ProgramDecisions &decisions, const std::vector<uint8_t> &resident)
      : model(model), program(model.programs[number]), number(number),
        policy(policy), decisions(decisions), resident(resident),
        layout(model, program) {}

  /// Calls and places, for what is kept and recomputed.
  void makeCalls();
  void place();
  void keepByValue();
  void recomputeByValue();

private:
  struct Value {
    int64_t bytes = 0, time = 0;
    double getWorth() const {
      return double(bytes) / double(std::max<int64_t>(time, 1));
    }
  };

  std::vector<Value> findValues(Recompute recompute) const;
  void joinModules();
  void joinBytes();
  bool isFused(const CollectiveCost &own, const CollectiveCost &cost,
               int64_t bytes) const;
  uint32_t findLaunch(size_t call) const;
  size_t findWait(size_t reduction) const;
  std::optional<int64_t> findBudget() const;
  int64_t findPeak(const ProgramDecisions &of) const {
    return Evaluator(model, number).evaluate(of, resident).peakBytes;
  }

  const StepModel &model;
  const Program &program;
  size_t number;
  Policy policy;
  ProgramDecisions &decisions;
  const std::vector<uint8_t> &resident;
  Layout layout;
  std::vector<size_t> products; ///< By place: so many stand before it.
};

} // namespace

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

void PolicyMaker::makeCalls() {
  // The order of uses says who follows whom; each is a call of its own yet.
  for (UnitDecision &unit : decisions.units)
    unit[Phase::Forward].joins = unit[Phase::Backward].joins =
        unit.reduction.joins = false;
  layout.build(decisions, resident);
  if (isByModule(policy))
    joinModules();
  else
    joinBytes();
  place();
}

void PolicyMaker::joinModules() {
  auto isSame = [&](uint32_t a, uint32_t b) {
    return model.units[a].module == model.units[b].module &&
           model.units[a].module != nobody;
  };
  for (size_t i = 1; i < layout.gatherUnits.size(); ++i) {
    uint32_t unit = layout.gatherUnits[i];
    decisions.units[unit][layout.gathers[i].phase].joins =
        isSame(layout.gatherUnits[i - 1], unit);
  }
  for (size_t i = 1; i < layout.reductionUnits.size(); ++i)
    decisions.units[layout.reductionUnits[i]].reduction.joins =
        isSame(layout.reductionUnits[i - 1], layout.reductionUnits[i]);
}

/// Whether a gather goes in one call with those after it, of so many bytes.
bool PolicyMaker::isFused(const CollectiveCost &own, const CollectiveCost &cost,
                          int64_t bytes) const {
  if (policy == Policy::DeepCompileS || bytes > getCallBytes(policy))
    return false;
  if (!isDeepCompile(policy))
    return true;
  CollectiveCost fused = cost;
  fused.add(own);
  int64_t longer = std::max(cost.getDuration(), own.getDuration());
  return 1.2 * double(longer) > double(fused.getDuration());
}

void PolicyMaker::joinBytes() {
  // From the end, as a scan in reverse does.
  CollectiveCost cost;
  int64_t bytes = 0;
  for (size_t i = layout.gathers.size(); i-- != 0;) {
    const Layout::Call &call = layout.gathers[i];
    uint32_t unit = layout.gatherUnits[i];
    const CollectiveCost &own = layout.getGatherCost(call, unit);
    int64_t ownBytes = program.traffic[unit].gatheredBytes;
    bool joins = i + 1 != layout.gathers.size() &&
                 call.phase == layout.gathers[i + 1].phase &&
                 isFused(own, cost, bytes + ownBytes);
    if (joins)
      decisions.units[layout.gatherUnits[i + 1]][call.phase].joins = true;
    cost = joins ? cost : CollectiveCost();
    cost.add(own);
    bytes = (joins ? bytes : 0) + ownBytes;
  }
  bytes = 0;
  for (uint32_t unit : layout.reductionUnits) {
    int64_t own = program.traffic[unit].gradientBytes;
    bool joins = bytes && bytes + own <= getCallBytes(policy);
    decisions.units[unit].reduction.joins = joins;
    bytes = (joins ? bytes : 0) + own;
  }
}

//===----------------------------------------------------------------------===//
// Places
//===----------------------------------------------------------------------===//

/// The slot of the launch of a gather, as far as memory allows it.
uint32_t PolicyMaker::findLaunch(size_t call) const {
  const std::vector<Layout::Call> &gathers = layout.gathers;
  const Layout::Call &own = gathers[call];
  auto callsAhead = [&](size_t calls) {
    return call >= calls ? gathers[call - calls].slot : 0;
  };
  // From there on, at most so many bytes wait for their use.
  auto bytesAhead = [&](int64_t most) {
    int64_t bytes = own.bytes;
    for (size_t i = call; i-- != 0; bytes += gathers[i].bytes)
      if (bytes + gathers[i].bytes > most)
        return bytes > most ? own.slot : gathers[i].slot;
    return bytes > most ? own.slot : 0;
  };
  switch (policy) {
  case Policy::NoOverlap:
  case Policy::DeepCompileS:
    return own.slot;
  case Policy::Fsdp2:
    return callsAhead(own.phase == Phase::Forward ? 2 : 1);
  case Policy::ManualBlock:
  case Policy::TorchtitanMemory: // nothing stands before the first block
    return call ? callsAhead(1) : own.slot;
  case Policy::Fsdp1:
  case Policy::Megatron:
    return callsAhead(1);
  case Policy::DeepCompileP:
  case Policy::DeepCompilePS:
    return bytesAhead(4'000'000'000);
  case Policy::Inductor: {
    uint32_t slot = own.slot, earliest = bytesAhead(2'000'000'000);
    while (slot > earliest &&
           products[own.wait] - products[layout.getOrder().slots[slot - 1]] <=
               5)
      --slot;
    return slot;
  }
  case Policy::XlaLhs: {
    uint32_t slot = own.slot, earliest = call ? callsAhead(1) : 0;
    CollectiveCost cost;
    for (uint32_t i = own.begin; i != own.end; ++i)
      cost.add(layout.getGatherCost(own, layout.gatherUnits[i]));
    const Order &order = layout.getOrder();
    int64_t hidden = 0, duration = cost.getDuration();
    for (; slot > earliest && hidden < duration; --slot)
      for (uint32_t i = order.getBegin(order.slots[slot - 1]);
           i != order.getBegin(order.slots[slot]); ++i)
        hidden += program.ops[order.ops[i]].duration;
    return slot;
  }
  }
  return own.slot;
}

/// How many slots after its launch a reduction is waited for.
size_t PolicyMaker::findWait(size_t reduction) const {
  if (policy == Policy::NoOverlap)
    return 0;
  const std::vector<Layout::Call> &calls = layout.reductions;
  uint32_t slot = calls[reduction].slot;
  if (policy != Policy::Megatron)
    return reduction + 1 != calls.size() ? calls[reduction + 1].slot - slot
                                         : mostSlots;
  if (reduction + 2 >= calls.size())
    return mostSlots;
  // Where the next but one takes its buffer.
  uint32_t begin = nobody;
  for (uint32_t i = calls[reduction + 2].begin; i != calls[reduction + 2].end;
       ++i)
    begin = std::min(begin,
                     layout.getOrder().uses[layout.reductionUnits[i]].gradient);
  const std::vector<uint32_t> &slots = layout.getOrder().slots;
  auto next = std::upper_bound(slots.begin(), slots.end(), begin);
  return size_t(std::max<ptrdiff_t>(next - slots.begin() - 1 - slot, 0));
}

/// What a policy lets launches and waits take; nothing, if it looks at none.
std::optional<int64_t> PolicyMaker::findBudget() const {
  if (policy == Policy::XlaLhs)
    return model.budget;
  if (isDeepCompile(policy))
    return model.budget - model.budget / 10;
  if (policy != Policy::Inductor)
    return std::nullopt;
  ProgramDecisions bare = decisions;
  for (UnitDecision &unit : bare.units) {
    unit[Phase::Forward].ahead = unit[Phase::Backward].ahead = 0;
    unit.reduction.wait = 0;
  }
  constexpr int64_t more = int64_t(1) << 30;
  return findPeak(bare) + more;
}

void PolicyMaker::place() {
  layout.build(decisions, resident);
  const Order &order = layout.getOrder();
  products.assign(1, 0);
  for (size_t place = 0; place != order.stretches.size(); ++place) {
    auto begin = order.ops.begin() + order.getBegin(place),
         end = order.ops.begin() + order.getBegin(place + 1);
    products.push_back(products.back() +
                       size_t(std::count_if(begin, end, [&](uint32_t op) {
                         return program.ops[op].weights != nobody ||
                                program.ops[op].gradient != nobody;
                       })));
  }
  for (size_t i = 0; i != layout.gathers.size(); ++i) {
    const Layout::Call &call = layout.gathers[i];
    decisions.units[layout.gatherUnits[call.begin]][call.phase].ahead =
        toSlots(call.slot - findLaunch(i));
  }
  for (size_t i = 0; i != layout.reductions.size(); ++i)
    decisions.units[layout.reductionUnits[layout.reductions[i].begin]]
        .reduction.wait = toSlots(findWait(i));
  if (std::optional<int64_t> budget = findBudget()) {
    StepModel limited = model;
    limited.budget = *budget;
    Evaluator(limited, number).fit(decisions, resident);
  }
}

//===----------------------------------------------------------------------===//
// What is kept, and what is recomputed
//===----------------------------------------------------------------------===//

/// Most first; of equals, the one that came first.
template <typename Item, typename GetWorth>
static void sortByWorth(std::vector<Item> &items, GetWorth getWorth) {
  std::vector<std::pair<double, size_t>> keys;
  for (size_t i = 0; i != items.size(); ++i)
    keys.emplace_back(-getWorth(items[i]), i);
  std::sort(keys.begin(), keys.end());
  std::vector<Item> sorted;
  for (const auto &key : keys)
    sorted.push_back(items[key.second]);
  items = std::move(sorted);
}

/// By time saved for each byte, until one does not fit.
void PolicyMaker::keepByValue() {
  int64_t room = *findBudget() - findPeak(decisions);
  layout.build(decisions, resident);
  std::vector<uint32_t> units;
  for (uint32_t unit = 0; unit != model.units.size(); ++unit)
    if (const Order::Use &use = layout.getOrder().uses[unit];
        use.first[0] != nobody && use.first[1] != nobody)
      units.push_back(unit);
  auto getWorth = [&](uint32_t unit) {
    const Traffic &own = program.traffic[unit];
    return double(own.gather.getDuration()) /
           double(std::max<int64_t>(own.gatheredBytes, 1));
  };
  sortByWorth(units, getWorth);
  for (uint32_t unit : units) {
    room -= program.traffic[unit].gatheredBytes;
    if (room < 0)
      break;
    decisions.units[unit].keep = Keep::All;
  }
  makeCalls();
}

/// What modules save if so much of each is recomputed, and what that takes.
std::vector<PolicyMaker::Value>
PolicyMaker::findValues(Recompute recompute) const {
  std::vector<Value> values(model.modules.size());
  for (const Life &life : program.lives)
    for (const Life::Read &read : life.reads)
      if (read.isWith(Recompute::None) && !read.isWith(recompute)) {
        values[read.module].bytes += life.bytes;
        break;
      }
  for (const ComputeOp &op : program.ops)
    if (op.onlyIf != nobody && op.recompute == recompute)
      values[op.onlyIf].time += op.duration;
  return values;
}

/// By bytes saved for each nanosecond, as few as fit. Where what is cheap saves
/// more than all does, it comes first, and the rest is a step of its own.
void PolicyMaker::recomputeByValue() {
  struct Step {
    uint32_t module;
    Recompute to;
    Value value;
  };
  std::vector<Value> all = findValues(Recompute::All),
                     cheap = findValues(Recompute::Cheap);
  std::vector<Step> steps;
  for (uint32_t module : program.recomputable) {
    Value rest = all[module];
    if (std::count(program.cheap.begin(), program.cheap.end(), module) &&
        cheap[module].getWorth() > rest.getWorth()) {
      steps.push_back({module, Recompute::Cheap, cheap[module]});
      rest.bytes -= cheap[module].bytes;
      rest.time -= cheap[module].time;
    }
    steps.push_back({module, Recompute::All, rest});
  }
  sortByWorth(steps, [](const Step &step) { return step.value.getWorth(); });
  auto fits = [&](size_t count) {
    std::fill(decisions.recompute.begin(), decisions.recompute.end(),
              Recompute::None);
    for (size_t i = 0; i != count; ++i)
      decisions.recompute[steps[i].module] = steps[i].to;
    makeCalls();
    return findPeak(decisions) <= model.budget;
  };
  size_t low = 0, high = steps.size();
  while (low != high) {
    size_t middle = (low + high) / 2;
    if (fits(middle))
      high = middle;
    else
      low = middle + 1;
  }
  fits(low);
}

//===----------------------------------------------------------------------===//
// Baselines
//===----------------------------------------------------------------------===//

void fsdp::planner::applyPolicy(const StepModel &model, size_t program,
                                Policy policy, ProgramDecisions &decisions,
                                const std::vector<uint8_t> &resident) {
  PolicyMaker(model, program, policy, decisions, resident).place();
}

Decisions fsdp::planner::makeBaseline(const StepModel &model, Policy policy,
                                      Keep keep, Recompute recompute) {
  Decisions decisions = makeDecisions(model);
  for (size_t p = 0; p != model.programs.size(); ++p) {
    ProgramDecisions &own = decisions.programs[p];
    const Program &program = model.programs[p];
    for (uint32_t module :
         recompute == Recompute::Cheap ? program.cheap : program.recomputable)
      own.recompute[module] = recompute;
    for (size_t u = 0; u != model.units.size(); ++u)
      own.units[u].keep =
          decidesKeep(policy)                                     ? Keep::None
          : isByModule(policy) && model.units[u].module == nobody ? Keep::All
                                                                  : keep;
    PolicyMaker maker(model, p, policy, own, decisions.resident);
    maker.makeCalls();
    if (decidesKeep(policy))
      maker.keepByValue();
    if (decidesRecompute(policy))
      maker.recomputeByValue();
  }
  return decisions;
}

std::vector<Baseline> fsdp::planner::makeBaselines(const StepModel &model) {
  std::vector<std::pair<Recompute, const char *>> recomputes = {
      {Recompute::None, ""}, {Recompute::All, ", all recomputed"}};
  if (std::any_of(model.programs.begin(), model.programs.end(),
                  [](const Program &own) { return !own.cheap.empty(); }))
    recomputes.emplace_back(Recompute::Cheap, ", cheap recomputed");
  std::vector<std::pair<Keep, const char *>> keeps = {
      {Keep::None, ""}, {Keep::All, ", all kept"}};
  if (mayKeepPieces(model))
    keeps.emplace_back(Keep::Piece, ", pieces kept");
  std::vector<Baseline> baselines;
  for (Policy policy : allPolicies)
    for (auto [keep, keepText] : keeps)
      for (auto [recompute, text] : recomputes)
        if (!(keep != Keep::None && decidesKeep(policy)) &&
            !(recompute != Recompute::None && decidesRecompute(policy)))
          baselines.push_back({std::string(getName(policy)) + keepText + text,
                               policy,
                               makeBaseline(model, policy, keep, recompute)});
  return baselines;
}
