//===- Scenario.cpp - Machines that are not as predicted ------------------===//

#include "fsdp/Planner/Scenario.h"

#include "Times.h"

#include <cmath>

using namespace fsdp::planner;

Times::Times(const Program &program, const Scenario &scenario)
    : contention(scenario.contention) {
  auto scale = [](int64_t time, double factor) {
    return int64_t(std::llround(double(time) * factor));
  };
  for (const ComputeOp &op : program.ops)
    before.push_back(before.back() + scale(op.duration, scenario.compute));
  for (const FixedCall &call : program.calls)
    calls.push_back(call.duration);
  for (const Traffic &row : program.traffic) {
    units.push_back({row.gather, row.reduction, row.allReduce, row.piece.gather,
                     scale(row.piece.copy, scenario.compute)});
    Costs &own = units.back();
    for (CollectiveCost *cost :
         {&own.gather, &own.reduction, &own.allReduce, &own.pieceGather})
      cost->transfer = scale(cost->transfer, scenario.network);
  }
}

const std::vector<Scenario> &fsdp::planner::getRobustScenarios() {
  static const std::vector<Scenario> scenarios = {
      {},
      {"a network of 20 % less bandwidth", 1 / 0.8, 1},
      {"computations that take 10 % longer", 1, 1.1}};
  return scenarios;
}

const std::vector<Scenario> &fsdp::planner::getOtherScenarios() {
  static const std::vector<Scenario> scenarios = {
      {"a network of 20 % less bandwidth", 1 / 0.8, 1},
      {"a network of 20 % more bandwidth", 1 / 1.2, 1},
      {"computations that collectives slow by 5 %", 1, 1, 1024 / 20},
      {"computations that collectives slow by 40 %", 1, 1, 1024 * 2 / 5}};
  return scenarios;
}

const Scenario &fsdp::planner::getHalfNetwork() {
  static const Scenario scenario = {"a network of half the bandwidth", 2, 1};
  return scenario;
}
