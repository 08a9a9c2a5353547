//===- Remat.cpp - Compute again what the backward reads of the forward ---===//
//
// Scope by scope: what the backward reads of a scope is computed anew in front
// of its first use there, from what enters the scope and from the gathers of
// the backward. What leaves a scope, and what has an effect, is kept. Or only
// what is cheap is computed anew, from what is not.
//
//===----------------------------------------------------------------------===//

#include "CheapChains.h"

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Analysis/Memory.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/BackwardCopies.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_REMATPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// Floating-point operations.
static int64_t getFlops(Operation *op) {
  SymbolTableCollection symbols; // of which calls need none
  auto costly = dyn_cast<CostOpInterface>(op);
  Work work = costly ? costly.getWork(symbols) : Work();
  auto *computation = std::get_if<planner::Computation>(&work);
  return computation ? int64_t(computation->flops) : 0;
}

namespace {
using planner::Recompute;

/// The calls of a module in the forward.
struct Scope {
  std::string path;
  SmallVector<Operation *, 0> calls;
};

/// What repeating a scope means.
struct Repetition {
  /// The calls of the scope that may be repeated.
  BackwardCopies::Operations calls;
  /// The reads of the backward that are replaced, in order.
  BackwardCopies::Uses uses;
  int64_t operations = 0, flops = 0;
  int64_t bytes = 0; // that are no longer kept for the backward
};

class Rematerializer {
public:
  explicit Rematerializer(func::FuncOp step)
      : step(step), block(step.getBody().front()), copies(step),
        parameters(copies.findParameters(
            [](UnitOp unit) { return unit.getReshardAfterForward(); })),
        computedFromParameters(
            copies.findParameters([](UnitOp) { return true; })) {}

  /// `isScope` says which modules are repeated; with a budget, only as many of
  /// them as it takes. Returns how many there are to choose from.
  size_t findScopes(llvm::function_ref<bool(StringRef)> isScope);
  LogicalResult run(int64_t budget, Recompute recompute);
  /// Repeats all of them, and says nothing but which calls those are.
  std::vector<Recomputed> repeatAll(ArrayRef<RecomputedModule> modules);
  /// The scopes of which something can be repeated.
  std::vector<Recomputable> getRepeatable();

  /// The paths of all modules in the forward, in order.
  std::vector<std::string> getPaths();

private:
  BackwardCopies::Operations findRepeatable(const Scope &scope) const;
  Repetition plan(const Scope &scope, Recompute recompute);
  /// Returns what became of each value that is computed again.
  IRMapping apply(const Repetition &repetition);
  bool isRepeated(const BackwardCopies::Operations &calls,
                  Operation *op) const {
    return op && (calls.contains(op) || parameters.contains(op));
  }
  func::FuncOp step;
  Block &block;
  BackwardCopies copies;
  /// Memory of units that are resharded after the forward, and what is computed
  /// from it alone.
  BackwardCopies::Operations parameters;
  /// The same, whatever is resharded.
  BackwardCopies::Operations computedFromParameters;
  SmallVector<Scope, 0> scopes;
  /// Memory that the backward reads: now, and where nothing is repeated.
  DenseSet<Value> kept, readAtFirst;
};
} // namespace

//===----------------------------------------------------------------------===//
// What there is
//===----------------------------------------------------------------------===//

std::vector<std::string> Rematerializer::getPaths() {
  std::vector<std::string> paths;
  for (auto call : block.getOps<aten::CallOp>()) {
    StringRef scope = call.getScope().value_or("");
    if (scope.empty() || isBackward(call))
      continue;
    for (size_t end = 0; end != StringRef::npos;) {
      end = scope.find('.', end + 1);
      paths.push_back(generalizePath(scope.take_front(end)));
    }
  }
  return paths;
}

size_t Rematerializer::findScopes(llvm::function_ref<bool(StringRef)> isScope) {
  // The outermost module around a call that is asked for.
  llvm::StringMap<std::string> known;
  auto getPath = [&](StringRef scope) -> StringRef {
    auto [entry, isNew] = known.try_emplace(scope);
    for (size_t end = 0; isNew && end != StringRef::npos;) {
      end = scope.find('.', end + 1);
      if (isScope(scope.take_front(end))) {
        entry->second = scope.take_front(end).str();
        break;
      }
    }
    return entry->second;
  };
  llvm::StringMap<unsigned> index;
  for (auto call : block.getOps<aten::CallOp>()) {
    if (isBackward(call)) {
      for (Value input : call.getInputs())
        kept.insert(aten::getViewRoot(input));
      continue;
    }
    StringRef path = call.getScope() ? getPath(*call.getScope()) : StringRef();
    if (path.empty())
      continue;
    auto [entry, isNew] = index.try_emplace(path, scopes.size());
    if (isNew)
      scopes.push_back({path.str(), {}});
    scopes[entry->second].calls.push_back(call);
  }
  readAtFirst = kept;
  return scopes.size();
}

//===----------------------------------------------------------------------===//
// Repeating
//===----------------------------------------------------------------------===//

