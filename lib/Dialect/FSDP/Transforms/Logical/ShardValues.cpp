//===- ShardValues.cpp - Parameters and gradients of a sharded program ----===//
//
// What is from parameters alone is made in front of its first use in each
// phase, with what it needs of the gather; what is reduced, behind the last
// gradient.
//
//===----------------------------------------------------------------------===//

#include "Sharder.h"

#include "fsdp/Dialect/FSDP/IR/Layout.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Operators/OpFacts.h"

#include "mlir/IR/IRMapping.h"

using namespace mlir;

namespace fsdp {

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

bool Sharder::isFromParameters(Value value) const {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return byArgument.contains(argument);
  return chains.contains(value.getDefiningOp());
}

/// A view or a copy of something that is from parameters alone.
bool Sharder::isChain(Operation &op) const {
  auto call = dyn_cast<aten::CallOp>(op);
  if (!call || call.getInputs().empty() || !isMemoryEffectFree(call))
    return false;
  const operators::OpFacts *facts = call.getFacts();
  if (!facts ||
      (!facts->isView && facts->equivalent != operators::Equivalent::Copy))
    return false;
  return llvm::all_of(call.getInputs(),
                      [&](Value input) { return isFromParameters(input); });
}

Value Sharder::getGather(unsigned unit, aten::Phase phase) {
  UnitOp op = table.units[unit].op;
  Value &gather = units[unit].gather;
  if (!gather)
    gather = UnshardOp::create(builder, getLoc(op.getSymName()),
                               op.getGatheredType(units[unit].compute),
                               op.getSymName(), phase, op.getShardAxes(),
                               units[unit].shard);
  return gather;
}

/// What `value`, which is from parameters, is in a phase; made at the builder's
/// place if this is the first use.
Value Sharder::materialize(Value value, aten::Phase phase) {
  auto key = [&](Value value) {
    return std::pair(value, static_cast<unsigned>(phase));
  };
  if (Value known = materialized.lookup(key(value)))
    return known;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    const ShardUnits::Parameter &parameter =
        table.parameters[byArgument.lookup(argument)];
    Value full = getGather(parameter.unit, phase);
    return materialized[key(value)] = ViewOp::create(
               builder, getLoc(parameter.name), argument.getType(), full,
               UnitOp(table.units[parameter.unit].op).getSymName(),
               parameter.name);
  }
  Operation *op = value.getDefiningOp();
  IRMapping mapping;
  for (Value operand : op->getOperands())
    if (!mapping.contains(operand))
      mapping.map(operand, materialize(operand, phase));
  auto copy = cast<aten::CallOp>(builder.clone(*op, mapping));
  if (getGatherPhase(op) != phase)
    copy.setPhase(phase);
  for (auto [before, after] :
       llvm::zip_equal(op->getResults(), copy->getResults()))
    materialized[key(before)] = after;
  return materialized.lookup(key(value));
}

/// What the step returns of its parameters outlives their memory.
Value Sharder::copyOut(Value value) {
  Value gathered = materialize(value, aten::Phase::Forward);
  auto type = cast<RankedTensorType>(gathered.getType());
  type = aten::getTensorType(type.getShape(), type.getElementType(),
                             aten::isGapless(type)
                                 ? aten::getStrides(type)
                                 : aten::getDenseStrides(type.getShape()));
  MLIRContext *context = step.getContext();
  Attribute place = aten::OperandAttr::get(context);
  return aten::CallOp::create(
             builder, value.getLoc(), TypeRange(type), "clone",
             aten::ArgsAttr::get(context, place, {}), gathered,
             aten::PhaseAttr::get(context, aten::Phase::Forward))
      .getResult(0);
}

//===----------------------------------------------------------------------===//
// Gradients and the loss
//===----------------------------------------------------------------------===//

