//===- StepModels.h - Models of steps to test with --------------*- C++ -*-===//

#ifndef FSDP_TEST_UNIT_PLANNER_STEPMODELS_H
#define FSDP_TEST_UNIT_PLANNER_STEPMODELS_H

#include "fsdp/Planner/Decisions.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::planner::test {

/// Numbers that are the same everywhere, unlike those of distributions.
class Random {
public:
  explicit Random(uint64_t seed) : engine(seed) {}
  int64_t get(int64_t least, int64_t most) {
    return least + int64_t(engine() % uint64_t(most - least + 1));
  }
  bool flip() { return get(0, 1); }

private:
  std::mt19937_64 engine;
};

/// A chain of units, one computation or more for each in both directions, some
/// of them with a module, and what else a model may have.
class RandomModel {
public:
  RandomModel(Random &random, int64_t mostUnits)
      : random(random), numUnits(uint32_t(random.get(1, mostUnits))) {}

  StepModel build(bool isMicroBatched) {
    model.contention = random.flip() ? 0 : random.get(0, 500);
    bool sharesLinks = random.flip();
    model.persistentBytes = random.get(0, 50);
    addUnits();
    if (sharesLinks)
      addLinks();
    program.name = "step";
    addCall(Phase::Forward);
    parts.resize(numUnits);
    for (uint32_t i = 0; i != numUnits; ++i)
      addForward(i);
    if (numUnits > 2 && random.get(0, 4) == 0)
      addTied();
    addCall(Phase::Backward);
    for (uint32_t i = numUnits; i-- != 0;)
      addBackward(i);
    addLives();
    addPieces();
    finish(isMicroBatched);
    return std::move(model);
  }

private:
  struct Part {
    std::vector<uint32_t> forward, replays, cheap, backward;
  };

  CollectiveCost makeCost() {
    return {random.get(0, 3) * 1000, random.get(1, 30) * 1000};
  }

  void addUnits() {
    bool hasReplicas = random.get(0, 3) == 0, hasGroups = random.get(0, 2) == 0;
    bool isReplicated = random.get(0, 7) == 0; // there are no shards
    bool isOffloaded = random.get(0, 3) == 0;  // of some units
    if (hasGroups)
      model.overlaps = {{0, 0, 1}, {0, 0, 1}, {1, 1, 0}};
    for (uint32_t i = 0; i != numUnits; ++i) {
      Unit unit;
      unit.name = "h." + std::to_string(i);
      unit.module = random.get(0, 4) ? i : nobody;
      unit.staysGathered = random.get(0, 9) == 0;
      Traffic traffic;
      traffic.gatheredBytes = random.get(1, 40);
      traffic.sentBytes = random.get(0, 2) ? 0 : random.get(1, 10);
      traffic.gradientBytes = traffic.gatheredBytes * random.get(1, 2);
      traffic.isCast = random.get(0, 2) == 0;
      int64_t held = random.get(0, 2) ? 0 : random.get(1, 10);
      traffic.reducedBytes = random.get(0, 2) ? 0 : random.get(1, 10);
      traffic.resultBytes = random.get(0, 2) ? 0 : random.get(1, 10);
      traffic.gather = makeCost();
      traffic.isReduced = !isReplicated;
      traffic.isAllReduced = hasReplicas || isReplicated;
      if (traffic.isReduced)
        traffic.reduction = makeCost();
      if (traffic.isAllReduced)
        traffic.allReduce = makeCost();
      if (isOffloaded && random.get(0, 3))
        traffic.copyIn = random.get(0, 20);
      if (isOffloaded && random.get(0, 3))
        traffic.copyOut = random.get(0, 20);
      // By what there is, in parts.
      std::vector<Stream> last;
      if (traffic.isReduced)
        last.push_back(Stream::Reduce);
      if (traffic.isAllReduced)
        last.push_back(Stream::AllReduce);
      if (traffic.copyOut)
        last.push_back(Stream::Copy);
      for (size_t s = 0; s != last.size(); ++s)
        traffic.heldBytes[size_t(last[s])] =
            held * int64_t(s + 1) / int64_t(last.size()) -
            held * int64_t(s) / int64_t(last.size());
      traffic.allReduceGroup = hasGroups;
      if (hasGroups && isReplicated)
        traffic.allReduceGroup = 2;
      model.units.push_back(unit);
      model.modules.push_back(unit.name);
      program.traffic.push_back(traffic);
    }
  }

