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
#include <array>
#include <map>
#include <set>
#include <utility>

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
  struct Call {
    bool isGather, isOfPieces;
    Phase phase;
    std::vector<uint32_t> units;
    size_t slot, launch, wait;
    uint32_t launched = 0; // operations of the problem
    std::vector<uint32_t> awaited = {};
  };

  bool stays(uint32_t unit) const {
    return program.role != Program::Role::Whole && resident[unit] &&
           model.units[unit].residentBytes;
  }
  bool isThere(uint32_t unit) const {
    return stays(unit) && program.role != Program::Role::First;
  }
  bool isRun(const ComputeOp &op) const {
    return op.onlyIf == nobody || own.recompute[op.onlyIf] == op.recompute;
  }
  bool hasCopyIn(uint32_t unit) const {
    return program.traffic[unit].copyIn.has_value();
  }
  bool hasCopyOut(uint32_t unit) const {
    return program.traffic[unit].copyOut.has_value();
  }
  bool isKept(uint32_t unit) const {
    return own.units[unit].keep == Keep::All ||
           model.units[unit].staysGathered || stays(unit);
  }

  void listComputations() {
    for (const ComputeOp &op : program.ops) {
      placeOf.push_back(runs.size());
      if (isRun(op))
        runs.push_back(&op);
    }
    std::set<size_t> places = {0};
    std::map<uint32_t, size_t> complete;
    for (size_t i = 0; i != runs.size(); ++i) {
      const ComputeOp *op = runs[i];
      if (op->weights != nobody) {
        auto key = std::make_pair(op->weights, op->phase);
        if (!first.count(key))
          places.insert(first[key] = i);
        last[key] = i;
      }
      if (op->gradient != nobody) {
        if (gradient.try_emplace(op->gradient, i).second)
          places.insert(i);
        complete[op->gradient] = i + 1;
      }
      if (op->update != nobody) {
        update.try_emplace(op->update, i);
        lastUpdate[op->update] = i;
      }
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
                     first.count({unit, Phase::Forward}) && isKept(unit);
      if (isThere(unit) || isAgain)
        continue;
      const Piece &piece = program.traffic[unit].piece;
      bool isOfPiece = phase == Phase::Backward &&
                       first.count({unit, Phase::Forward}) && piece.bytes &&
                       own.units[unit].keep == Keep::Piece;
      auto isLike = [&](uint32_t other) {
        return isOfPiece ? piece.group == program.traffic[other].piece.group
                         : hasCopyIn(unit) == hasCopyIn(other);
      };
      if (own.units[unit][phase].joins && !gathers.empty() &&
          gathers.back().phase == phase &&
          gathers.back().isOfPieces == isOfPiece &&
          isLike(gathers.back().units.back()))
        gathers.back().units.push_back(unit);
      else
        gathers.push_back(
            {true, isOfPiece, phase, {unit}, findSlot(place), place, place});
      if (isOfPiece)
        pieceAt[last[{unit, Phase::Forward}]] = unit;
    }
    for (auto [place, unit] : completeAt) {
      bool isRead = false; // something is updated since the last reduction
      if (!reductions.empty())
        for (size_t i = reductions.back().launch; i != place; ++i)
          isRead |= runs[i]->update != nobody;
      if (!reductions.empty() && !isRead && own.units[unit].reduction.joins &&
          hasCopyOut(unit) == hasCopyOut(reductions.back().units.back()))
        reductions.back().units.push_back(unit);
      else
        reductions.push_back({false, false, Phase::Backward, {unit}, 0, 0, 0});
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
    for (size_t i = reductions.size(); i > 1; --i)
      reductions[i - 2].wait =
          std::min(reductions[i - 2].wait, reductions[i - 1].wait);
  }

  uint32_t add(int64_t duration, uint32_t stream,
               std::vector<uint32_t> after = {}) {
    problem.operations.push_back({duration, stream, stream, std::move(after)});
    return uint32_t(problem.operations.size()) - 1;
  }

  /// A collective waits for the latest one, on each stream, of each group with
  /// which it takes turns.
  uint32_t send(int64_t duration, Stream stream, uint32_t group,
                std::vector<uint32_t> after = {}) {
    for (auto [other, op] : latest)
      if (!model.overlaps.empty() && model.overlaps[group][other.first])
        after.push_back(op);
    uint32_t number = add(duration, 1 + uint32_t(stream), after);
    if (!model.links.empty())
      problem.operations[number].links = model.links[group][size_t(stream)];
    return latest[{group, stream}] = number;
  }

  /// For each operation beside computations, the first wait after which it has
  /// ended: for it, or for something that has waited for it.
  void findEnds() {
    auto count = uint32_t(problem.operations.size());
    ends.assign(count, count - 1);
    std::set<uint32_t> ended;
    for (uint32_t wait = 0; wait != count; ++wait) {
      if (problem.operations[wait].stream != scheduling::computeStream)
        continue;
      std::vector<uint32_t> left = problem.operations[wait].after;
      while (!left.empty()) {
        uint32_t next = left.back();
        left.pop_back();
        if (!ended.insert(next).second)
          continue;
        ends[next] = wait;
        const scheduling::Operation &row = problem.operations[next];
        left.insert(left.end(), row.after.begin(), row.after.end());
        for (uint32_t before = next; before-- != 0;)
          if (problem.operations[before].stream == row.stream) {
            left.push_back(before);
            break;
          }
      }
    }
  }

  template <typename GetCost>
  int64_t getDuration(const Call &call, GetCost &&get) const {
    int64_t latency = 0, transfer = 0;
    for (uint32_t unit : call.units) {
      const CollectiveCost &cost = get(program.traffic[unit]);
      latency = std::max(latency, cost.latency);
      transfer += cost.transfer;
    }
    return (latency + transfer + 500) / 1000;
  }

  void launch(Call &call) {
    const Traffic &row = program.traffic[call.units.front()];
    constexpr uint32_t copies = scheduling::copyStream;
    if (call.isGather) {
      std::vector<uint32_t> after;
      for (uint32_t unit : call.units)
        if (auto copy = program.traffic[unit].copyIn; copy && !call.isOfPieces)
          after.push_back(add(*copy, copies));
      call.launched = send(
          getDuration(call,
                      [&](auto &row) {
                        return call.isOfPieces ? row.piece.gather : row.gather;
                      }),
          Stream::Gather, call.isOfPieces ? row.piece.group : row.gatherGroup,
          after);
      call.awaited = {call.launched};
      return;
    }
    call.launched = uint32_t(problem.operations.size());
    if (row.isReduced)
      call.awaited = {
          send(getDuration(call, [](auto &row) { return row.reduction; }),
               Stream::Reduce, row.reduceGroup)};
    if (row.isAllReduced)
      call.awaited.push_back(
          send(getDuration(call, [](auto &row) { return row.allReduce; }),
               Stream::AllReduce, row.allReduceGroup, call.awaited));
    std::vector<uint32_t> reduced = call.awaited;
    for (uint32_t unit : call.units)
      if (auto copy = program.traffic[unit].copyOut)
        call.awaited.push_back(add(*copy, copies, reduced));
  }

  void issue() {
    problem.numStreams = scheduling::copyStream + 1;
    problem.sharesCore = model.sharesCore;
    problem.contention = model.contention;
    std::vector<uint32_t> fixed; // operations
    for (size_t place = 0; place <= runs.size(); ++place) {
      auto waitFor = [&](Call &call, bool isEarly) {
        if (isAwaited.count(&call) || call.wait != place ||
            call.launch > place || (isEarly && call.launch == place))
          return;
        isAwaited.insert(&call);
        add(0, 0, call.awaited);
      };
      for (Call &call : reductions)
        waitFor(call, true);
      for (Call &call : reductions)
        if (call.launch == place)
          launch(call);
      for (Call &call : gathers)
        if (call.launch == place)
          launch(call);
      for (Call &call : gathers)
        for (uint32_t unit : call.units)
          if (first[{unit, call.phase}] == place)
            add(0, 0, call.awaited);
      for (Call &call : reductions)
        waitFor(call, false);
      if (place == runs.size())
        break;
      const ComputeOp &op = *runs[place];
      if (op.awaits != nobody)
        add(0, 0, {fixed[op.awaits]});
      number.push_back(add(op.duration, 0));
      if (pieceAt.count(place))
        copied[pieceAt[place]] =
            add(program.traffic[pieceAt[place]].piece.copy, 0);
      if (op.launches != nobody) {
        const FixedCall &call = program.calls[op.launches];
        fixed.push_back(call.stream == Stream::Copy
                            ? add(call.duration, scheduling::copyStream)
                            : send(call.duration, call.stream, call.group));
      }
    }
    add(0, 0); // the end, until which results live
  }

  void hold(int64_t bytes, uint32_t from, uint32_t until) {
    if (bytes)
      problem.buffers.push_back({bytes, from, until});
  }

  void addMemory() {
    findEnds();
    auto end = uint32_t(problem.operations.size()) - 1;
    for (Call &call : gathers)
      for (uint32_t unit : call.units) {
        const Traffic &row = program.traffic[unit];
        if (call.isOfPieces)
          hold(row.piece.bytes, copied[unit], ends[call.launched]);
        else
          hold(row.sentBytes, call.launched, ends[call.launched]);
        Phase phase = isKept(unit) && last.count({unit, Phase::Backward})
                          ? Phase::Backward
                          : call.phase;
        bool isCopied = phase == Phase::Forward && copied.count(unit);
        hold(stays(unit) ? 0 : row.gatheredBytes, call.launched,
             isCopied ? copied[unit] : number[last[{unit, phase}]]);
      }
    for (uint32_t unit = 0; unit != model.units.size(); ++unit)
      if (resident[unit])
        hold(model.units[unit].residentBytes, 0, end);
    for (Call &call : reductions)
      for (uint32_t unit : call.units) {
        const Traffic &row = program.traffic[unit];
        hold(row.gradientBytes, number[gradient[unit]],
             row.isCast ? call.launched : ends[call.awaited.front()]);
        for (uint32_t op : call.awaited) // of a stream, the last
          if (op == call.awaited.back() ||
              problem.operations[op].stream !=
                  problem.operations[op + 1].stream)
            hold(row.heldBytes[problem.operations[op].stream - 1],
                 call.launched, ends[op]);
        hold(row.reducedBytes, call.launched, end);
        hold(row.resultBytes, call.launched,
             lastUpdate.count(unit) ? number[lastUpdate[unit]] : end);
      }
    // What is left to the end, and what ends, in whatever order.
    std::vector<std::pair<uint32_t, int64_t>> left;
    for (size_t i = 0; i != runs.size(); ++i) {
      hold(runs[i]->transient, number[i], number[i]);
      if (runs[i]->change > 0)
        left.emplace_back(number[i], runs[i]->change);
      int64_t ends = std::max<int64_t>(-runs[i]->change, 0);
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
    for (const Life &life : program.lives) {
      if (!isRun(program.ops[life.begin]))
        continue;
      size_t until = placeOf[life.end];
      for (const Life::Read &read : life.reads)
        if (read.ifs & 1 << int(own.recompute[read.module]))
          until = std::max(until, placeOf[read.op]);
      hold(life.bytes, number[placeOf[life.begin]], number[until]);
    }
  }

  const StepModel &model;
  const Program &program;
  const ProgramDecisions &own;
  const std::vector<uint8_t> &resident;
  std::vector<const ComputeOp *> runs;
  std::vector<size_t> placeOf; // of each operation of the program
  std::vector<size_t> slots;
  std::map<std::pair<uint32_t, Phase>, size_t> first, last;
  std::map<uint32_t, size_t> gradient, update, lastUpdate;
  std::map<size_t, uint32_t> completeAt;
  std::map<size_t, uint32_t> pieceAt;  // of units, by place
  std::map<uint32_t, uint32_t> copied; // operations, by unit
  std::vector<Call> gathers, reductions;
  std::set<const Call *> isAwaited;
  std::map<std::pair<uint32_t, Stream>, uint32_t> latest; // of a group
  std::vector<uint32_t> ends;                             // by operation
  std::vector<uint32_t> number; // of each computation, in the problem
};

/// The machine of Scheduling.h, one nanosecond after the other. A collective
/// runs on all ranks or on none.
class Stepper {
public:
  using Durations = std::vector<int64_t>;

  Stepper(const scheduling::Problem &problem,
          const std::vector<Durations> &durations)
      : problem(problem), count(problem.operations.size()),
        durations(durations), ranks(durations.size()) {
    for (Rank &rank : ranks) {
      for (uint32_t i = 0; i != count; ++i)
        rank.schedule.order.push_back(i);
      rank.schedule.start.resize(count);
      rank.schedule.end.resize(count);
      rank.state.resize(count, Waiting);
      rank.work.resize(count);
    }
  }

  std::vector<scheduling::Schedule> run() {
    for (;; ++now) {
      while (look()) { // what takes no time may let others start
      }
      if (isAllDone)
        break;
      for (Rank &rank : ranks)
        work(rank);
    }
    std::vector<scheduling::Schedule> schedules;
    for (Rank &rank : ranks)
      schedules.push_back(std::move(rank.schedule));
    return schedules;
  }

private:
  enum State { Waiting, Ready, Running, Done };
  struct Rank {
    scheduling::Schedule schedule;
    std::vector<State> state;
    std::vector<int64_t> work;
    int64_t spare = 0; // of the nanosecond before, for the next computation
  };

  bool isSent(size_t i) const {
    uint32_t stream = problem.operations[i].stream;
    return stream != scheduling::computeStream &&
           stream != scheduling::copyStream;
  }

  void start(size_t r, size_t i) {
    Rank &rank = ranks[r];
    rank.state[i] = Running;
    rank.schedule.start[i] = now;
    if (problem.operations[i].stream == 0)
      rank.work[i] = durations[r][i] * (1024 + problem.contention) -
                     std::exchange(rank.spare, 0);
    else
      rank.work[i] =
          3072 * (isSent(i) ? problem.operations[i].duration : durations[r][i]);
  }

  /// Starts what is ready; a collective when it is on all ranks.
  void startReady(size_t r, size_t i) {
    if (!isSent(i))
      return start(r, i);
    for (const Rank &rank : ranks)
      if (rank.state[i] != Ready)
        return;
    for (size_t other = 0; other != ranks.size(); ++other)
      start(other, i);
  }

  /// Returns whether anything has changed.
  bool look() {
    bool changes = false;
    isAllDone = true;
    for (size_t r = 0; r != ranks.size(); ++r) {
      Rank &rank = ranks[r];
      std::vector<uint8_t> isBusy(problem.numStreams, false);
      bool isComputing = false;
      for (size_t i = 0; i != count; ++i) {
        const scheduling::Operation &op = problem.operations[i];
        State before = rank.state[i];
        bool isFree = !isBusy[op.stream] && (!isComputing || op.runsAhead);
        for (uint32_t other : op.after)
          isFree &= rank.state[other] == Done;
        if (before == Waiting && isFree) {
          rank.state[i] = Ready;
          startReady(r, i);
        }
        if (rank.state[i] == Running && rank.work[i] <= 0) {
          rank.state[i] = Done;
          rank.schedule.end[i] = now;
          if (op.stream == 0)
            rank.spare = -rank.work[i];
        }
        changes |= rank.state[i] != before;
        if (rank.state[i] != Done) {
          isAllDone = false;
          isBusy[op.stream] = true;
          isComputing |= op.stream == 0;
        }
      }
    }
    return changes;
  }

  void work(Rank &rank) {
    rank.spare = 0;
    bool isSending = false;
    std::array<int64_t, numLinks> loads = {};
    for (size_t i = 0; i != count; ++i)
      if (isSent(i) && rank.state[i] == Running) {
        isSending = true;
        for (size_t link = 0; link != numLinks; ++link)
          loads[link] += problem.operations[i].links[link];
      }
    for (size_t i = 0; i != count; ++i) {
      const scheduling::Operation &op = problem.operations[i];
      int64_t most = 1024; // on the links that it goes over
      for (size_t link = 0; link != numLinks; ++link)
        if (op.links[link] != 0 && loads[link] > most)
          most = loads[link];
      if (rank.state[i] == Running)
        rank.work[i] -= op.stream != 0 ? 3072 * 1024 / most
                        : isSending    ? 1024
                                       : 1024 + problem.contention;
    }
  }

  const scheduling::Problem &problem;
  size_t count;
  const std::vector<Durations> &durations;
  std::vector<Rank> ranks;
  int64_t now = 0;
  bool isAllDone = false;
};

/// What the operations of a problem take.
inline std::vector<int64_t> getDurations(const scheduling::Problem &problem) {
  std::vector<int64_t> durations;
  for (const scheduling::Operation &op : problem.operations)
    durations.push_back(op.duration);
  return durations;
}

/// The times of a problem in program order.
inline scheduling::Schedule stepThrough(const scheduling::Problem &problem) {
  return Stepper(problem, {getDurations(problem)}).run().front();
}

} // namespace fsdp::planner::test

#endif // FSDP_TEST_UNIT_PLANNER_REFERENCESTEP_H