/// What may be repeated.
BackwardCopies::Operations
Rematerializer::findRepeatable(const Scope &scope) const {
  BackwardCopies::Operations found;
  DenseSet<Operation *> inside(scope.calls.begin(), scope.calls.end()), leaving;
  // What the forward reads outside is kept, and so is the memory of a view.
  for (Operation *op : llvm::reverse(scope.calls))
    if (llvm::any_of(op->getUsers(), [&](Operation *user) {
          return !isBackward(user) &&
                 (!inside.contains(user) ||
                  (leaving.contains(user) && aten::getViewSource(user)));
        }))
      leaving.insert(op);
  for (Operation *op : scope.calls) {
    auto call = cast<aten::CallOp>(op);
    bool isViewOfKept = aten::getViewSource(call) &&
                        llvm::none_of(call.getInputs(), [&](Value input) {
                          return isRepeated(found, input.getDefiningOp());
                        });
    if (call.getFacts() && isMemoryEffectFree(op) && !leaving.contains(op) &&
        !isViewOfKept)
      found.insert(op);
  }
  return found;
}

/// Finds what is repeated if so much of the scope is, and what that saves. What
/// is repeated does not depend on others.
Repetition Rematerializer::plan(const Scope &scope, Recompute recompute) {
  Repetition repetition;
  repetition.calls = findRepeatable(scope);
  if (recompute == Recompute::Cheap)
    repetition.calls = findCheapChains(
        scope.calls, repetition.calls, [&](Value memory) -> int64_t {
          Operation *maker = memory.getDefiningOp();
          bool isThere = !isa_and_nonnull<aten::CallOp>(maker) ||
                         (!repetition.calls.contains(maker) &&
                          (readAtFirst.contains(memory) ||
                           computedFromParameters.contains(maker)));
          return isThere ? 0 : getMemoryBytes(memory.getType());
        });

  repetition.uses = copies.getUses(repetition.calls);
  DenseSet<Value> known, freed, added;
  for (OpOperand *use : repetition.uses) {
    if (Value memory = aten::getViewRoot(use->get());
        repetition.calls.contains(memory.getDefiningOp()))
      freed.insert(memory);
    for (Operation *op : copies.getNeeded(
             use->get(),
             [&](Operation *op) { return isRepeated(repetition.calls, op); },
             [&](Value value) { return known.contains(value); })) {
      known.insert(op->getResult(0));
      auto call = dyn_cast<aten::CallOp>(op);
      if (!call)
        continue;
      if (!aten::getViewSource(call)) {
        ++repetition.operations;
        repetition.flops += getFlops(call);
      }
      for (Value input : call.getInputs())
        if (Value memory = aten::getViewRoot(input);
            !isRepeated(repetition.calls, memory.getDefiningOp()) &&
            memory.getDefiningOp<aten::CallOp>() && !kept.contains(memory))
          added.insert(memory);
    }
  }
  for (Value memory : freed)
    repetition.bytes += getMemoryBytes(memory.getType());
  for (Value memory : added)
    repetition.bytes -= getMemoryBytes(memory.getType());
  return repetition;
}

IRMapping Rematerializer::apply(const Repetition &repetition) {
  IRMapping repeated;
  for (OpOperand *use : repetition.uses)
    copies.replace(
        *use, aten::Phase::Recompute,
        [&](Operation *op) { return isRepeated(repetition.calls, op); },
        repeated);
  for (auto [before, after] : repeated.getValueMap())
    for (Value input : after.getDefiningOp()->getOperands())
      kept.insert(aten::getViewRoot(input));
  return repeated;
}

std::vector<Recomputed>
Rematerializer::repeatAll(ArrayRef<RecomputedModule> modules) {
  std::vector<Recomputed> recomputed;
  for (unsigned module = 0; module != modules.size(); ++module) {
    const std::string &path = modules[module].path;
    auto scope = llvm::find_if(
        scopes, [&](const Scope &scope) { return scope.path == path; });
    if (scope == scopes.end())
      continue;
    DenseSet<Operation *> known;
    IRMapping repeated = apply(plan(*scope, modules[module].recompute));
    for (auto [before, after] : repeated.getValueMap())
      if (auto copy = after.getDefiningOp<aten::CallOp>();
          copy && known.insert(copy).second)
        recomputed.push_back({before.getDefiningOp(), copy, module});
  }
  return recomputed;
}

std::vector<Recomputable> Rematerializer::getRepeatable() {
  std::vector<Recomputable> found;
  for (const Scope &scope : scopes)
    if (plan(scope, Recompute::All).operations)
      found.push_back(
          {scope.path, plan(scope, Recompute::Cheap).operations != 0});
  return found;
}

