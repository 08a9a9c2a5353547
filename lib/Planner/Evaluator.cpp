//===- Evaluator.cpp - Evaluation, and fitting into a budget --------------===//
//
// To fit, everything is placed where it needs least memory; then waits move
// back, the last one first, and launches forward, slot by slot while there is
// room. So room that is not there can never leave a step that waits for itself.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Evaluator.h"

#include "Layout.h"

#include <algorithm>

using namespace fsdp::planner;

struct Evaluator::Impl {
  Impl(const StepModel &model, const Program &program,
       const std::vector<Scenario> &scenarios)
      : layout(model, program, scenarios) {}

  Outcome finish(int64_t transient,
                 int64_t mostTime = std::numeric_limits<int64_t>::max());
  /// True if so many bytes more fit into all of [begin, end). Its launches of
  /// reductions begin with those of `begin`, or with those one place later.
  bool hasRoom(uint32_t begin, uint32_t end, int64_t bytes,
               uint32_t firstLaunch) const;
  void take(uint32_t begin, uint32_t end, int64_t bytes, uint32_t firstLaunch);
  void delayWait(Layout::Call &call, uint32_t before,
                 ProgramDecisions &decisions);
  void launchEarly(Layout::Call &call, uint32_t before,
                   ProgramDecisions &decisions);

  Layout layout;
  Machine machine;
  int64_t room = 0; ///< The budget without what is persistent.
};

Evaluator::Evaluator(const StepModel &model, size_t program,
                     const std::vector<Scenario> &scenarios)
    : impl(std::make_unique<Impl>(model, model.programs[program], scenarios)) {}

Evaluator::~Evaluator() = default;

/// Places and memory are the same in all scenarios: there is one layout.
Outcome Evaluator::Impl::finish(int64_t transient, int64_t mostTime) {
  Outcome outcome;
  outcome.time = outcome.meanTime = machine.run(layout, 0);
  outcome.peakBytes = layout.model.persistentBytes + transient;
  if (outcome.peakBytes > layout.model.budget || outcome.time > mostTime)
    return outcome;
  size_t scenarios = layout.getTimes().size();
  for (size_t i = 1; i != scenarios; ++i)
    outcome.meanTime += machine.run(layout, i);
  outcome.meanTime /= int64_t(scenarios);
  return outcome;
}

Outcome Evaluator::evaluate(const ProgramDecisions &decisions,
                            const std::vector<uint8_t> &resident) {
  impl->layout.build(decisions, resident);
  return impl->finish(impl->layout.findMemory());
}

std::vector<int64_t> Evaluator::findTimes(const ProgramDecisions &decisions,
                                          const std::vector<uint8_t> &resident,
                                          const std::vector<int64_t> &most) {
  Layout &layout = impl->layout;
  layout.build(decisions, resident);
  std::vector<int64_t> times;
  if (layout.model.persistentBytes + layout.findMemory() > layout.model.budget)
    return times;
  for (size_t i = 0; i != layout.getTimes().size(); ++i) {
    times.push_back(impl->machine.run(layout, i));
    if (!most.empty() && times.back() > most[i])
      return {};
  }
  return times;
}

bool Evaluator::Impl::hasRoom(uint32_t begin, uint32_t end, int64_t bytes,
                              uint32_t firstLaunch) const {
  for (uint32_t place = end; place-- != begin;)
    if (std::max(layout.boundary[place], layout.inside[place]) > room - bytes)
      return false;
  for (uint32_t place = begin; place != end; ++place)
    if (layout.launching[place + firstLaunch] > room - bytes)
      return false;
  return true;
}

void Evaluator::Impl::take(uint32_t begin, uint32_t end, int64_t bytes,
                           uint32_t firstLaunch) {
  for (uint32_t place = begin; place != end; ++place) {
    layout.boundary[place] += bytes;
    layout.inside[place] += bytes;
    layout.launching[place + firstLaunch] += bytes;
  }
}

