//===- Shard.cpp - Shard the parameters of the step over ranks ------------===//
//
// One walk over the step. What is computed from parameters alone is set aside,
// and made anew in front of the first use in each phase, with the views that it
// needs, and the first time with the gather; a unit's reduction follows its
// last gradient. What is gathered once more is for the reshard policy to say.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Archive/OpFacts.h"
#include "fsdp/Dialect/FSDP/IR/Layout.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/ReshardPolicy.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_SHARDPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

/// A parameter of the aten level.
struct Parameter {
  StringAttr name;
  BlockArgument argument;
  RankedTensorType type;
  unsigned unit = 0, place = 0; // place: index in the unit's layout
  Value gradient;               // of the aten level; null if frozen
};

/// A unit in the making.
struct Unit {
  explicit Unit(StringRef name) : name(name) {}

  StringRef name;
  SmallVector<unsigned> parameters; // indices, in order of the layout
  UnitOp op;
  Value shard;                  // the new argument
  Value gather;                 // for both phases
  SmallVector<Value> gradients; // one per parameter once seen, null if frozen
  unsigned missing = 0;         // how many have not been seen
  Value reduced;                // the shard of the gradient
};

class Sharder {
public:
  Sharder(func::FuncOp step, MeshOp mesh, Strategy strategy, Type storage,
          Type reduce, bool keepOutput)
      : step(step), mesh(mesh), strategy(strategy), storage(storage),
        reduce(reduce), keepOutput(keepOutput), block(step.getBody().front()),
        builder(step.getContext()) {}

  LogicalResult run();

private:
  // Preparation: nothing is changed.
  LogicalResult checkSizes();
  LogicalResult collectParameters();
  LogicalResult collectResults();

  // The new function.
  LogicalResult createUnits();
  void rewriteBody();
  void rewriteSignature();

  // Parameters.
  bool isFromParameters(Value value) const;
  bool isChain(Operation &op) const;
  Value getGather(Unit &unit, aten::Phase phase);
  Value materialize(Value value, aten::Phase phase);
  Value copyOut(Value value);

  // Gradients and the loss.
  void visitResults(Operation &op);
  void addGradient(Unit &unit, unsigned place, Value value);
  void reduceGradient(Unit &unit);
  Value reduceLoss(Value value);

  Location getLoc(StringRef name) {
    return NameLoc::get(builder.getStringAttr(name), step.getLoc());
  }
  remark::detail::InFlightRemark remark(StringRef name, Location loc) {
    return remark::passed(
        loc,
        remark::RemarkOpts::name(name).category("fsdp-shard").function("step"));
  }

  func::FuncOp step;
  MeshOp mesh;
  Strategy strategy;
  Type storage, reduce; // null: those of the parameters
  bool keepOutput;
  Block &block;
  OpBuilder builder;

  SmallVector<Parameter> parameters;
  llvm::StringMap<unsigned> byName;
  DenseMap<Value, unsigned> byArgument;
  SmallVector<Unit> units;

  /// The parameters whose gradient a value is, as indices.
  DenseMap<Value, SmallVector<unsigned, 1>> gradientOf;
  unsigned lossIndex = 0;
  Value loss, meanLoss;
  SmallVector<unsigned> kept; // indices of results: state, outputs

  /// Operations on parameters alone, and what they have become in each phase.
  DenseSet<Operation *> chains;
  DenseMap<std::pair<Value, unsigned>, Value> materialized;
};

} // namespace

//===----------------------------------------------------------------------===//
// Preparation
//===----------------------------------------------------------------------===//

LogicalResult Sharder::checkSizes() {
  auto isBound = [](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return !tensor || tensor.hasStaticShape();
  };
  for (BlockArgument argument : block.getArguments())
    if (!isa<RankedTensorType>(argument.getType()) ||
        !isBound(argument.getType()))
      return emitError(argument.getLoc())
             << "expected sizes that are bound, as by --bind hint or --bind "
                "NAME=SIZE; got "
             << argument.getType();
  for (Operation &op : block) {
    if (!isa<aten::CallOp, func::ReturnOp>(op))
      return op.emitError("expected an operation of the aten level");
    for (Type type : op.getResultTypes())
      if (!isBound(type))
        return op.emitError("expected sizes that are bound, as by --bind hint "
                            "or --bind NAME=SIZE; got ")
               << type;
  }
  return success();
}

