//===- MeanGradients.cpp - Sums over ranks that must be means -------------===//
//
// Seen through, in this order: what was accumulated, reductions, accumulations.
// A sum of g over R ranks with factors d1, d2, ... is taken for g where each
// axis is summed over once, the sizes of the axes make R, and d1 d2 ... = R. Of
// micro-batches whose gradients are reduced over shards alone (partial), the
// first reduction divides by a part of R, and that of the last micro-batch by
// the rest.
//
//===----------------------------------------------------------------------===//

#include "EquivalenceImpl.h"
#include "fsdp/Archive/Numbers.h"
#include "fsdp/Dialect/FSDP/IR/Layout.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace fsdp;
using fsdp::aten::ATenDialect;

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
           << "expected " << what << " to be divided by "
           << archive::spellNumber(divisor) << ", found a division by "
           << archive::spellNumber(divided);
  return value;
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

/// The flat gradient of which `value` is the mean over ranks, or, where it is
/// summed before it is reduced, that of this rank.
FailureOr<FlattenGradsOp> Equivalence::findFlat(Value value, UnitOp unit,
                                                StateAttr state) {
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
  FlattenGradsOp flatten = flats.lookup(numbers.lookup(*flat));
  if (!flatten || flatten.getUnitAttr() != state.getUnit())
    return emitError(flat->getLoc())
           << "expected the flat gradient of unit " << state.getUnit()
           << ", found " << describe(*flat);
  return flatten;
}

/// Adds the gradients of parameters that the state of a unit has, `value`,
/// which is also what updates read.
LogicalResult Equivalence::addGradients(Value value, StateAttr state,
                                        llvm::MapVector<Role, Value> &found) {
  UnitOp unit = symbols.lookup<UnitOp>(state.getUnit().getValue());
  FailureOr<FlattenGradsOp> flatten = findFlat(value, unit, state);
  if (failed(flatten))
    return failure();
  auto name =
      StringAttr::get(step.getContext(), ATenDialect::getGradOfAttrName());
  auto next = flatten->getGradients().begin();
  for (auto [parameter, present] :
       llvm::zip_equal(unit.getLayout().getParameters(), flatten->getPresent()))
    if (present)
      found[{name, parameter.getName()}] = *next++;

  for (const UnitInterval &interval : updates.lookup(state.getUnit()))
    if (numbers.lookup(interval.gradient) != numbers.lookup(value))
      return interval.op->emitError("expected the gradient of unit ")
             << state.getUnit() << " that the step returns, found another";
  return success();
}