/// At the place of the launch itself its memory is alive in any case.
void Evaluator::Impl::delayWait(Layout::Call &call, uint32_t before,
                                ProgramDecisions &decisions) {
  uint16_t &wait =
      decisions.units[layout.reductionUnits[call.begin]].reduction.wait;
  uint16_t most = wait;
  uint32_t bound = std::min(before, call.bound);
  wait = 0;
  while (wait != most) {
    uint32_t next = std::min(
        layout.getOrder().getPlace(call.slot + wait + size_t(1)), bound);
    if (next <= call.wait)
      return;
    int64_t atLaunch = call.wait == call.launch ? call.bytes : 0;
    layout.boundary[call.wait] -= atLaunch;
    layout.launching[call.wait] -= atLaunch;
    if (!hasRoom(call.wait, next, call.bytes, 0)) {
      layout.boundary[call.wait] += atLaunch;
      layout.launching[call.wait] += atLaunch;
      return;
    }
    take(call.wait, next, call.bytes, 0);
    ++wait;
    call.wait = next;
  }
}

void Evaluator::Impl::launchEarly(Layout::Call &call, uint32_t before,
                                  ProgramDecisions &decisions) {
  uint16_t &ahead =
      decisions.units[layout.gatherUnits[call.begin]][call.phase].ahead;
  uint16_t most = ahead;
  uint32_t bound = std::max(before, call.bound);
  ahead = 0;
  while (ahead < most && ahead < call.slot && call.launch > bound) {
    uint32_t next =
        std::max(layout.getOrder().slots[call.slot - ahead - 1], bound);
    if (!hasRoom(next, call.launch, call.bytes, 1))
      return;
    take(next, call.launch, call.bytes, 1);
    call.launch = next;
    ++ahead;
  }
}

Outcome Evaluator::fit(ProgramDecisions &decisions,
                       const std::vector<uint8_t> &resident, int64_t mostTime) {
  Layout &layout = impl->layout;
  layout.build(decisions, resident, /*lean=*/true);
  impl->room = layout.model.budget - layout.model.persistentBytes;
  int64_t needed = layout.findMemory();
  if (needed > impl->room) {
    for (UnitDecision &unit : decisions.units) {
      for (UnitDecision::Gather &gather : unit.gathers)
        gather.ahead = 0;
      unit.reduction.wait = 0;
    }
    return {0, layout.model.persistentBytes + needed, 0};
  }
  uint32_t next = nobody;
  for (size_t i = layout.reductions.size(); i-- != 0;) {
    impl->delayWait(layout.reductions[i], next, decisions);
    next = layout.reductions[i].wait;
  }
  uint32_t before = 0;
  for (Layout::Call &call : layout.gathers) {
    impl->launchEarly(call, before, decisions);
    before = call.launch;
  }
  if (!layout.mayEndEarly())
    return impl->finish(layout.findMost(), mostTime);
  // So far, everything was alive up to its wait; perhaps it ends before.
  layout.findEnds();
  return impl->finish(layout.findMemory(), mostTime);
}

size_t Evaluator::getNumEvents() const {
  const Layout &layout = impl->layout;
  return layout.getOrder().ops.size() + layout.gathers.size() +
         layout.reductions.size();
}

Outcome fsdp::planner::evaluate(const StepModel &model,
                                const Decisions &decisions,
                                const std::vector<Scenario> &scenarios) {
  Outcome step = {0, model.persistentBytes, 0};
  for (size_t program = 0; program != model.programs.size(); ++program) {
    Outcome own =
        Evaluator(model, program, scenarios)
            .evaluate(decisions.programs[program], decisions.resident);
    step.time += model.programs[program].count * own.time;
    step.meanTime += model.programs[program].count * own.meanTime;
    step.peakBytes = std::max(step.peakBytes, own.peakBytes);
  }
  return step;
}
