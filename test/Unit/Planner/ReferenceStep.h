//===- ReferenceStep.h - A program under decisions, written out -*- C++ -*-===//
//
// The scheduling problem of a program under decisions, by their definitions and
// with no thought of speed: what a program would be in which they were carried
// out. Shares no code with the evaluator.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_UNIT_PLANNER_REFERENCESTEP_H
#define FSDP_TEST_UNIT_PLANNER_REFERENCESTEP_H

#include "fsdp/Planner/Decisions.h"
#include "fsdp/Planner/Scheduling.h"

#include <algorithm>
#include <map>
#include <set>

namespace fsdp::planner::test {

/// Writes a program out; buffers are those that end, and what they leave out is
/// alive throughout.
class ReferenceStep {
public:
  ReferenceStep(const StepModel &model, size_t index,
                const Decisions &decisions)
      : model(model), program(model.programs[index]),
        own(decisions.programs[index]), resident(decisions.resident) {
    listComputations();
    listCalls();
    placeCalls();
    issue();
    addMemory();
  }

  scheduling::Problem problem;

private:
  struct Run {
    const ComputeOp *op;
    Phase phase;
    bool isReplay, isDropped;
    int64_t kept = 0, released = 0;
  };
  struct Call {
    bool isGather;
    Phase phase;
    std::vector<uint32_t> units;
    size_t slot, launch, wait;
    uint32_t launched = 0, awaited = 0; // operations of the problem
  };

  bool stays(uint32_t unit) const {
    return program.role != Program::Role::Whole && resident[unit];
  }
  bool isThere(uint32_t unit) const {
    return stays(unit) && program.role != Program::Role::First;
  }
  bool isRecomputed(const RecomputeGroup &group) const {
    return own.recompute[group.module];
  }

  void listComputations() {
    for (uint32_t i = 0; i != program.ops.size(); ++i) {
      Run run = {&program.ops[i], program.ops[i].phase, false, false};
      for (const RecomputeGroup &group : program.groups) {
        if (!isRecomputed(group))
          continue;
        if (group.backwardBegin == i)
          for (uint32_t op : group.replayed)
            runs.push_back({&program.ops[op], Phase::Backward, true, false});
        run.isDropped |= group.forwardBegin <= i && i < group.forwardEnd;
        if (group.forwardEnd == i + 1)
          run.kept = group.keptBytes;
        if (group.backwardEnd == i + 1)
          run.released = group.keptBytes;
      }
      runs.push_back(run);
    }
    std::set<size_t> places = {0};
    std::map<uint32_t, size_t> complete;
    for (size_t i = 0; i != runs.size(); ++i) {
      auto [op, phase, isReplay, isDropped, kept, released] = runs[i];
      if (op->weights != nobody) {
        auto key = std::make_pair(op->weights, phase);
        if (!first.count(key))
          places.insert(first[key] = i);
        last[key] = i;
      }
      if (isReplay)
        continue;
      if (op->gradient != nobody) {
        gradient.try_emplace(op->gradient, i);
        complete[op->gradient] = i + 1;
      }
      if (op->update != nobody)
        update.try_emplace(op->update, i);
    }
    for (auto [unit, place] : complete)
      places.insert(place);
    slots.assign(places.begin(), places.end());
    for (auto [unit, place] : complete)
      completeAt[place] = unit;
  }

  size_t findSlot(size_t place) const {
    return size_t(std::find(slots.begin(), slots.end(), place) - slots.begin());
  }

  void listCalls() {
    std::map<size_t, std::pair<uint32_t, Phase>> uses; // by place
    for (auto [key, place] : first)
      uses[place] = key;
    for (auto [place, key] : uses) {
      auto [unit, phase] = key;
      bool isAgain = phase == Phase::Backward &&
                     first.count({unit, Phase::Forward}) &&
                     (own.units[unit].keep || stays(unit));
      if (isThere(unit) || isAgain)
        continue;
      if (own.units[unit][phase].joins && !gathers.empty() &&
          gathers.back().phase == phase)
        gathers.back().units.push_back(unit);
      else
        gathers.push_back({true, phase, {unit}, findSlot(place), place, place});
    }
    for (auto [place, unit] : completeAt) {
      bool isRead = false; // something is updated since the last reduction
      if (!reductions.empty())
        for (size_t i = reductions.back().launch; i != place; ++i)
          isRead |= runs[i].op->update != nobody;
      if (!reductions.empty() && !isRead && own.units[unit].reduction.joins)
        reductions.back().units.push_back(unit);
      else
        reductions.push_back({false, Phase::Backward, {unit}, 0, 0, 0});
      reductions.back().slot = findSlot(place);
      reductions.back().launch = place;
    }
  }