void Sharder::reduceGradient(unsigned unit) {
  UnitOp op = table.units[unit].op;
  Location loc = getLoc((op.getSymName() + ".grad").str());
  SmallVector<bool> present;
  SmallVector<Value> places;
  for (Value gradient : units[unit].gradients) {
    present.push_back(bool(gradient));
    if (gradient)
      places.push_back(gradient);
  }
  Value flat = FlattenGradsOp::create(builder, loc,
                                      op.getFlatGradientType(op.getReduce()),
                                      op.getSymName(), present, places);
  int64_t shards = mesh.getGroupSize(op.getShardAxes());
  int64_t replicas = mesh.getGroupSize(op.getReplicateAxes());
  DivideFactors factors = getDivideFactors(shards * replicas);
  ShardType type = op.getShardType(shards);
  auto name = FlatSymbolRefAttr::get(op);
  TypeAttr via = op.getReduceAttr();
  auto divide = [&](double pre, double post) {
    return DivideAttr::get(step.getContext(), pre, post);
  };
  // Between two reductions, what is reduced stays in the reduce type.
  bool isAllReduced = shards == 1 || replicas > 1;
  Value value = flat;
  if (shards > 1)
    value = ReduceScatterOp::create(
        builder, loc,
        isAllReduced ? ShardType::get(type.getContext(), type.getNumel(),
                                      op.getReduce(), type.getShards())
                     : type,
        name, op.getShardAxes(),
        divide(factors.pre, isAllReduced ? 1 : factors.post), via, value);
  if (isAllReduced)
    value = AllReduceOp::create(
        builder, loc, type, name, /*mesh=*/nullptr, /*role=*/nullptr,
        op.getReplicateAxes(),
        divide(shards > 1 ? 1 : factors.pre, factors.post), via, value,
        /*max=*/UnitAttr(), /*first=*/UnitAttr());
  units[unit].reduced = value;
}

/// The mean over all ranks, or what the first one has.
Value Sharder::reduceOverMesh(Value value, ReductionRole role, bool isFirst) {
  SmallVector<Attribute> axes;
  for (auto axis : mesh.getAxes().getAsRange<AxisAttr>())
    axes.push_back(axis.getName());
  // Sums of narrow types lose digits, and a scalar costs nothing.
  auto element = cast<RankedTensorType>(value.getType()).getElementType();
  Type via = !isFirst && element.getIntOrFloatBitWidth() < 32
                 ? builder.getF32Type()
                 : element;
  return AllReduceOp::create(
      builder, getLoc(stringifyReductionRole(role)), value.getType(),
      /*unit=*/nullptr, FlatSymbolRefAttr::get(mesh),
      ReductionRoleAttr::get(step.getContext(), role),
      builder.getArrayAttr(axes),
      DivideAttr::get(step.getContext(), 1.0,
                      isFirst ? 1.0 : static_cast<double>(mesh.getNumRanks())),
      TypeAttr::get(via), value, /*max=*/UnitAttr(),
      isFirst ? builder.getUnitAttr() : UnitAttr());
}

/// Ranks count alike: there is no mean of integers.
Value Sharder::syncBuffer(Value value) {
  bool isFirst = syncBuffers == SyncBuffers::Broadcast;
  if (syncBuffers == SyncBuffers::None ||
      (!isFirst && !isa<FloatType>(getElementTypeOrSelf(value))))
    return value;
  return reduceOverMesh(value, ReductionRole::Buffer, isFirst);
}

void Sharder::addGradient(unsigned parameter, Value value) {
  const ShardUnits::Parameter &own = table.parameters[parameter];
  UnitUse &unit = units[own.unit];
  unit.gradients[own.place] = value;
  if (--unit.missing == 0)
    reduceGradient(own.unit);
}

/// Reduces what is complete now that the operation is done.
void Sharder::visitResults(Operation &op) {
  builder.setInsertionPointAfter(&op);
  for (Value result : op.getResults()) {
    if (result == loss)
      meanLoss = reduceOverMesh(loss, ReductionRole::Loss, /*isFirst=*/false);
    if (auto found = synchronised.find(result); found != synchronised.end())
      found->second = syncBuffer(result);
    if (auto found = gradientOf.find(result); found != gradientOf.end())
      for (unsigned index : found->second)
        addGradient(index, result);
  }
}

} // namespace fsdp
