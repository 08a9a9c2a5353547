//===- Auto.cpp - Decisions for a step ------------------------------------===//
//
// The one place where a search is run on a module.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Auto.h"

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/InputFile.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/StepModel.h"
#include "fsdp/Planner/Baselines.h"

#include "mlir/IR/Remarks.h"

#include <cmath>

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_AUTOPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// All policies, with units kept or not, and modules recomputed or not.
static std::vector<AutoAnswer::Baseline>
evaluateBaselines(const planner::StepModel &model) {
  std::vector<AutoAnswer::Baseline> baselines;
  for (planner::Policy policy : planner::allPolicies)
    for (bool keep : {false, true})
      for (bool recompute : {false, true}) {
        std::string name = planner::getName(policy);
        if (keep)
          name += ", all kept";
        if (recompute)
          name += ", all recomputed";
        baselines.push_back(
            {name,
             planner::evaluate(model, planner::makeBaseline(model, policy, keep,
                                                            recompute))});
      }
  return baselines;
}

/// All transfers of the model take `factor` times as long, and computations.
static planner::StepModel scale(planner::StepModel model, double network,
                                double compute) {
  auto times = [](int64_t &time, double factor) {
    time = std::llround(double(time) * factor);
  };
  for (planner::Program &program : model.programs) {
    for (planner::Traffic &row : program.traffic)
      for (planner::CollectiveCost *cost :
           {&row.gather, &row.reduction, &row.allReduce})
        times(cost->transfer, network);
    for (planner::ComputeOp &op : program.ops)
      times(op.duration, compute);
  }
  return model;
}

static std::vector<AutoAnswer::Scenario>
evaluateScenarios(const planner::StepModel &model,
                  const planner::Decisions &decisions) {
  auto evaluate = [&](double network, double compute) {
    return planner::evaluate(scale(model, network, compute), decisions).time;
  };
  return {{"a network of 20 % less bandwidth", evaluate(1 / 0.8, 1)},
          {"computations that take 10 % longer", evaluate(1, 1.1)},
          {"computations that take 10 % less", evaluate(1, 0.9)}};
}

/// A short search from what was found, with a gibibyte more, or a tenth of the
/// budget if that is less.
static AutoAnswer::Price findPrice(planner::StepModel model,
                                   planner::SearchOptions options,
                                   const planner::Decisions &decisions) {
  constexpr int64_t most = int64_t(1) << 30;
  AutoAnswer::Price price;
  price.more = std::min(most, model.budget / 10);
  model.budget += price.more;
  options.evaluations /= 4;
  options.starts = {decisions};
  price.time = planner::search(model, options).outcome.time;
  return price;
}

static LogicalResult rejectBudget(func::FuncOp program,
                                  const planner::SearchAnswer &answer,
                                  const planner::StepModel &model) {
  return program.emitError("no decisions hold at most ")
         << spellBytes(model.budget) << ": the smallest budget that is known "
         << "to work is " << answer.outcome.peakBytes << " bytes, "
         << spellBytes(model.persistentBytes)
         << " of it persistent; shard over more ranks, or allow more";
}

static FailureOr<planner::Decisions> readFile(func::FuncOp program,
                                              const planner::StepModel &model,
                                              const std::string &path) {
  auto fail = [&](const std::string &message) {
    program.emitError(message);
    return failure();
  };
  auto file = archive::InputFile::open(path);
  if (!file)
    return fail(file.error().message);
  auto text = file->read();
  if (!text)
    return fail(text.error().message);
  auto decisions = planner::readDecisions(model, *text, path);
  if (!decisions)
    return fail(decisions.error().message);
  if (llvm::is_contained(decisions->resident, true))
    return fail(path + ": expected `resident` to be empty: units that stay "
                       "gathered from one micro-batch to the next are decided "
                       "by --reshard-after-backward");
  return *decisions;
}

FailureOr<AutoAnswer> decide(ModuleOp module, const CostModel &costs,
                             const AutoSettings &settings) {
  auto programs = getPrograms(module);
  if (failed(programs))
    return failure();
  func::FuncOp first = programs->front();
  FailureOr<BuiltModel> built = buildStepModel(*programs, costs);
  if (failed(built))
    return failure();
  planner::StepModel &model = built->model;
  if (settings.budget)
    model.budget = settings.budget;
  AutoAnswer result;
  planner::Decisions &decisions = result.decisions;
  if (settings.searches) {
    planner::SearchOptions options;
    options.evaluations = settings.evaluations;
    options.progress = settings.progress;
    options.starts = settings.starts;
    planner::SearchAnswer answer = planner::search(model, options);
    if (!answer.isFeasible)
      return rejectBudget(first, answer, model);
    decisions = std::move(answer.decisions);
    result.outcome = answer.outcome;
    result.bound = answer.bound;
    result.evaluations = answer.evaluations;
    if (settings.findsPrice && settings.budget)
      result.price = findPrice(model, options, decisions);
    if (!settings.file.empty())
      if (auto written = archive::writeFile(settings.file,
                                            {planner::write(model, decisions)});
          !written)
        return first.emitError(written.error().message);
  } else {
    FailureOr<planner::Decisions> read = readFile(first, model, settings.file);
    if (failed(read))
      return failure();
    decisions = std::move(*read);
    result.outcome = planner::evaluate(model, decisions);
    result.bound = planner::findBound(model);
  }
  result.baselines = evaluateBaselines(model);
  result.scenarios = evaluateScenarios(model, decisions);
  if (failed(applyDecisions(*programs, *built, decisions)))
    return failure();
  return result;
}

namespace {
class AutoPass : public impl::AutoPassBase<AutoPass> {
  using AutoPassBase::AutoPassBase;

  void getDependentDialects(DialectRegistry &registry) const final {
    AutoPassBase::getDependentDialects(registry);
    registerCostModels(registry);
  }

  LogicalResult run() {
    auto programs = getPrograms(getOperation());
    if (failed(programs))
      return failure();
    func::FuncOp first = programs->front();
    for (func::FuncOp program : *programs)
      if (failed(checkLevel(program, Level::Logical)))
        return failure();
    if (!automatic && decisions.empty())
      return first.emitError("expected `auto`, or a file of decisions");
    auto costs = CostModel::load(getOperation(), hardware, profile, whatIf);
    if (failed(costs))
      return failure();
    AutoSettings settings;
    settings.searches = automatic;
    settings.file = decisions;
    settings.budget = budget;
    settings.evaluations = evaluations;
    auto answer = decide(getOperation(), *costs, settings);
    if (failed(answer))
      return failure();
    auto remark =
        remark::analysis(first.getLoc(), getRemark("fsdp-auto", "step", first));
    remark << remark::metric("Step", spellTime(answer->outcome.time))
           << remark::metric("Peak", spellBytes(answer->outcome.peakBytes))
           << remark::metric("Evaluations", answer->evaluations);
    if (answer->bound)
      remark << remark::metric("Bound", spellTime(answer->bound->time))
             << remark::metric("BoundBy", StringRef(answer->bound->name));
    return success();
  }

  void runOnOperation() final {
    if (failed(run()))
      signalPassFailure();
  }
};
} // namespace

} // namespace fsdp