  void placeCalls() {
    size_t before = 0;
    for (Call &call : gathers) {
      size_t ahead = own.units[call.units.front()][call.phase].ahead;
      call.launch = slots[ahead > call.slot ? 0 : call.slot - ahead];
      if (call.phase == Phase::Backward)
        for (uint32_t unit : call.units)
          if (last.count({unit, Phase::Forward}))
            call.launch =
                std::max(call.launch, last[{unit, Phase::Forward}] + 1);
      call.launch = before = std::max(before, call.launch);
    }
    for (Call &call : reductions) {
      size_t slot = call.slot + own.units[call.units.front()].reduction.wait;
      call.wait = slot < slots.size() ? slots[slot] : runs.size();
      for (uint32_t unit : call.units)
        if (update.count(unit))
          call.wait = std::min(call.wait, update[unit]);
    }
  }

  uint32_t add(int64_t duration, uint32_t stream,
               std::vector<uint32_t> after = {}) {
    problem.operations.push_back({duration, stream, stream, std::move(after)});
    return uint32_t(problem.operations.size()) - 1;
  }

  static int64_t getDuration(int64_t latency, int64_t transfer) {
    return (latency + transfer + 500) / 1000;
  }

  void launch(Call &call) {
    CollectiveCost cost = {0, 0}, all = {0, 0};
    for (uint32_t unit : call.units) {
      const Unit &row = model.units[unit];
      const CollectiveCost &part = call.isGather ? row.gather : row.reduction;
      cost = {std::max(cost.latency, part.latency),
              cost.transfer + part.transfer};
      all = {std::max(all.latency, row.allReduce.latency),
             all.transfer + row.allReduce.transfer};
    }
    call.launched = call.awaited =
        add(getDuration(cost.latency, cost.transfer), call.isGather ? 1 : 2);
    if (!call.isGather)
      call.awaited =
          add(getDuration(all.latency, all.transfer), 3, {call.launched});
  }

  void issue() {
    problem.numStreams = 4;
    problem.sharesCore = model.sharesCore;
    std::vector<std::pair<uint32_t, uint32_t>> waits; // gather, its wait
    for (size_t place = 0; place <= runs.size(); ++place) {
      auto waitFor = [&](Call &call) {
        call.wait = add(0, 0, {call.awaited}); // from here on, the operation
      };
      for (Call &call : reductions)
        if (!isAwaited.count(&call) && call.launch < place &&
            call.wait == place) {
          isAwaited.insert(&call);
          waitFor(call);
        }
      for (Call &call : gathers)
        if (call.launch == place)
          launch(call);
      for (Call &call : reductions)
        if (call.launch == place && !isAwaited.count(&call))
          launch(call);
      for (Call &call : gathers)
        for (uint32_t unit : call.units)
          if (first[{unit, call.phase}] == place)
            gatherWait[{unit, call.phase}] = add(0, 0, {call.awaited});
      for (Call &call : reductions)
        if (!isAwaited.count(&call) && call.launch == place &&
            call.wait == place) {
          isAwaited.insert(&call);
          waitFor(call);
        }
      if (place != runs.size())
        number.push_back(add(runs[place].op->duration, 0));
    }
    add(0, 0); // the end, until which results live
  }

  void hold(int64_t bytes, uint32_t from, uint32_t until) {
    if (bytes)
      problem.buffers.push_back({bytes, from, until});
  }

