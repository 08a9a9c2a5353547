//===- StepModels.h - Models of steps to test with --------------*- C++ -*-===//

#ifndef FSDP_TEST_UNIT_PLANNER_STEPMODELS_H
#define FSDP_TEST_UNIT_PLANNER_STEPMODELS_H

#include "fsdp/Planner/Decisions.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

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
inline StepModel makeRandomModel(Random &random, int64_t mostUnits,
                                 bool isMicroBatched = false) {
  StepModel model;
  model.contention = random.flip() ? 0 : random.get(0, 500);
  model.sharesLink = random.flip();
  model.persistentBytes = random.get(0, 50);
  int64_t units = random.get(1, mostUnits);
  auto makeCost = [&] {
    return CollectiveCost{random.get(0, 3) * 1000, random.get(1, 30) * 1000};
  };
  bool hasReplicas = random.get(0, 3) == 0;
  for (int64_t i = 0; i != units; ++i) {
    Unit unit;
    unit.name = "h." + std::to_string(i);
    unit.module = random.get(0, 4) ? uint32_t(i) : nobody;
    unit.gatheredBytes = random.get(1, 40);
    unit.sentBytes = random.get(0, 2) ? 0 : random.get(1, 10);
    unit.gradientBytes = unit.gatheredBytes * random.get(1, 2);
    unit.reducedBytes = random.get(0, 2) ? 0 : random.get(1, 10);
    unit.gather = makeCost();
    unit.reduction = makeCost();
    if (hasReplicas)
      unit.allReduce = makeCost();
    model.units.push_back(unit);
    model.modules.push_back(unit.name);
  }
  bool isTied = units > 2 && random.get(0, 4) == 0;

  Program program;
  program.name = "step";
  std::vector<int64_t> saved(size_t(units), 0);
  std::vector<RecomputeGroup> groups;
  for (uint32_t i = 0; i != uint32_t(units); ++i) {
    RecomputeGroup group;
    group.module = i;
    group.forwardBegin = uint32_t(program.ops.size());
    for (int64_t n = random.get(1, 2); n != 0; --n) {
      ComputeOp op;
      op.duration = random.get(0, 25);
      op.change = random.get(0, 30);
      op.transient = random.get(0, 15);
      op.weights = n == 1 || random.flip() ? i : nobody;
      saved[i] += op.change;
      group.replayed.push_back(uint32_t(program.ops.size()));
      program.ops.push_back(op);
    }
    group.forwardEnd = uint32_t(program.ops.size());
    // What is cheap at the end is not needed again.
    if (random.get(0, 3) == 0) {
      group.replayed.pop_back();
      saved[i] -= std::exchange(program.ops.back().change, 0);
    }
    group.keptBytes = std::min<int64_t>(saved[i], random.get(0, 5));
    groups.push_back(group);
  }
  if (isTied) {
    ComputeOp op;
    op.duration = random.get(1, 20);
    op.weights = 0;
    program.ops.push_back(op);
    op.phase = Phase::Backward;
    op.gradient = 0;
    program.ops.push_back(op);
  }
  for (uint32_t i = uint32_t(units); i-- != 0;) {
    groups[i].backwardBegin = uint32_t(program.ops.size());
    int64_t ops = random.get(1, 2);
    for (int64_t n = 0; n != ops; ++n) {
      ComputeOp op;
      op.phase = Phase::Backward;
      op.duration = random.get(0, 40);
      op.transient = random.get(0, 15);
      op.weights = n == 0 || random.flip() ? i : nobody;
      op.gradient = n + 1 == ops || random.flip() ? i : nobody;
      op.change = n + 1 == ops ? -saved[i] : 0;
      program.ops.push_back(op);
    }
    groups[i].backwardEnd = uint32_t(program.ops.size());
    if (random.get(0, 3))
      program.groups.push_back(groups[i]);
  }
  Program last = program;
  for (uint32_t i = 0; i != uint32_t(units); ++i) {
    ComputeOp op;
    op.phase = Phase::Backward;
    op.duration = random.get(0, 5);
    op.update = i;
    last.ops.push_back(op);
  }
  if (!isMicroBatched) {
    model.programs = {last};
    return model;
  }
  model.programs = {program, program, last};
  auto name = [&](size_t i, const char *text, Program::Role role) {
    model.programs[i].name = text;
    model.programs[i].role = role;
  };
  name(0, "first", Program::Role::First);
  name(1, "middle", Program::Role::Middle);
  name(2, "last", Program::Role::Last);
  model.programs[1].count = random.get(1, 14);
  return model;
}

inline Decisions makeRandomDecisions(Random &random, const StepModel &model) {
  Decisions decisions = makeDecisions(model);
  for (ProgramDecisions &program : decisions.programs) {
    for (UnitDecision &unit : program.units) {
      unit.keep = random.get(0, 2) == 0;
      for (UnitDecision::Gather &gather : unit.gathers)
        gather = {random.flip(), uint16_t(random.get(0, 5))};
      unit.reduction = {random.flip(), uint16_t(random.get(0, 5))};
    }
    for (uint8_t &recompute : program.recompute)
      recompute = uint8_t(random.get(0, 1));
  }
  for (uint8_t &resident : decisions.resident)
    resident = uint8_t(random.get(0, 1));
  return decisions;
}

} // namespace fsdp::planner::test

#endif // FSDP_TEST_UNIT_PLANNER_STEPMODELS_H
