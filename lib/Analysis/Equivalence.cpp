//===- Equivalence.cpp - Does a sharded step compute its source? ----------===//
//
// Results, effects and updates are compared by their numbers; the difference
// that is reported is where they begin to differ.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Equivalence.h"

#include "EquivalenceImpl.h"
#include "fsdp/Analysis/Reductions.h"
#include "fsdp/Dialect/FSDP/IR/Layout.h"

#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace fsdp;
using fsdp::aten::ATenDialect;

/// How a role is called in a diagnostic.
static std::string getName(Equivalence::Role role) {
  auto text = dyn_cast<StringAttr>(role.second);
  std::string quoted = text ? ("'" + text.getValue() + "'").str() : "";
  if (role.first == ATenDialect::getLossAttrName())
    return "loss";
  if (role.first == ATenDialect::getGradOfAttrName())
    return "gradient of " + quoted;
  if (role.first == ATenDialect::getBufferMutationAttrName())
    return "new content of buffer " + quoted;
  auto number = dyn_cast<IntegerAttr>(role.second);
  return (role.first == ATenDialect::getOutputAttrName()
              ? "output "
              : "gradient of input ") +
         std::to_string(number ? number.getInt() : 0);
}

/// A number as people write it: 2, not 2.000000e+00.
static std::string spell(double number) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%g", number);
  return text;
}

MeshOp Equivalence::getMesh(FlatSymbolRefAttr unit) {
  return symbols.lookup<MeshOp>(
      symbols.lookup<UnitOp>(unit.getValue()).getMesh());
}

/// Looks through the reductions that make `value` a sum over so many ranks,
/// divided, or what the first of them has.
FailureOr<Value> Equivalence::getReduced(Value value, MeshOp mesh,
                                         int64_t ranks, double divisor,
                                         const Twine &what, bool isFirst) {
  int64_t summed = 1;
  double divided = 1;
  llvm::StringSet<> axes;
  CollectiveOpInterface last;
  for (auto found = reductions.find(numbers.lookup(value));
       found != reductions.end();
       found = reductions.find(numbers.lookup(value))) {
    CollectiveOpInterface reduction = found->second;
    last = last ? last : reduction;
    if (reduction->hasAttr("first") != isFirst)
      return reduction->emitError("expected ")
             << what << (isFirst ? " of the first rank" : " to be summed")
             << ", found another reduction";
    for (auto axis : reduction.getAxes().getAsRange<StringAttr>()) {
      if (!axes.insert(axis).second)
        return reduction->emitError("expected ")
               << what << " to be summed once over axis " << axis
               << ", found it twice";
      summed *= mesh.getAxisSize(axis).value_or(1);
    }
    DivideAttr divide = reduction.getDivideAttr();
    divided *= divide.getPre() * divide.getPost();
    value = reduction->getOperand(0);
  }
  if (summed != ranks)
    return (last ? last->emitError() : emitError(value.getLoc()))
           << "expected " << what << " to be summed over " << ranks
           << " ranks, found " << (last ? std::to_string(summed) : "no sum");
  if (isFirst)
    return value;
  if (std::abs(divided - divisor) > 1e-9 * divisor)
    return (last ? last->emitError() : emitError(value.getLoc()))
           << "expected " << what << " to be divided by " << spell(divisor)
           << ", found a division by " << spell(divided);
  return value;
}

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
// Diagnostics
//===----------------------------------------------------------------------===//

/// What `value` is a copy of, with all its elements: a step returns its own.
Value Equivalence::getCopied(Value value) {
  auto call = value.getDefiningOp<aten::CallOp>();
  bool isCopy = call && call.getCallee().getName() == "clone" &&
                call.getInputs().size() == 1;
  return isCopy ? call.getInputs().front() : value;
}

/// The call, view, argument or such that `value` of the step is carried from.
Value Equivalence::resolve(Value value) {
  while (true) {
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
      auto result = func.getArgAttrOfType<IntegerAttr>(
          argument.getArgNumber(), FSDPDialect::getResultAttrName());
      if (!result || !init)
        return value;
      value =
          init.getBody().front().getTerminator()->getOperand(result.getInt());
    } else if (auto op = value.getDefiningOp<AccumulateOp>()) {
      value = isa<BlockArgument>(op.getSum()) ? op.getGradient() : op.getSum();
    } else if (isa<CollectiveOpInterface, LaunchOpInterface, AsyncWaitOp,
                   CopyOp, PieceOp>(value.getDefiningOp())) {
      value = value.getDefiningOp()->getOperand(0);
    } else {
      return value;
    }
  }
}

