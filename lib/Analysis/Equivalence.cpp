//===- Equivalence.cpp - Does a sharded step compute its source? ----------===//
//
// The algebra. Equal numbers (ValueNumbers.cpp) are equal values, and what a
// step adds to its source has these equations, of which g is of one rank:
//
//   unshard, piece, copy, wait of x    = x
//   view of @unit, "w"                 = parameter "w"
//   flatten_grads(g1, g2, ...)         = flat(g1, g2, ...)
//   reduce_scatter, all_reduce of x    = reduced(x)
//   accumulate(before, x)              = accumulated(x)
//   an update                          = a value like no other
//
// The numbers reduced and accumulated know nothing of ranks: that the result of
// reduced(... flat(g1, g2, ...)) is the mean of g1, g2, ... over all ranks,
// once each, is shown by going back along its operations (MeanGradients.cpp).
// Then,
//
//   each result of the step            = the result of the source with its role
//   the effects of the step            = the effects of the source, in order
//   each trainable element             is updated once, by its gradient
//
// What is reported is where two values begin to differ (Differences.cpp).
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Equivalence.h"

#include "EquivalenceImpl.h"
#include "fsdp/Analysis/Reductions.h"

using namespace mlir;
using namespace fsdp;
using fsdp::aten::ATenDialect;

