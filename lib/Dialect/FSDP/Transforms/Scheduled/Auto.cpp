//===- Auto.cpp - Decisions for a step ------------------------------------===//
//
// A model of the step, decisions about it, and the step that they make.
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

#include "mlir/IR/Remarks.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_AUTOPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

FailureOr<planner::SearchAnswer>
searchDecisions(ModuleOp module, const planner::StepModel &model,
                const planner::SearchOptions &options,
                llvm::function_ref<std::string()> advise) {
  planner::SearchAnswer answer = planner::search(model, options);
  if (answer.isFeasible)
    return answer;
  return emitError(module.getLoc())
         << "no decisions hold at most " << spellBytes(model.budget)
         << ": the smallest budget that is known to work is "
         << answer.outcome.peakBytes << " bytes, "
         << spellBytes(model.persistentBytes)
         << " of it persistent; shard over more ranks, or allow more"
         << advise();
}

FailureOr<planner::SearchAnswer> readDecisions(ModuleOp module,
                                               const planner::StepModel &model,
                                               const std::string &path) {
  auto reject = [&](const std::string &sentence) {
    return emitError(module.getLoc()) << sentence;
  };
  auto text = archive::InputFile::readWhole(path);
  if (!text)
    return reject(text.error().message);
  auto decisions = planner::readDecisions(model, *text, path);
  if (!decisions)
    return reject(decisions.error().message);
  for (auto [unit, isResident] :
       llvm::zip_equal(model.units, decisions->resident))
    if (isResident && !unit.residentBytes)
      return reject(path +
                    ": expected in `resident` units that are gathered "
                    "in a step of several micro-batches (--accumulate "
                    "K), found \"" +
                    unit.name + "\"");
  planner::SearchAnswer answer;
  answer.isFeasible = true;
  answer.outcome = planner::evaluate(model, *decisions);
  answer.bound = planner::findBound(model);
  answer.decisions = std::move(*decisions);
  return answer;
}

namespace {
class AutoPass : public impl::AutoPassBase<AutoPass> {
  using AutoPassBase::AutoPassBase;

  void getDependentDialects(DialectRegistry &registry) const final {
    AutoPassBase::getDependentDialects(registry);
    registerCostModels(registry);
  }

  LogicalResult run() {
    ModuleOp module = getOperation();
    auto programs = getPrograms(module);
    if (failed(programs))
      return failure();
    for (func::FuncOp program : *programs)
      if (failed(checkLevel(program, Level::Logical)))
        return failure();
    if (!automatic && decisions.empty())
      return module.emitError("expected `auto`, or a file of decisions");
    auto costs = CostModel::load(module, hardware, profile, whatIf);
    if (failed(costs))
      return failure();
    auto built = buildStepModel(*programs, *costs);
    if (failed(built))
      return failure();
    if (budget)
      built->model.budget = budget;
    auto answer = decide(built->model);
    if (failed(answer))
      return failure();
    emitRemark(programs->front(), *answer);
    return applyDecisions(*programs, *built, answer->decisions);
  }

  FailureOr<planner::SearchAnswer> decide(const planner::StepModel &model) {
    if (!automatic)
      return readDecisions(getOperation(), model, decisions);
    auto answer = searchDecisions(
        getOperation(), model, planner::makeSearchOptions(evaluations, robust));
    if (failed(answer) || decisions.empty())
      return answer;
    auto written = archive::writeFile(
        decisions, {planner::write(model, answer->decisions)});
    if (!written)
      return getOperation().emitError(written.error().message);
    return answer;
  }

  void emitRemark(func::FuncOp first, const planner::SearchAnswer &answer) {
    auto remark =
        remark::analysis(first.getLoc(), getRemark("fsdp-auto", "step", first));
    remark << remark::metric("Step", spellTime(answer.outcome.time))
           << remark::metric("Peak", spellBytes(answer.outcome.peakBytes))
           << remark::metric("Evaluations", answer.evaluations);
    if (answer.bound)
      remark << remark::metric("Bound", spellTime(answer.bound->time))
             << remark::metric("BoundBy", StringRef(answer.bound->name));
  }

  void runOnOperation() final {
    if (failed(run()))
      signalPassFailure();
  }
};
} // namespace

} // namespace fsdp