LogicalResult Rematerializer::run(int64_t budget, Recompute recompute) {
  int64_t before = findMemoryPeak(step).getTotal(), peak = before;
  // With a budget, those first that cost the least work per byte.
  std::vector<std::pair<double, size_t>> order;
  for (auto [index, scope] : llvm::enumerate(scopes)) {
    if (!budget)
      order.emplace_back(0, index);
    else if (Repetition repetition = plan(scope, recompute);
             repetition.bytes > 0)
      order.emplace_back(double(repetition.flops) / double(repetition.bytes),
                         index);
  }
  llvm::sort(order);
  int64_t repeated = 0, flops = 0;
  // No scope lowers the peak by more than it saves: until that could be enough,
  // there is no need to measure.
  int64_t bound = peak;
  for (auto [price, index] : order) {
    if (budget && bound <= budget) {
      bound = peak = findMemoryPeak(step).getTotal();
      if (peak <= budget)
        break;
    }
    Repetition repetition = plan(scopes[index], recompute);
    if (repetition.uses.empty()) {
      remark::missed(step.getLoc(), getRemark("fsdp-remat", "remat", step))
          << remark::metric("Scope", scopes[index].path)
          << remark::reason("the backward reads nothing that may be repeated");
      continue;
    }
    apply(repetition);
    remark::passed(step.getLoc(), getRemark("fsdp-remat", "remat", step))
        << remark::metric("Scope", scopes[index].path)
        << remark::metric("Operations", repetition.operations)
        << remark::metric("Flops", repetition.flops)
        << remark::metric("BytesSaved", repetition.bytes);
    bound -= std::max<int64_t>(repetition.bytes, 0);
    flops += repetition.flops;
    ++repeated;
  }
  peak = findMemoryPeak(step).getTotal();
  if (budget && peak > budget)
    return emitError(step.getLoc())
           << "expected a step that holds at most " << budget
           << " bytes, found one of " << peak << " with " << repeated << " of "
           << scopes.size()
           << " scopes recomputed, which is all that helps; shard over more "
              "ranks, or allow more";
  remark::passed(step.getLoc(), getRemark("fsdp-remat", "peak", step))
      << remark::metric("Scopes", repeated) << remark::metric("Flops", flops)
      << remark::metric("Before", before) << remark::metric("After", peak);
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// What may be computed again where nobody says what: the repeated modules of
/// the model, however its parameters are wrapped; of a model without any, the
/// modules that are units.
static llvm::StringSet<> getCandidates(func::FuncOp step) {
  llvm::StringSet<> paths;
  if (func::FuncOp source = getSource(step))
    for (const std::string &path : findRepeatedModules(source))
      paths.insert(path);
  if (paths.empty())
    for (auto unit : step->getParentOfType<ModuleOp>().getOps<UnitOp>())
      paths.insert(unit.getSymName());
  return paths;
}

std::vector<Recomputable> findRecomputable(func::FuncOp step) {
  llvm::StringSet<> candidates = getCandidates(step);
  Rematerializer rematerializer(step);
  rematerializer.findScopes(
      [&](StringRef path) { return candidates.contains(path); });
  return rematerializer.getRepeatable();
}

std::vector<Recomputed> recompute(func::FuncOp step,
                                  ArrayRef<RecomputedModule> modules) {
  llvm::StringSet<> paths;
  for (const RecomputedModule &module : modules)
    paths.insert(module.path);
  Rematerializer rematerializer(step);
  rematerializer.findScopes(
      [&](StringRef path) { return paths.contains(path); });
  return rematerializer.repeatAll(modules);
}

namespace {
class RematPass
    : public ProgramPass<impl::RematPassBase<RematPass>, Level::Logical> {
  using ProgramPass::ProgramPass;

  void getDependentDialects(DialectRegistry &registry) const final {
    RematPassBase::getDependentDialects(registry);
    registerCostModels(registry);
  }

  static LogicalResult rejectModel(func::FuncOp step) {
    return step.emitError(
        "expected modules inside of the model, which are what is recomputed, "
        "found none: make modules of its parts, or capture it with "
        "fsdp_mlir.capture if the archive does not name them");
  }

  LogicalResult runOnProgram(func::FuncOp step) final {
    if (remat.scope.empty() && !remat.budget)
      return success();
    Rematerializer rematerializer(step);
    if (remat.scope.empty()) {
      llvm::StringSet<> candidates = getCandidates(step);
      if (rematerializer.findScopes(
              [&](StringRef path) { return candidates.contains(path); }) == 0 &&
          findMemoryPeak(step).getTotal() > remat.budget)
        return rematerializer.getPaths().empty()
                   ? rejectModel(step)
                   : step.emitError("no module of the forward repeats or is a "
                                    "unit, to be recomputed; say which ones "
                                    "may be, with remat=scope:REGEX");
      return rematerializer.run(remat.budget, Recompute::All);
    }
    FailureOr<llvm::Regex> regex =
        getPathRegex(remat.scope, [&] { return emitError(step.getLoc()); });
    if (failed(regex))
      return failure();
    if (rematerializer.findScopes(
            [&](StringRef path) { return regex->match(path); }) == 0) {
      if (rematerializer.getPaths().empty())
        return rejectModel(step);
      InFlightDiagnostic diagnostic = emitError(step.getLoc())
                                      << "no module of the forward has path '"
                                      << remat.scope << "'";
      listFound(diagnostic, rematerializer.getPaths());
      return diagnostic;
    }
    return rematerializer.run(0, remat.isCheap ? Recompute::Cheap
                                               : Recompute::All);
  }
};
} // namespace

} // namespace fsdp