  /// All take all of one link, or each group and stream its part of some.
  void addLinks() {
    Random own(uint64_t(128 * model.contention + model.persistentBytes));
    constexpr LinkUse some[] = {
        {1024, 0}, {0, 1024}, {1024, 960}, {117, 1024}, {0, 0}};
    bool isAll = own.flip();
    for (uint32_t group = 0; group != 3; ++group) {
      model.links.emplace_back();
      for (LinkUse &links : model.links.back())
        links = some[isAll ? 0 : own.get(0, 4)];
    }
  }

  /// Of some units of some models; nothing else is drawn differently for them.
  void addPieces() {
    Random own(uint64_t(64 * model.contention + model.persistentBytes));
    if (own.flip())
      return;
    for (Traffic &traffic : program.traffic)
      if (own.get(0, 3))
        traffic.piece = {own.get(1, traffic.gatheredBytes),
                         own.get(0, 5),
                         {own.get(0, 3) * 1000, own.get(1, 30) * 1000},
                         model.overlaps.empty() ? 0 : uint32_t(own.get(0, 2))};
  }

  uint32_t add(ComputeOp op) {
    program.ops.push_back(op);
    return uint32_t(program.ops.size()) - 1;
  }

  /// Now and then a collective about which nothing is decided.
  void addCall(Phase phase) {
    if (random.get(0, 2))
      return;
    ComputeOp op;
    op.phase = phase;
    op.launches = uint32_t(program.calls.size());
    add(op);
    constexpr Stream all[] = {Stream::AllReduce, Stream::Gather, Stream::Copy};
    program.calls.push_back({all[random.get(0, 2)], random.get(0, 20),
                             model.overlaps.empty() ? 0 : 2u});
    awaited.push_back(op.launches);
  }

  void addForward(uint32_t unit) {
    for (int64_t n = random.get(1, 2); n != 0; --n) {
      ComputeOp op;
      op.duration = random.get(0, 25);
      op.transient = random.get(0, 15);
      op.change = random.get(0, 3) ? 0 : random.get(0, 9);
      op.weights = n == 1 || random.flip() ? unit : nobody;
      parts[unit].forward.push_back(add(op));
    }
  }

  void addTied() {
    ComputeOp op;
    op.duration = random.get(1, 20);
    op.weights = 0;
    add(op);
    op.phase = Phase::Backward;
    op.gradient = 0;
    add(op);
  }

  void addBackward(uint32_t unit) {
    Part &part = parts[unit];
    bool mayRecompute = random.get(0, 3);
    bool isCheap = mayRecompute && random.get(0, 2);
    if (mayRecompute)
      program.recomputable.insert(program.recomputable.begin(), unit);
    if (isCheap)
      program.cheap.insert(program.cheap.begin(), unit);
    int64_t ops = random.get(1, 2);
    size_t replayed = 0;
    for (int64_t n = 0; n != ops; ++n) {
      // What is recomputed stands in front of what reads it first.
      size_t until = n + 1 == ops ? part.forward.size() : size_t(1);
      for (; mayRecompute && replayed != until; ++replayed)
        part.replays.push_back(
            addReplay(unit, part.forward[replayed], Recompute::All));
      if (isCheap && (n + 1 == ops || random.flip()))
        part.cheap.push_back(
            addReplay(unit, pick(part.forward), Recompute::Cheap));
      ComputeOp op;
      op.phase = Phase::Backward;
      op.duration = random.get(0, 40);
      op.transient = random.get(0, 15);
      op.weights = n == 0 || random.flip() ? unit : nobody;
      op.gradient = n + 1 == ops || random.flip() ? unit : nobody;
      part.backward.push_back(add(op));
      if (!awaited.empty() && random.get(0, 3) == 0) {
        ComputeOp wait;
        wait.phase = Phase::Backward;
        wait.awaits = awaited.back();
        awaited.pop_back();
        add(wait);
      }
    }
  }

  uint32_t addReplay(uint32_t unit, uint32_t of, Recompute recompute) {
    ComputeOp op = program.ops[of];
    op.phase = Phase::Backward;
    op.onlyIf = unit;
    op.recompute = recompute;
    op.change = 0;
    if (recompute == Recompute::Cheap)
      op.duration /= random.get(1, 8);
    return add(op);
  }

  uint32_t pick(const std::vector<uint32_t> &ops) {
    return ops[size_t(random.get(0, int64_t(ops.size()) - 1))];
  }