LogicalResult Sharder::collectParameters() {
  llvm::MapVector<StringRef, unsigned> unitIndex;
  auto root = builder.getStringAttr("root");
  for (BlockArgument argument : block.getArguments()) {
    unsigned index = argument.getArgNumber();
    auto name = step.getArgAttrOfType<StringAttr>(
        index, aten::ATenDialect::getParamAttrName());
    if (!name)
      continue;
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    if (!type || !isa<FloatType>(type.getElementType()))
      return emitError(argument.getLoc())
             << "expected parameter " << name
             << " to be a tensor of floats, got " << argument.getType()
             << "; a complex one can be kept as its real view "
                "(torch.view_as_real)";
    auto unitName = step.getArgAttrOfType<StringAttr>(
        index, FSDPDialect::getUnitAttrName());
    auto [entry, isNew] = unitIndex.try_emplace(
        (unitName ? unitName : root).getValue(), units.size());
    if (isNew)
      units.emplace_back(entry->first);
    Unit &unit = units[entry->second];
    if (!isNew) {
      const Parameter &first = parameters[unit.parameters.front()];
      if (first.type.getElementType() != type.getElementType())
        return emitError(argument.getLoc())
               << "unit '" << unit.name
               << "' has parameters of two types: " << first.name << " of "
               << first.type.getElementType() << ", " << name << " of "
               << type.getElementType();
    }
    byName[name] = parameters.size();
    byArgument[argument] = parameters.size();
    Parameter &parameter = parameters.emplace_back();
    parameter = {name,
                 argument,
                 type,
                 entry->second,
                 static_cast<unsigned>(unit.parameters.size()),
                 Value()};
    unit.parameters.push_back(parameters.size() - 1);
  }
  if (parameters.empty())
    return step.emitError("expected at least one parameter to shard");
  return success();
}

