//===- PriceDecisions.cpp - What other decisions would cost ---------------===//
//
// Carries each decision out on a copy of the step, makes a scheduling problem
// of that, and compares. What is priced is what the passes would do: there is
// no second description of it.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Analysis/StepProblem.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/CostModel.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/BackwardCopies.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Decisions.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;
namespace scheduling = fsdp::planner::scheduling;

namespace fsdp {
#define GEN_PASS_DEF_PRICEDECISIONSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
/// What a step takes.
struct Price {
  int64_t time;  // nanoseconds
  int64_t bytes; // at the peak, with all that is persistent
};

/// A decision that is not the step's.
struct Alternative {
  std::string what; // "keep h.0": a unit, or a module
  /// Makes it, in a copy of the step.
  std::function<void(func::FuncOp)> decide;
};
} // namespace

/// Gives a unit the other of its two reshard policies.
static void toggleReshard(func::FuncOp step, StringRef name) {
  SymbolTable symbols(step->getParentOfType<ModuleOp>());
  auto unit = symbols.lookup<UnitOp>(name);
  unit.setReshardAfterForward(!unit.getReshardAfterForward());
  applyReshard(step);
}

static SmallVector<Alternative, 0> findAlternatives(func::FuncOp step) {
  SmallVector<Alternative, 0> alternatives;
  DenseMap<Attribute, int> phases; // in which a unit is used, one bit each
  DenseSet<Attribute> inPieces;
  for (Operation &op : step.getOps()) {
    if (auto gather = dyn_cast<UnshardOp>(op))
      for (Operation *user : gather.getFull().getUsers())
        for (Operation *reader : user->getUsers())
          phases[gather.getUnitAttr()] |= isBackward(reader) ? 2 : 1;
    if (auto piece = dyn_cast<PieceOp>(op))
      inPieces.insert(piece.getUnitAttr());
  }
  for (auto unit : step->getParentOfType<ModuleOp>().getOps<UnitOp>()) {
    auto key = FlatSymbolRefAttr::get(unit);
    // What is on every rank as a whole is neither gathered nor freed.
    if (unit.getRoot() || unit.getShardAxes().empty() ||
        phases.lookup(key) != 3 || inPieces.contains(key) ||
        unit.getKeptAfterBackward())
      continue;
    alternatives.push_back(
        {((unit.getReshardAfterForward() ? "keep " : "reshard ") +
          unit.getSymName())
             .str(),
         [name = unit.getSymName()](func::FuncOp copy) {
           toggleReshard(copy, name);
         }});
  }
  using planner::Recompute;
  auto addRecompute = [&](StringRef what, const std::string &module,
                          Recompute much) {
    alternatives.push_back({(what + module).str(), [=](func::FuncOp copy) {
                              recompute(copy, RecomputedModule{module, much});
                            }});
  };
  for (const Recomputable &module : findRecomputable(step)) {
    addRecompute("recompute ", module.path, Recompute::All);
    if (module.hasCheap)
      addRecompute("recompute what is cheap of ", module.path,
                   Recompute::Cheap);
  }
  return alternatives;
}

/// The price of a copy of the step in which `decide` was done.
static FailureOr<Price>
findPrice(func::FuncOp step, const CostModel &costs,
          llvm::function_ref<void(func::FuncOp)> decide) {
  // Of the module, what a step is made with: meshes and units.
  OpBuilder builder(step.getContext());
  OwningOpRef<ModuleOp> scratch(ModuleOp::create(builder, step.getLoc()));
  builder.setInsertionPointToEnd(scratch->getBody());
  for (Operation &op : *step->getParentOfType<ModuleOp>().getBody())
    if (!isa<func::FuncOp>(op))
      builder.clone(op);
  auto copy = cast<func::FuncOp>(builder.clone(*step));
  decide(copy);
  if (failed(makeAsync(copy)) || failed(costs.annotate(copy)))
    return failure();
  auto order = IssueOrder::read(copy.getBody().front());
  if (failed(order))
    return failure();
  placeReduceWaits(*order, ReduceWait::Next);
  StepProblem built = buildStepProblem(copy, *order);
  if (std::string error = check(built.problem); !error.empty())
    return step.emitError("cannot be scheduled: ") << error;
  scheduling::Schedule schedule =
      solve(built.problem, scheduling::Algorithm::List).schedule;
  scheduling::Timeline line = measure(built.problem, schedule);
  return Price{line.makespan, built.persistentBytes + line.peakBytes};
}

/// With a sign: "+1.80 ms".
template <typename Spell>
static std::string spellChange(int64_t by, Spell spell) {
  return (by < 0 ? "-" : "+") + spell(std::abs(by));
}

namespace {
class PriceDecisionsPass
    : public ProgramPass<impl::PriceDecisionsPassBase<PriceDecisionsPass>,
                         Level::Logical> {
  using ProgramPass::ProgramPass;

  void getDependentDialects(DialectRegistry &registry) const final {
    PriceDecisionsPassBase::getDependentDialects(registry);
    registerCostModels(registry);
  }

  LogicalResult runOnProgram(func::FuncOp step) final {
    if (failed(checkStraightLine(step.getBody().front())))
      return failure();
    auto costs = CostModel::load(getOperation(), hardware, profile, whatIf);
    if (failed(costs))
      return failure();
    auto now = findPrice(step, *costs, [](func::FuncOp) {});
    if (failed(now))
      return failure();
    remark::analysis(step.getLoc(),
                     getRemark("fsdp-price-decisions", "step", step))
        << remark::metric("Step", spellTime(now->time))
        << remark::metric("Peak", spellBytes(now->bytes));
    for (const Alternative &other : findAlternatives(step)) {
      auto price = findPrice(step, *costs, other.decide);
      if (failed(price))
        return failure();
      remark::analysis(step.getLoc(),
                       getRemark("fsdp-price-decisions", "decision", step))
          << remark::metric("Decision", other.what)
          << remark::metric("Step", spellTime(price->time))
          << remark::metric("StepChange",
                            spellChange(price->time - now->time, spellTime))
          << remark::metric("Peak", spellBytes(price->bytes))
          << remark::metric(
                 "PeakChange",
                 spellChange(price->bytes - now->bytes, [](int64_t bytes) {
                   return spellBytes(uint64_t(bytes));
                 }));
    }
    return success();
  }
};
} // namespace

} // namespace fsdp