/// Each trainable element of a unit that is updated is updated once.
LogicalResult Equivalence::checkUpdates() {
  for (auto unit : step->getParentOfType<ModuleOp>().getOps<UnitOp>())
    if (auto own = updates.find(FlatSymbolRefAttr::get(unit));
        own != updates.end() &&
        (failed(verifyCovered(unit, own->second, "updated")) ||
         failed(verifyDecay(step, unit, own->second))))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// Comparison
//===----------------------------------------------------------------------===//

LogicalResult Equivalence::compareEffects() {
  size_t common = std::min(stepEffects.size(), sourceEffects.size());
  for (size_t i = 0; i < common; ++i) {
    if (stepEffects[i].first == sourceEffects[i].first)
      continue;
    InFlightDiagnostic diagnostic = stepEffects[i].second->emitError(
        "expected the effects of the source in their order, found another");
    diagnostic.attachNote(sourceEffects[i].second->getLoc()) << "expected this";
    return diagnostic;
  }
  if (sourceEffects.size() > common)
    return sourceEffects[common].second->emitError(
        "expected this effect in the step as well, found none");
  if (stepEffects.size() > common)
    return stepEffects[common].second->emitError(
        "expected only effects of the source, found one more");
  return success();
}

/// What `value` is a copy of, with all its elements: a step returns its own.
Value Equivalence::getCopied(Value value) {
  auto call = value.getDefiningOp<aten::CallOp>();
  bool isCopy = call && call.getCallee().getName() == "clone" &&
                call.getInputs().size() == 1;
  return isCopy ? call.getInputs().front() : value;
}

/// Whether result `index` is as it must be, for itself; what it is to the
/// source is added to `found`.
LogicalResult Equivalence::addResult(unsigned index, Value value,
                                     llvm::MapVector<Role, Value> &found) {
  auto state = step.getResultAttrOfType<StateAttr>(
      index, FSDPDialect::getStateAttrName());
  if (state && (state.getKind() == StateAttr::getGradientKind() ||
                state.isAccumulated()))
    return addGradients(value, state, found);
  if (state && state.getKind() == StateAttr::getUnshardedParameterKind()) {
    if (isLater(step) ||
        numbers.lookup(value) != internWords(State, word(getGathered(state))))
      return emitError(value.getLoc())
             << "expected what the first micro-batch gathers as " << state
             << ", found " << describe(resolve(value));
    return success();
  }
  if (state && states.lookup(state) != skipCopies(value))
    return emitError(value.getLoc())
           << "expected the last value of " << state
           << " as a result of the step, found another";
  std::optional<Role> role = getRole(step.getResultAttrDict(index));
  // The source scales the loss; what becomes of the scale, it does not have.
  auto isOfScaler = [&] {
    auto name = dyn_cast<StringAttr>(role->second);
    return name && role->first == ATenDialect::getBufferMutationAttrName() &&
           GradScaler::isState(name) && getGradScaler(step);
  };
  if (state || !role || isOfScaler())
    return success();
  FailureOr<Value> own = getOwn(*role, value);
  if (failed(own))
    return failure();
  found[*role] = *own;
  return success();
}

/// The value of this rank: the loss is a mean over ranks, and buffers may be.
FailureOr<Value> Equivalence::getOwn(Role role, Value value) {
  auto units = step->getParentOfType<ModuleOp>().getOps<UnitOp>();
  bool isBuffer = role.first == ATenDialect::getBufferMutationAttrName();
  SyncBuffers sync = isBuffer ? getSyncBuffers(step) : SyncBuffers::None;
  bool isFirst = sync == SyncBuffers::Broadcast;
  bool isMean = role.first == ATenDialect::getLossAttrName() ||
                (sync == SyncBuffers::Mean &&
                 isa<FloatType>(getElementTypeOrSelf(value)));
  if (units.empty() || (!isFirst && !isMean))
    return value;
  MeshOp mesh = getMesh(FlatSymbolRefAttr::get(*units.begin()));
  return getReduced(value, mesh, mesh.getNumRanks(), double(mesh.getNumRanks()),
                    "the " + getName(role), isFirst);
}

LogicalResult Equivalence::compareResults() {
  llvm::MapVector<Role, Value> expected, found;
  Operation *sourceEnd = source.getBody().front().getTerminator();
  for (auto [index, value] : llvm::enumerate(sourceEnd->getOperands()))
    if (auto role = getRole(source.getResultAttrDict(index)))
      expected[*role] = value;
  Operation *stepEnd = step.getBody().front().getTerminator();
  for (auto [index, value] : llvm::enumerate(stepEnd->getOperands()))
    if (failed(addResult(index, value, found)))
      return failure();

  for (auto [role, value] : expected) {
    auto entry = found.find(role);
    bool isOptional = role.first == ATenDialect::getOutputAttrName() ||
                      role.first == ATenDialect::getGradOfInputAttrName();
    if (entry == found.end()) {
      if (isOptional)
        continue;
      return step.emitError("expected the step to return the ")
             << getName(role) << ", found no such result";
    }
    unsigned number = numbers.lookup(value);
    if (numbers.lookup(entry->second) != number &&
        numbers.lookup(getCopied(entry->second)) != number)
      return reportDifference(role, entry->second, value);
  }
  for (auto [role, value] : found)
    if (!expected.contains(role))
      return emitError(value.getLoc())
             << "the source has no " << getName(role) << ", found one here";
  return success();
}

LogicalResult Equivalence::verify() {
  Effects initEffects;
  if (failed(checkLayouts()) ||
      (init && failed(numberBody(init, initEffects))) ||
      failed(numberBody(source, sourceEffects)) ||
      failed(numberBody(step, stepEffects)))
    return failure();
  if (!initEffects.empty())
    return initEffects.front().second->emitError(
        "expected '@init' to have no effects, found one");
  if (failed(compareEffects()) || failed(compareResults()) ||
      failed(verifyUnsynchronised(step)) || failed(checkUpdates()) ||
      failed(verifyReductions(step)))
    return failure();
  auto areEqual = [&](Value left, Value right) {
    return numbers.lookup(left) == numbers.lookup(right);
  };
  MeasuredGradients measured(step, areEqual);
  return success(succeeded(verifyClipping(step, measured)) &&
                 succeeded(verifyScaling(step, measured)));
}

LogicalResult fsdp::verifyEquivalence(func::FuncOp step, func::FuncOp source,
                                      func::FuncOp init) {
  return Equivalence(step, source, init).verify();
}