LogicalResult Sharder::collectResults() {
  using aten::ATenDialect;
  Operation *terminator = block.getTerminator();
  for (unsigned index = 0, e = terminator->getNumOperands(); index < e;
       ++index) {
    Value value = terminator->getOperand(index);
    auto attr = [&](StringRef name) { return step.getResultAttr(index, name); };
    if (attr(ATenDialect::getLossAttrName())) {
      loss = value;
      lossIndex = index;
    } else if (auto name = dyn_cast_or_null<StringAttr>(
                   attr(ATenDialect::getGradOfAttrName()))) {
      auto entry = byName.find(name);
      if (entry == byName.end())
        return step.emitError("a result is the gradient of ")
               << name << ", which is no parameter";
      Parameter &parameter = parameters[entry->second];
      auto type = dyn_cast<RankedTensorType>(value.getType());
      if (!type || type.getShape() != parameter.type.getShape() ||
          type.getElementType() != parameter.type.getElementType())
        return emitError(value.getLoc())
               << "expected a gradient of parameter " << name << " of type "
               << parameter.type << ", got " << value.getType();
      if (parameter.gradient)
        return step.emitError("two results are the gradient of ") << name;
      parameter.gradient = value;
      gradientOf[value].push_back(entry->second);
    } else if (attr(ATenDialect::getBufferMutationAttrName()) ||
               (keepOutput && attr(ATenDialect::getOutputAttrName()))) {
      kept.push_back(index);
    } else {
      remark("dropped", value.getLoc())
          << remark::metric("Result", int64_t(index))
          << remark::reason("the step returns its loss, gradients and state");
    }
  }
  if (!loss)
    return step.emitError("expected a result with 'aten.loss'");
  auto type = dyn_cast<RankedTensorType>(loss.getType());
  if (!type || !isa<FloatType>(type.getElementType()))
    return emitError(loss.getLoc())
           << "expected a loss of floats, got " << loss.getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

/// The strides of a parameter that is not row-major; nothing for one that is.
static SmallVector<int64_t> getLayoutStrides(RankedTensorType type) {
  return aten::isDense(type) ? SmallVector<int64_t>() : aten::getStrides(type);
}

/// What other functions and programs are called, a unit is not.
static bool isReserved(StringRef name) {
  return name == "init" || name == "step.source";
}

LogicalResult Sharder::createUnits() {
  MLIRContext *context = step.getContext();
  SymbolTable symbols(step->getParentOfType<ModuleOp>());
  builder.setInsertionPoint(step);
  for (Unit &unit : units) {
    Type compute = parameters[unit.parameters.front()].type.getElementType();
    SmallVector<int64_t> numels;
    for (unsigned index : unit.parameters)
      numels.push_back(parameters[index].type.getNumElements());
    FlatLayout flat = getAlignedLayout(
        numels, getAlignment(aten::getItemSize(compute)), mesh.getShards());
    SmallVector<ParameterAttr> attrs;
    for (auto [index, offset] :
         llvm::zip_equal(unit.parameters, flat.offsets)) {
      const Parameter &parameter = parameters[index];
      auto list = step.getArgAttrOfType<ArrayAttr>(
          parameter.argument.getArgNumber(),
          aten::ATenDialect::getAliasesAttrName());
      SmallVector<StringAttr> aliases;
      if (list)
        llvm::append_range(aliases, list.getAsRange<StringAttr>());
      SmallVector<int64_t> strides = getLayoutStrides(parameter.type);
      auto emitHere = [&] { return emitError(parameter.argument.getLoc()); };
      if (failed(ParameterAttr::verify(emitHere, parameter.name,
                                       parameter.type.getShape(), offset,
                                       !parameter.gradient, strides, aliases)))
        return failure();
      attrs.push_back(
          ParameterAttr::get(context, parameter.name, parameter.type.getShape(),
                             offset, !parameter.gradient, strides, aliases));
    }
    auto emitHere = [&] { return step.emitError(); };
    if (failed(LayoutAttr::verify(emitHere, attrs, flat.numel, flat.padded)))
      return failure();
    auto layout = LayoutAttr::get(context, attrs, flat.numel, flat.padded);
    std::string symbol = unit.name.str();
    if (isReserved(symbol))
      symbol += '_';
    unit.op = UnitOp::create(builder, step.getLoc(), symbol, mesh.getSymName(),
                             storage ? storage : compute, compute,
                             reduce ? reduce : compute, layout,
                             /*reshard_after_forward=*/false);
    symbols.insert(unit.op, Block::iterator(step)); // which may rename it
    if (layout.hasTrainable()) {
      unit.gradients.resize(unit.parameters.size());
      unit.missing = llvm::count_if(unit.parameters, [&](unsigned index) {
        return bool(parameters[index].gradient);
      });
    }
    remark("unit", step.getLoc())
        << remark::metric("Unit", unit.op.getSymName())
        << remark::metric("Parameters",
                          static_cast<int64_t>(unit.parameters.size()))
        << remark::metric("Elements", layout.getNumel())
        << remark::metric("ElementsPerRank",
                          layout.getPadded() / mesh.getShards());
  }
  return success();
}

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
  const archive::OpFacts *facts = call.getFacts();
  if (!facts ||
      (!facts->isView && facts->equivalent != archive::Equivalent::Copy))
    return false;
  return llvm::all_of(call.getInputs(),
                      [&](Value input) { return isFromParameters(input); });
}