  void addMemory() {
    auto end = uint32_t(problem.operations.size()) - 1;
    for (Call &call : gathers)
      for (uint32_t unit : call.units) {
        hold(model.units[unit].sentBytes, call.launched,
             gatherWait[{unit, call.phase}]);
        bool isKept = own.units[unit].keep || stays(unit);
        Phase phase = isKept && last.count({unit, Phase::Backward})
                          ? Phase::Backward
                          : call.phase;
        bool remains = stays(unit) && program.role != Program::Role::Last;
        hold(model.units[unit].gatheredBytes, call.launched,
             remains ? end : number[last[{unit, phase}]]);
      }
    for (uint32_t unit = 0; unit != model.units.size(); ++unit)
      if (isThere(unit)) {
        bool isBackward = last.count({unit, Phase::Backward});
        auto key =
            std::make_pair(unit, isBackward ? Phase::Backward : Phase::Forward);
        hold(model.units[unit].gatheredBytes, 0,
             program.role == Program::Role::Last && last.count(key)
                 ? number[last[key]]
                 : end);
      }
    for (Call &call : reductions)
      for (uint32_t unit : call.units) {
        // The wait at the end has been made an operation as well.
        hold(model.units[unit].gradientBytes, number[gradient[unit]],
             uint32_t(call.wait));
        hold(model.units[unit].reducedBytes, call.launched, end);
      }
    // What ends is what was left last.
    std::vector<std::pair<uint32_t, int64_t>> left;
    auto leave = [&](uint32_t op, int64_t bytes) {
      if (bytes)
        left.emplace_back(op, bytes);
    };
    for (size_t i = 0; i != runs.size(); ++i) {
      const Run &run = runs[i];
      hold(run.op->transient, number[i], number[i]);
      if (run.isDropped && !run.isReplay) {
        hold(std::max<int64_t>(run.op->change, 0), number[i], number[i]);
        leave(number[i], run.kept);
      } else if (run.op->change > 0) {
        leave(number[i], run.op->change);
      }
      int64_t ends =
          (run.isDropped ? 0 : std::max<int64_t>(-run.op->change, 0)) +
          run.released;
      while (ends && !left.empty()) {
        auto &[op, bytes] = left.back();
        int64_t part = std::min(ends, bytes);
        hold(part, op, number[i]);
        ends -= part;
        bytes -= part;
        if (!bytes)
          left.pop_back();
      }
    }
    for (auto [op, bytes] : left)
      hold(bytes, op, end);
  }

  const StepModel &model;
  const Program &program;
  const ProgramDecisions &own;
  const std::vector<uint8_t> &resident;
  std::vector<Run> runs;
  std::vector<size_t> slots;
  std::map<std::pair<uint32_t, Phase>, size_t> first, last;
  std::map<uint32_t, size_t> gradient, update;
  std::map<size_t, uint32_t> completeAt;
  std::vector<Call> gathers, reductions;
  std::set<const Call *> isAwaited;
  std::map<std::pair<uint32_t, Phase>, uint32_t> gatherWait;
  std::vector<uint32_t> number; // of each computation, in the problem
};

/// The time of a problem in program order, one nanosecond after the other.
inline int64_t stepThrough(const scheduling::Problem &problem,
                           int64_t contention, bool sharesLink) {
  size_t count = problem.operations.size();
  std::vector<int64_t> work(count, 0);
  enum { Waiting, Running, Done };
  std::vector<int> state(count, Waiting);
  int64_t now = 0;
  for (;; ++now) {
    std::vector<size_t> running;
    bool changes = true, isAllDone = true;
    while (changes) { // what takes no time may let others start
      changes = false;
      isAllDone = true;
      running.clear();
      std::vector<uint8_t> isBusy(problem.numStreams, false);
      bool isComputing = false;
      for (size_t i = 0; i != count; ++i) {
        const scheduling::Operation &op = problem.operations[i];
        bool isReady = !isBusy[op.stream] && !isComputing;
        for (uint32_t before : op.after)
          isReady &= state[before] == Done;
        if (state[i] == Waiting && isReady) {
          state[i] = Running;
          work[i] = op.duration * (op.stream ? 12 : 1024 + contention);
        }
        if (state[i] == Running && work[i] <= 0) {
          state[i] = Done;
          changes = true;
        }
        if (state[i] == Running)
          running.push_back(i);
        if (state[i] != Done) {
          isAllDone = false;
          isBusy[op.stream] = true;
          isComputing |= op.stream == 0;
        }
      }
    }
    if (isAllDone)
      return now;
    int64_t sent = std::count_if(running.begin(), running.end(), [&](size_t i) {
      return problem.operations[i].stream != 0;
    });
    for (size_t i : running)
      work[i] -= problem.operations[i].stream ? (sharesLink ? 12 / sent : 12)
                 : sent                       ? 1024
                                              : 1024 + contention;
  }
}

} // namespace fsdp::planner::test

#endif // FSDP_TEST_UNIT_PLANNER_REFERENCESTEP_H