std::string Equivalence::describe(Value value) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
    unsigned index = argument.getArgNumber();
    if (auto state = func.getArgAttr(index, FSDPDialect::getStateAttrName()))
      os << state;
    else if (auto role = getRole(func.getArgAttrDict(index)))
      os << role->first.getValue().split('.').second << ' ' << role->second;
    else
      os << "argument " << index;
  } else if (auto view = value.getDefiningOp<ViewOp>()) {
    os << "param " << view.getParameterAttr();
  } else if (auto call = value.getDefiningOp<aten::CallOp>()) {
    os << "a result of '" << call.getCallee().getName() << '\'';
  } else {
    os << "a result of '" << value.getDefiningOp()->getName() << '\'';
  }
  return text;
}

/// Reports where the two values begin to differ.
LogicalResult Equivalence::reportDifference(Role role, Value found,
                                            Value expected) {
  while (true) {
    found = resolve(found);
    auto left = found.getDefiningOp<aten::CallOp>();
    auto right = expected.getDefiningOp<aten::CallOp>();
    if (!left || !right || left.getCallee() != right.getCallee() ||
        left.getArgs() != right.getArgs())
      break;
    auto pairs = llvm::zip_equal(left.getInputs(), right.getInputs());
    auto different = llvm::find_if(pairs, [&](const auto &pair) {
      return numbers.lookup(std::get<0>(pair)) !=
             numbers.lookup(std::get<1>(pair));
    });
    if (different == pairs.end())
      break;
    std::tie(found, expected) = *different;
  }
  InFlightDiagnostic diagnostic =
      emitError(found.getLoc())
      << "the " << getName(role) << " depends on another value: expected "
      << describe(expected) << " of type " << expected.getType() << ", found "
      << describe(found) << " of type " << found.getType();
  diagnostic.attachNote(expected.getLoc()) << "in the source, it is this";
  return diagnostic;
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

/// The gradient of this micro-batch that is in `value`, with those before it if
/// the step is a part that has them.
Value Equivalence::getAccumulated(Value value, unsigned &count) {
  auto found = accumulations.find(numbers.lookup(value));
  if (found == accumulations.end())
    return value;
  ++count;
  AccumulateOp op = found->second;
  return isa<BlockArgument>(op.getSum()) ? op.getGradient() : op.getSum();
}

/// What partial gradients, which are reduced over shards alone, are divided by.
static double getDivisorOverShards(UnitOp unit, int64_t ranks) {
  auto named =
      unit->getAttrOfType<ArrayAttr>(FSDPDialect::getReductionsAttrName());
  if (!named)
    return getDivideFactors(ranks).pre;
  double divisor = 1;
  for (auto reduction : named.getAsRange<ReductionAttr>())
    if (reduction.getAxes() == unit.getShardAxes())
      divisor *=
          reduction.getDivide().getPre() * reduction.getDivide().getPost();
  return divisor;
}

/// Adds the gradients of which `value` is the mean over ranks, or, where it is
/// summed before it is reduced, those of this rank.
LogicalResult Equivalence::addGradients(Value value, StateAttr state,
                                        llvm::MapVector<Role, Value> &found) {
  UnitOp unit = symbols.lookup<UnitOp>(state.getUnit().getValue());
  MeshOp mesh = getMesh(state.getUnit());
  int64_t ranks = mesh.getGroupSize(unit.getShardAxes()) *
                  mesh.getGroupSize(unit.getReplicateAxes());
  int64_t shards = mesh.getGroupSize(unit.getShardAxes());
  auto part = step->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  unsigned count = 0;
  FailureOr<Value> flat = getAccumulated(value, count);
  auto look = [&](int64_t ranks, double divisor) {
    flat = getReduced(*flat, mesh, ranks, divisor,
                      "the gradient of unit '" + unit.getSymName() + "'");
    if (succeeded(flat))
      flat = getAccumulated(*flat, count);
    return LogicalResult(flat);
  };
  // Sums of what is reduced over shards are reduced further in the last part.
  auto partial = StateAttr::get(
      step.getContext(), state.getUnit(),
      StringAttr::get(step.getContext(), StateAttr::getPartialGradientKind()));
  double pre = getDivisorOverShards(unit, ranks);
  bool isUnsharded = state.getKind() == StateAttr::getUnshardedGradientKind();
  bool isPartial = state == partial;
  if (!isPartial && states.contains(partial)) {
    if (failed(look(ranks / shards, double(ranks) / pre)))
      return failure();
    isPartial = true;
  }
  if (isPartial ? failed(look(shards, pre))
                : !isUnsharded && failed(look(ranks, double(ranks))))
    return failure();
  bool hasBefore = part && part.getValue() != Part::First;
  if (count != unsigned(hasBefore))
    return emitError(value.getLoc())
           << "expected the gradient of unit " << state.getUnit()
           << (hasBefore ? " to be added once to those of the micro-batches "
                           "before, found "
                         : " of one micro-batch, found sums of ")
           << count;
  auto flatten = flats.lookup(numbers.lookup(*flat));
  if (!flatten || flatten.getUnitAttr() != state.getUnit())
    return emitError(flat->getLoc())
           << "expected the flat gradient of unit " << state.getUnit()
           << ", found " << describe(*flat);
  auto name =
      StringAttr::get(step.getContext(), ATenDialect::getGradOfAttrName());
  auto next = flatten.getGradients().begin();
  for (auto [parameter, present] :
       llvm::zip_equal(unit.getLayout().getParameters(), flatten.getPresent()))
    if (present)
      found[{name, parameter.getName()}] = *next++;

  for (const UnitInterval &interval : updates.lookup(state.getUnit()))
    if (numbers.lookup(interval.gradient) != numbers.lookup(value))
      return interval.op->emitError("expected the gradient of unit ")
             << state.getUnit() << " that the step returns, found another";
  return success();
}

LogicalResult Equivalence::compareResults() {
  llvm::MapVector<Role, Value> expected, found;
  Operation *sourceEnd = source.getBody().front().getTerminator();
  for (auto [index, value] : llvm::enumerate(sourceEnd->getOperands()))
    if (auto role = getRole(source.getResultAttrDict(index)))
      expected[*role] = value;

  auto units = step->getParentOfType<ModuleOp>().getOps<UnitOp>();
  Operation *stepEnd = step.getBody().front().getTerminator();
  for (auto [index, value] : llvm::enumerate(stepEnd->getOperands())) {
    auto state = step.getResultAttrOfType<StateAttr>(
        index, FSDPDialect::getStateAttrName());
    if (state && (state.getKind() == StateAttr::getGradientKind() ||
                  state.isAccumulated())) {
      if (failed(addGradients(value, state, found)))
        return failure();
      continue;
    }
    if (state && state.getKind() == StateAttr::getUnshardedParameterKind()) {
      if (isLater(step) ||
          numbers.lookup(value) != internWords(State, word(getGathered(state))))
        return emitError(value.getLoc())
               << "expected what the first micro-batch gathers as " << state
               << ", found " << describe(resolve(value));
      continue;
    }
    if (state && states.lookup(state) != skipCopies(value))
      return emitError(value.getLoc())
             << "expected the last value of " << state
             << " as a result of the step, found another";
    std::optional<Role> role = getRole(step.getResultAttrDict(index));
    if (state || !role)
      continue;
    // The source scales the loss; what becomes of the scale, it does not have.
    if (auto name = dyn_cast<StringAttr>(role->second);
        name && role->first == ATenDialect::getBufferMutationAttrName() &&
        GradScaler::isState(name) && getGradScaler(step))
      continue;
    found[*role] = value;
    if (units.empty())
      continue;
    MeshOp mesh = getMesh(FlatSymbolRefAttr::get(*units.begin()));
    // The loss is a mean over ranks, and buffers may be.
    bool isBuffer = role->first == ATenDialect::getBufferMutationAttrName();
    SyncBuffers sync = isBuffer ? getSyncBuffers(step) : SyncBuffers::None;
    bool isFirst = sync == SyncBuffers::Broadcast;
    bool isMean = role->first == ATenDialect::getLossAttrName() ||
                  (sync == SyncBuffers::Mean &&
                   isa<FloatType>(getElementTypeOrSelf(value)));
    if (!isFirst && !isMean)
      continue;
    FailureOr<Value> own =
        getReduced(value, mesh, mesh.getNumRanks(), double(mesh.getNumRanks()),
                   "the " + getName(*role), isFirst);
    if (failed(own))
      return failure();
    found[*role] = *own;
  }

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