Value Sharder::getGather(Unit &unit, aten::Phase phase) {
  if (!unit.gather)
    unit.gather = UnshardOp::create(
        builder, getLoc(unit.op.getSymName()), unit.op.getGatheredType(),
        unit.op.getSymName(), phase,
        builder.getStrArrayAttr(mesh.getShardAxes()), unit.shard);
  return unit.gather;
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
    const Parameter &parameter = parameters[byArgument.lookup(argument)];
    Unit &unit = units[parameter.unit];
    Value full = getGather(unit, phase);
    return materialized[key(value)] =
               ViewOp::create(builder, getLoc(parameter.name), parameter.type,
                              full, unit.op.getSymName(), parameter.name);
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

void Sharder::reduceGradient(Unit &unit) {
  Location loc = getLoc((unit.op.getSymName() + ".grad").str());
  SmallVector<bool> present;
  SmallVector<Value> gradients;
  for (Value gradient : unit.gradients) {
    present.push_back(bool(gradient));
    if (gradient)
      gradients.push_back(gradient);
  }
  Value flat =
      FlattenGradsOp::create(builder, loc, unit.op.getFlatGradientType(),
                             unit.op.getSymName(), present, gradients);
  DivideFactors factors = getDivideFactors(mesh.getNumRanks());
  auto divide = DivideAttr::get(step.getContext(), factors.pre, factors.post);
  ShardType type = unit.op.getShardType(mesh.getShards());
  auto name = FlatSymbolRefAttr::get(unit.op);
  TypeAttr via = unit.op.getReduceAttr();
  if (strategy == Strategy::NoShard)
    unit.reduced = AllReduceOp::create(
        builder, loc, type, name, /*mesh=*/nullptr,
        builder.getStrArrayAttr({FSDPDialect::getReplicaAxisName()}), divide,
        via, flat);
  else
    unit.reduced = ReduceScatterOp::create(
        builder, loc, type, name, builder.getStrArrayAttr(mesh.getShardAxes()),
        divide, via, flat);
}

Value Sharder::reduceLoss(Value value) {
  SmallVector<Attribute> axes;
  for (auto axis : mesh.getAxes().getAsRange<AxisAttr>())
    axes.push_back(axis.getName());
  // Sums of narrow types lose digits, and a scalar costs nothing.
  auto element = cast<RankedTensorType>(value.getType()).getElementType();
  Type via =
      element.getIntOrFloatBitWidth() < 32 ? builder.getF32Type() : element;
  return AllReduceOp::create(
      builder, getLoc("loss"), value.getType(), /*unit=*/nullptr,
      FlatSymbolRefAttr::get(mesh), builder.getArrayAttr(axes),
      DivideAttr::get(step.getContext(), 1.0,
                      static_cast<double>(mesh.getNumRanks())),
      TypeAttr::get(via), value);
}

void Sharder::addGradient(Unit &unit, unsigned place, Value value) {
  unit.gradients[place] = value;
  if (--unit.missing == 0)
    reduceGradient(unit);
}

/// Reduces what is complete now that the operation is done.
void Sharder::visitResults(Operation &op) {
  builder.setInsertionPointAfter(&op);
  for (Value result : op.getResults()) {
    if (result == loss)
      meanLoss = reduceLoss(loss);
    if (auto found = gradientOf.find(result); found != gradientOf.end())
      for (unsigned index : found->second)
        addGradient(units[parameters[index].unit], parameters[index].place,
                    result);
  }
}

//===----------------------------------------------------------------------===//
// The step
//===----------------------------------------------------------------------===//

void Sharder::rewriteBody() {
  // Outputs that are dropped take with them what only they need.
  Operation *terminator = block.getTerminator();
  SmallVector<Value> others, needed = {loss};
  for (unsigned index : kept)
    others.push_back(terminator->getOperand(index));
  llvm::append_range(needed, others);
  for (const Parameter &parameter : parameters)
    if (parameter.gradient)
      needed.push_back(parameter.gradient);
  terminator->setOperands(needed);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (isOpTriviallyDead(&op))
      op.erase();

  SmallVector<Operation *> setAside;
  for (Operation &op : llvm::make_early_inc_range(block.without_terminator())) {
    if (isChain(op)) {
      chains.insert(&op);
      setAside.push_back(&op);
      continue;
    }
    builder.setInsertionPoint(&op);
    for (OpOperand &operand : op.getOpOperands())
      if (isFromParameters(operand.get()))
        operand.set(materialize(operand.get(), getGatherPhase(&op)));
    visitResults(op);
  }

  // Results that no operation computes, but the caller or the parameters.
  builder.setInsertionPoint(terminator);
  auto resolve = [&](Value value, aten::Phase phase) {
    return isFromParameters(value) ? materialize(value, phase) : value;
  };
  for (const Parameter &parameter : parameters) {
    Unit &unit = units[parameter.unit];
    if (parameter.gradient && !unit.gradients[parameter.place])
      addGradient(unit, parameter.place,
                  resolve(parameter.gradient, aten::Phase::Backward));
  }
  if (!meanLoss)
    meanLoss = reduceLoss(resolve(loss, aten::Phase::Forward));
  SmallVector<Value> results = {meanLoss};
  for (Unit &unit : units)
    if (unit.reduced)
      results.push_back(unit.reduced);
  for (Value value : others)
    results.push_back(isFromParameters(value) ? copyOut(value) : value);
  terminator->setOperands(results);
  for (Operation *op : llvm::reverse(setAside))
    op->erase();
}

void Sharder::rewriteSignature() {
  Ports oldArguments = getArguments(step), oldResults = getResults(step);
  Ports arguments, results;
  for (Unit &unit : units)
    arguments.add(unit.shard.getType(),
                  getStateDict(unit.op, StateAttr::getParameterKind()));
  llvm::BitVector erased(block.getNumArguments());
  for (auto [index, type] : llvm::enumerate(oldArguments.types)) {
    // The shards were put in front of the block's arguments.
    BlockArgument argument = block.getArgument(units.size() + index);
    if (byArgument.contains(argument))
      erased.set(units.size() + index);
    else
      arguments.add(type, oldArguments.attrs[index]);
  }
  block.eraseArguments(erased);

  results.add(oldResults.types[lossIndex], oldResults.attrs[lossIndex]);
  for (Unit &unit : units)
    if (unit.reduced)
      results.add(unit.reduced.getType(),
                  getStateDict(unit.op, StateAttr::getGradientKind()));
  for (unsigned index : kept)
    results.add(
        block.getTerminator()->getOperand(results.types.size()).getType(),
        oldResults.attrs[index]);
  setSignature(step, arguments, results);
}

LogicalResult Sharder::run() {
  if (failed(checkSizes()) || failed(collectParameters()) ||
      failed(collectResults()) || failed(createUnits()))
    return failure();

  func::FuncOp source = step.clone();
  source.setName("step.source");
  source.setPrivate();
  source->setAttr(FSDPDialect::getSourceAttrName(), builder.getUnitAttr());
  step->getBlock()->getOperations().insertAfter(Block::iterator(step), source);

  for (auto [index, unit] : llvm::enumerate(units))
    unit.shard =
        block.insertArgument(index, unit.op.getShardType(mesh.getShards()),
                             getLoc((unit.op.getSymName() + ".shard").str()));
  rewriteBody();
  rewriteSignature();
  if (strategy == Strategy::FullShard)
    setReshardAfterForward(step, true);
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
class ShardPass : public impl::ShardPassBase<ShardPass> {
  using ShardPassBase::ShardPassBase;

  /// The type that an option names; null if it names none.
  Type getType(ElementType type) {
    return type == ElementType::Unchanged
               ? Type()
               : aten::getElementType(&getContext(), stringifyEnum(type));
  }

  void runOnOperation() final {
    ModuleOp module = getOperation();
    FailureOr<func::FuncOp> step = getStep(module);
    if (failed(step))
      return signalPassFailure();
    if (ranks < 1) {
      module.emitError("expected at least one rank, got ") << ranks;
      return signalPassFailure();
    }
    Strategy chosen = strategy;
    if (ranks == 1 && chosen != Strategy::NoShard) {
      step->emitWarning("one rank has nothing to shard: using 'no_shard'");
      chosen = Strategy::NoShard;
    }
    int64_t shards = chosen == Strategy::NoShard ? 1 : int64_t(ranks);
    OpBuilder builder(*step);
    auto axis = [&](StringRef name, int64_t size) {
      return AxisAttr::get(&getContext(), builder.getStringAttr(name), size);
    };
    auto mesh = MeshOp::create(
        builder, step->getLoc(), "mesh",
        builder.getArrayAttr(
            {axis(FSDPDialect::getReplicaAxisName(), ranks / shards),
             axis(FSDPDialect::getShardAxisName(), shards)}));
    Sharder sharder(*step, mesh, chosen, getType(storageDtype),
                    getType(reduceDtype), keepOutput);
    if (failed(sharder.run()))
      signalPassFailure();
  }
};
} // namespace

} // namespace fsdp
