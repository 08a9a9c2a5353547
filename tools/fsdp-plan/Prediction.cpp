//===- Prediction.cpp - What a program is predicted to take ---------------===//

#include "Prediction.h"

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"
#include "fsdp/Planner/Stragglers.h"

#include <numeric>
#include <set>

using namespace mlir;
using namespace fsdp;
namespace scheduling = fsdp::planner::scheduling;

StringRef fsdp::getRole(Operation *op) {
  if (auto call = dyn_cast<aten::CallOp>(op))
    return aten::stringifyPhase(call.getPhase().value_or(aten::Phase::Forward));
  if (auto wait = dyn_cast<AsyncWaitOp>(op))
    if (Operation *launch = wait.getFuture().getDefiningOp())
      return getRole(launch);
  if (auto launch = dyn_cast<LaunchOpInterface>(op))
    if (aten::PhaseAttr phase = launch.getPhaseAttr())
      return aten::stringifyPhase(phase.getValue());
  if (isa<PieceOp>(op))
    return "forward";
  return isa<UpdateOpInterface, MeasureOp, ClipFactorOp, ScaleOp>(op)
             ? "update"
             : "backward";
}

static std::vector<uint32_t>
getProgramOrder(const scheduling::Problem &problem) {
  std::vector<uint32_t> order(problem.operations.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

static StepProblem read(func::FuncOp program) {
  auto order = IssueOrder::read(program.getBody().front());
  assert(succeeded(order) && "the schedule has been applied");
  return buildStepProblem(program, *order);
}

Simulation::Simulation(func::FuncOp program) : step(read(program)) {
  schedule = simulate(step.problem, getProgramOrder(step.problem));
  line = measure(step.problem, schedule);
}

static void addFlops(func::FuncOp program, const planner::Hardware &hardware,
                     PlanSummary::Prediction &predicted) {
  SymbolTableCollection symbols;
  for (auto call : program.getOps<aten::CallOp>()) {
    Work work = cast<CostOpInterface>(call.getOperation()).getWork(symbols);
    auto *computation = std::get_if<planner::Computation>(&work);
    if (!computation || call.getPhase() == aten::Phase::Recompute ||
        computation->kind == planner::Computation::Kind::Vector)
      continue;
    predicted.flops += computation->flops;
    predicted.atPeak +=
        computation->flops / hardware.peak[size_t(computation->type)];
  }
}

PlanSummary::Prediction fsdp::predict(func::FuncOp program,
                                      const planner::Hardware &hardware) {
  Simulation simulation(program);
  PlanSummary::Prediction predicted;
  addFlops(program, hardware, predicted);
  const scheduling::Schedule &schedule = simulation.schedule;
  predicted.nanoseconds = simulation.line.makespan;
  predicted.slowed = simulation.line.slowed;
  for (auto [number, ops] : llvm::enumerate(simulation.step.operations)) {
    auto launch = dyn_cast<LaunchOpInterface>(ops.front());
    if (!launch)
      continue;
    auto collective = dyn_cast<CollectiveOpInterface>(ops.front());
    PlanSummary::Transfer row;
    row.kind = collective ? stringifyCollectiveKind(collective.getKind()).str()
                          : "copy";
    for (Operation *op : ops)
      if (auto unit = cast<LaunchOpInterface>(op).getUnitAttr())
        row.units.push_back(unit.getValue().str());
    row.phase = getRole(launch).str();
    row.nanoseconds = schedule.end[number] - schedule.start[number];
    row.exposed = simulation.line.exposed[number];
    predicted.exposed += row.exposed;
    predicted.transfers.push_back(std::move(row));
  }
  predicted.problem = std::make_shared<const scheduling::Problem>(
      std::move(simulation.step.problem));
  return predicted;
}

std::vector<PlanSummary::Jitter>
fsdp::predictJitter(const PlanSummary &summary) {
  auto all =
      uint32_t(std::min<uint64_t>(summary.ranks, scheduling::mostVaried));
  std::vector<PlanSummary::Jitter> rows;
  if (all < 2)
    return rows;
  for (uint32_t ranks : std::set<uint32_t>{std::min(all, 8u), all})
    for (double spread : {0.02, 0.05, 0.1}) {
      rows.push_back({spread, ranks, 0});
      for (const PlanSummary::Program &program : summary.programs)
        if (program.runs && program.predicted.problem) {
          const scheduling::Problem &problem = *program.predicted.problem;
          rows.back().nanoseconds +=
              program.runs *
              simulateVaried(problem, getProgramOrder(problem), ranks, spread);
        }
    }
  return rows;
}