  /// What each module leaves for its own backward, and for that of the next.
  void addLives() {
    for (uint32_t unit = 0; unit != numUnits; ++unit) {
      const Part &part = parts[unit];
      for (uint32_t op : part.forward)
        for (int64_t n = random.get(0, 2); n != 0; --n) {
          Life life = {random.get(1, 25), op, op, {}};
          for (uint32_t reader : {unit, unit + 1}) {
            if (reader >= numUnits || (reader != unit && random.flip()))
              continue;
            const Part &other = parts[reader];
            if (other.replays.empty()) {
              life.end = std::max(life.end, pick(other.backward));
              continue;
            }
            addReads(life, reader, reader != unit);
          }
          program.lives.push_back(life);
        }
      for (const auto *replays : {&part.replays, &part.cheap})
        for (uint32_t op : *replays) {
          Life life = {random.get(1, 25), op, part.backward.back(), {}};
          // Now and then, what comes after it reads it, too.
          if (unit && !parts[unit - 1].replays.empty() && !random.get(0, 5))
            life.reads.push_back({unit - 1, uint8_t(random.get(0, 7)),
                                  pick(parts[unit - 1].backward)});
          program.lives.push_back(life);
        }
    }
  }

  /// What is read in the backward of a module that may be recomputed: where
  /// that is cheap, by a copy, by the backward as before, or not at all.
  void addReads(Life &life, uint32_t reader, bool isOutside) {
    const Part &part = parts[reader];
    uint8_t ifs = getBit(Recompute::None);
    bool isKept = !part.cheap.empty() && random.flip();
    if (isKept)
      ifs |= getBit(Recompute::Cheap);
    life.reads.push_back({reader, ifs, pick(part.backward)});
    if (isOutside || random.get(0, 3) == 0)
      life.reads.push_back(
          {reader, getBit(Recompute::All), pick(part.replays)});
    if (!part.cheap.empty() && !isKept && random.flip())
      life.reads.push_back(
          {reader, getBit(Recompute::Cheap), pick(part.cheap)});
  }

  void finish(bool isMicroBatched) {
    Program last = program;
    for (uint32_t i = 0; i != numUnits; ++i)
      for (int64_t n = random.get(1, 2); n != 0; --n) {
        ComputeOp op;
        op.phase = Phase::Backward;
        op.duration = random.get(0, 5);
        op.update = i;
        last.ops.push_back(op);
      }
    if (!isMicroBatched) {
      model.programs = {last};
      return;
    }
    model.programs = {program, program, last};
    auto name = [&](size_t i, const char *text, Program::Role role) {
      model.programs[i].name = text;
      model.programs[i].role = role;
    };
    for (uint32_t i = 0; i != numUnits; ++i)
      if (random.get(0, 5)) // some may not stay
        model.units[i].residentBytes = program.traffic[i].gatheredBytes;
    name(0, "first", Program::Role::First);
    name(1, "middle", Program::Role::Middle);
    name(2, "last", Program::Role::Last);
    model.programs[1].count = random.get(1, 14);
  }

  Random &random;
  uint32_t numUnits;
  StepModel model;
  Program program;
  std::vector<Part> parts; // by unit
  std::vector<uint32_t> awaited;
};

inline StepModel makeRandomModel(Random &random, int64_t mostUnits,
                                 bool isMicroBatched = false) {
  return RandomModel(random, mostUnits).build(isMicroBatched);
}

inline Decisions makeRandomDecisions(Random &random, const StepModel &model) {
  Decisions decisions = makeDecisions(model);
  for (size_t p = 0; p != model.programs.size(); ++p) {
    ProgramDecisions &program = decisions.programs[p];
    for (size_t u = 0; u != program.units.size(); ++u) {
      UnitDecision &unit = program.units[u];
      constexpr Keep keeps[] = {Keep::All, Keep::Piece, Keep::None};
      unit.keep = keeps[random.get(0, 2)];
      if (!model.programs[p].traffic[u].piece.bytes && unit.keep == Keep::Piece)
        unit.keep = Keep::None;
      for (UnitDecision::Gather &gather : unit.gathers)
        gather = {random.flip(), uint16_t(random.get(0, 5))};
      unit.reduction = {random.flip(), uint16_t(random.get(0, 5))};
    }
    for (Recompute &recompute : program.recompute)
      recompute = Recompute(random.get(0, 1));
    for (uint32_t module : model.programs[p].cheap)
      program.recompute[module] =
          Recompute(random.get(0, int64_t(numRecomputes) - 1));
  }
  for (uint8_t &resident : decisions.resident)
    resident = uint8_t(random.get(0, 1));
  return decisions;
}

} // namespace fsdp::planner::test

#endif // FSDP_TEST_UNIT_PLANNER_STEPMODELS_H
