//===- Shard.cpp - Shard the parameters of the step over ranks ------------===//
//
// One walk over the step. What is computed from parameters alone is set aside,
// and made anew in front of the first use in each phase, with the views that it
// needs, and the first time with the gather; a unit's reduction follows its
// last gradient. What is gathered once more is for the reshard policy to say.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/Layout.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ShardUnits.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Operators/OpFacts.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_SHARDPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

/// What a program does with a unit.
struct UnitUse {
  Value shard;                  // the new argument; null if it has none
  Type compute;                 // the element type of its parameters
  Value gather;                 // for both phases
  SmallVector<Value> gradients; // by place once seen; none if nothing trains
  unsigned missing = 0;         // how many have not been seen
  Value reduced;                // the shard of the gradient
};

class Sharder {
public:
  Sharder(func::FuncOp step, const ShardUnits &table, MeshOp mesh,
          bool keepOutput, SyncBuffers syncBuffers)
      : step(step), table(table), mesh(mesh), keepOutput(keepOutput),
        syncBuffers(syncBuffers), block(step.getBody().front()),
        builder(step.getContext()), units(table.units.size()),
        arguments(table.parameters.size()), gradients(table.parameters.size()) {
  }

  LogicalResult run();

private:
  // Preparation: nothing is changed.
  LogicalResult collectParameters();
  LogicalResult collectResults();
  LogicalResult checkGradients();

  // The new function.
  void rewriteBody();
  void rewriteSignature();

  // Parameters.
  bool isFromParameters(Value value) const;
  bool isChain(Operation &op) const;
  Value getGather(unsigned unit, aten::Phase phase);
  Value materialize(Value value, aten::Phase phase);
  Value copyOut(Value value);

  // Gradients and the loss.
  void visitResults(Operation &op);
  void addGradient(unsigned parameter, Value value);
  void reduceGradient(unsigned unit);
  Value reduceOverMesh(Value value, ReductionRole role, bool isFirst);
  Value syncBuffer(Value value);

  Location getLoc(StringRef name) {
    return NameLoc::get(builder.getStringAttr(name), step.getLoc());
  }

  func::FuncOp step;
  const ShardUnits &table;
  MeshOp mesh;
  bool keepOutput;
  SyncBuffers syncBuffers;
  Block &block;
  OpBuilder builder;

  SmallVector<UnitUse> units; // as in the table
  // Of parameters, of the aten level; null where the program has none.
  SmallVector<Value> arguments, gradients;
  DenseMap<Value, unsigned> byArgument;

  /// The parameters whose gradient a value is, as indices.
  DenseMap<Value, SmallVector<unsigned, 1>> gradientOf;
  unsigned lossIndex = 0;
  Value loss, meanLoss;
  /// What the program makes of buffers, and what all ranks have of it.
  DenseMap<Value, Value> synchronised;
  SmallVector<unsigned> kept; // indices of results: state, outputs

  /// Operations on parameters alone, and what they have become in each phase.
  DenseSet<Operation *> chains;
  DenseMap<std::pair<Value, unsigned>, Value> materialized;
};

} // namespace

//===----------------------------------------------------------------------===//
// Preparation
//===----------------------------------------------------------------------===//

static LogicalResult checkSizes(func::FuncOp program) {
  auto isBound = [](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return !tensor || aten::hasKnownLayout(tensor);
  };
  Block &block = program.getBody().front();
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

/// All parameters of a unit are gathered in one element type.
LogicalResult Sharder::collectParameters() {
  DenseMap<unsigned, unsigned> first; // of each unit, the argument
  auto getElementType = [&](unsigned argument) {
    return cast<RankedTensorType>(block.getArgument(argument).getType())
        .getElementType();
  };
  for (BlockArgument argument : block.getArguments()) {
    unsigned index = argument.getArgNumber();
    auto name = step.getArgAttrOfType<StringAttr>(
        index, aten::ATenDialect::getParamAttrName());
    if (!name)
      continue;
    unsigned parameter = *table.find(name);
    unsigned unit = table.parameters[parameter].unit;
    byArgument[argument] = parameter;
    arguments[parameter] = argument;
    unsigned before = first.try_emplace(unit, index).first->second;
    units[unit].compute = getElementType(before);
    if (getElementType(before) != getElementType(index))
      return emitError(argument.getLoc())
             << "unit '" << table.units[unit].name
             << "' has parameters of two types: "
             << step.getArgAttr(before, aten::ATenDialect::getParamAttrName())
             << " of " << getElementType(before) << ", " << name << " of "
             << getElementType(index);
  }
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
      std::optional<unsigned> parameter = table.find(name);
      if (!parameter || !arguments[*parameter])
        return step.emitError("a result is the gradient of ")
               << name << ", which is no parameter";
      auto expected = cast<RankedTensorType>(arguments[*parameter].getType());
      auto type = dyn_cast<RankedTensorType>(value.getType());
      if (!type || type.getShape() != expected.getShape() ||
          type.getElementType() != expected.getElementType())
        return emitError(value.getLoc())
               << "expected a gradient of parameter " << name << " of type "
               << expected << ", got " << value.getType();
      if (gradients[*parameter])
        return step.emitError("two results are the gradient of ") << name;
      gradients[*parameter] = value;
      gradientOf[value].push_back(*parameter);
    } else if (attr(ATenDialect::getBufferMutationAttrName()) ||
               (keepOutput && attr(ATenDialect::getOutputAttrName()))) {
      kept.push_back(index);
      if (attr(ATenDialect::getBufferMutationAttrName()))
        synchronised[value] = Value();
    } else {
      remark::passed(value.getLoc(), getRemark("fsdp-shard", "dropped", step))
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

/// Where one parameter of a unit has a gradient, all that are trained have one.
LogicalResult Sharder::checkGradients() {
  for (auto [unit, use] : llvm::zip_equal(table.units, units)) {
    auto isTrained = [&](unsigned index) { return bool(gradients[index]); };
    if (llvm::none_of(unit.parameters, isTrained))
      continue;
    use.gradients.resize(unit.parameters.size());
    for (unsigned index : unit.parameters) {
      use.missing += isTrained(index);
      if (table.parameters[index].isTrainable && !isTrained(index))
        return step.emitError("expected a gradient of parameter ")
               << table.parameters[index].name
               << ", which another program trains, found none beside those of "
                  "others of unit '"
               << unit.name << '\'';
    }
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
  for (Value gradient : gradients)
    if (gradient)
      needed.push_back(gradient);
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
  for (auto [index, gradient] : llvm::enumerate(gradients)) {
    const ShardUnits::Parameter &parameter = table.parameters[index];
    if (gradient && !units[parameter.unit].gradients[parameter.place])
      addGradient(index, resolve(gradient, aten::Phase::Backward));
  }
  if (!meanLoss)
    meanLoss = reduceOverMesh(resolve(loss, aten::Phase::Forward),
                              ReductionRole::Loss, /*isFirst=*/false);
  SmallVector<Value> results = {meanLoss};
  for (const UnitUse &unit : units)
    if (unit.reduced)
      results.push_back(unit.reduced);
  for (auto [value, index] : llvm::zip_equal(others, kept)) {
    bool isBuffer = bool(step.getResultAttr(
        index, aten::ATenDialect::getBufferMutationAttrName()));
    Value result = isFromParameters(value) ? copyOut(value) : value;
    if (Value known = isBuffer ? synchronised.lookup(value) : Value())
      result = known;
    else if (isBuffer)
      result = synchronised[value] = syncBuffer(result);
    results.push_back(result);
  }
  terminator->setOperands(results);
  for (Operation *op : llvm::reverse(setAside))
    op->erase();
}

void Sharder::rewriteSignature() {
  Ports oldArguments = getArguments(step), oldResults = getResults(step);
  Ports arguments, results;
  for (auto [unit, use] : llvm::zip_equal(table.units, units))
    if (use.shard)
      arguments.add(use.shard.getType(),
                    getStateDict(unit.op, StateAttr::getParameterKind()));
  llvm::BitVector erased(block.getNumArguments());
  // The shards were put in front of the block's arguments.
  size_t numShards = arguments.types.size();
  for (auto [index, type] : llvm::enumerate(oldArguments.types)) {
    BlockArgument argument = block.getArgument(numShards + index);
    if (byArgument.contains(argument))
      erased.set(numShards + index);
    else
      arguments.add(type, oldArguments.attrs[index]);
  }
  block.eraseArguments(erased);

  results.add(oldResults.types[lossIndex], oldResults.attrs[lossIndex]);
  for (auto [unit, use] : llvm::zip_equal(table.units, units))
    if (use.reduced)
      results.add(use.reduced.getType(),
                  getStateDict(unit.op, StateAttr::getGradientKind()));
  for (unsigned index : kept)
    results.add(
        block.getTerminator()->getOperand(results.types.size()).getType(),
        oldResults.attrs[index]);
  setSignature(step, arguments, results);
}

LogicalResult Sharder::run() {
  if (failed(collectParameters()) || failed(collectResults()) ||
      failed(checkGradients()))
    return failure();

  func::FuncOp source = step.clone();
  source.setName((step.getSymName() + ".source").str());
  source.setPrivate();
  source->removeAttr(aten::ATenDialect::getProgramAttrName());
  SymbolTable(step->getParentOfType<ModuleOp>())
      .insert(source, std::next(Block::iterator(step)));
  step->setAttr(FSDPDialect::getSourceAttrName(),
                FlatSymbolRefAttr::get(source));

  DenseSet<unsigned> used;
  for (auto [argument, parameter] : byArgument)
    used.insert(table.parameters[parameter].unit);
  unsigned index = 0;
  for (auto [number, unit] : llvm::enumerate(table.units))
    if (UnitOp op = unit.op; used.contains(number))
      units[number].shard = block.insertArgument(
          index++, op.getShardType(mesh.getGroupSize(op.getShardAxes())),
          getLoc((op.getSymName() + ".shard").str()));
  rewriteBody();
  rewriteSignature();
  applyReshard(step);
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

/// True of a strategy that shards within groups of a mesh of several copies.
static bool isHybrid(Strategy strategy) {
  return strategy == Strategy::HybridShard ||
         strategy == Strategy::HybridShardZero2;
}

static bool reshards(Strategy strategy) {
  return strategy == Strategy::FullShard || strategy == Strategy::HybridShard;
}

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
    if (failed(shard()))
      signalPassFailure();
  }

  FailureOr<MeshOp> createMesh(func::FuncOp first);
  UnitDecision decide(MeshOp mesh, const ShardUnits::Unit &unit,
                      ArrayRef<llvm::Regex> regexes,
                      MutableArrayRef<bool> matched);
  FailureOr<SmallVector<UnitDecision>> decide(func::FuncOp first, MeshOp mesh,
                                              const ShardUnits &units);
  LogicalResult markSynchronised(ArrayRef<func::FuncOp> programs);
  LogicalResult shard();
};
} // namespace

FailureOr<MeshOp> ShardPass::createMesh(func::FuncOp first) {
  MeshSizes sizes = mesh;
  bool isGiven = sizes.replicate || sizes.shard;
  if (ranks < 1)
    return first.emitError("expected at least one rank, got ") << ranks;
  if (!isGiven && isHybrid(strategy))
    return first.emitError("expected a mesh of two axes for ")
           << stringifyStrategy(strategy) << ", such as mesh=2x4";
  if (!isGiven)
    (strategy == Strategy::NoShard ? sizes.replicate : sizes.shard) = ranks;
  sizes.replicate = std::max<int64_t>(sizes.replicate, 1);
  sizes.shard = std::max<int64_t>(sizes.shard, 1);
  if (isGiven && ranks != 1 && sizes.replicate * sizes.shard != ranks)
    return first.emitError("expected a mesh of ")
           << ranks << " ranks, got " << spellOption(mesh);
  SymbolTable symbols(getOperation());
  OpBuilder builder(first);
  auto axis = [&](StringRef name, int64_t size) {
    return AxisAttr::get(&getContext(), builder.getStringAttr(name), size);
  };
  auto op =
      MeshOp::create(builder, first.getLoc(), "mesh",
                     builder.getArrayAttr({axis("replicate", sizes.replicate),
                                           axis("shard", sizes.shard)}));
  symbols.insert(op, Block::iterator(first)); // which may rename it
  return op;
}

/// What the rules say of a unit, and the options of whatever they do not.
UnitDecision ShardPass::decide(MeshOp meshOp, const ShardUnits::Unit &unit,
                               ArrayRef<llvm::Regex> regexes,
                               MutableArrayRef<bool> matched) {
  Strategy chosen = strategy;
  std::optional<bool> reshard;
  bool keeps = !reshardAfterBackward;
  ElementType storage = storageDtype, reduce = reduceDtype;
  for (auto [index, regex] : llvm::enumerate(regexes)) {
    if (!regex.match(unit.name))
      continue;
    const UnitRule &rule = this->unit.getValue().rules[index];
    matched[index] = true;
    chosen = rule.strategy.value_or(chosen);
    if (rule.reshard)
      reshard = rule.reshard;
    if (rule.reshardAfterBackward)
      keeps = !*rule.reshardAfterBackward;
    if (rule.storage != ElementType::Unchanged)
      storage = rule.storage;
    if (rule.reduce != ElementType::Unchanged)
      reduce = rule.reduce;
  }

  UnitDecision decision;
  bool isSharded = false;
  for (auto axis : meshOp.getAxes().getAsRange<AxisAttr>()) {
    if (unit.isIgnored)
      break;
    // Which of the two an axis of one rank is makes no difference.
    StringRef name = axis.getName().getValue();
    bool isShard = axis.getSize() == 1 || isHybrid(chosen)
                       ? name == "shard"
                       : chosen != Strategy::NoShard;
    (isShard ? decision.shardAxes : decision.replicateAxes).push_back(name);
    isSharded |= isShard && axis.getSize() > 1;
  }
  // The backward starts where the forward ends, with the root: freeing it in
  // between would only mean to gather it at once again.
  // What stays for the next micro-batch has its place in memory all the while.
  decision.keep = isSharded && keeps;
  decision.reshard =
      isSharded && !keeps && reshard.value_or(reshards(chosen) && !unit.isRoot);
  decision.storage = getType(storage);
  decision.reduce = getType(reduce);
  return decision;
}

FailureOr<SmallVector<UnitDecision>>
ShardPass::decide(func::FuncOp first, MeshOp mesh, const ShardUnits &units) {
  ArrayRef<UnitRule> rules = unit.getValue().rules;
  std::vector<llvm::Regex> regexes;
  for (const UnitRule &rule : rules) {
    auto regex = getPathRegex(rule.regex, [&] { return first.emitError(); });
    if (failed(regex))
      return failure();
    regexes.push_back(std::move(*regex));
  }
  SmallVector<bool> matched(rules.size());
  SmallVector<UnitDecision> decisions;
  for (const ShardUnits::Unit &unit : units.units)
    decisions.push_back(decide(mesh, unit, regexes, matched));
  for (auto [rule, isMatched] : llvm::zip_equal(rules, matched)) {
    if (isMatched)
      continue;
    std::vector<std::string> names;
    for (const ShardUnits::Unit &unit : units.units)
      names.push_back(unit.name.str());
    InFlightDiagnostic diagnostic = first.emitError("expected '")
                                    << rule.regex
                                    << "' to match the name of a unit";
    listFound(diagnostic, std::move(names));
    return diagnostic;
  }
  return decisions;
}

/// Says of each program that changes buffers what becomes of them.
LogicalResult ShardPass::markSynchronised(ArrayRef<func::FuncOp> programs) {
  if (syncBuffers == SyncBuffers::None)
    return success();
  bool isFound = false;
  auto name = StringAttr::get(&getContext(), stringifySyncBuffers(syncBuffers));
  for (func::FuncOp program : programs)
    for (unsigned i = 0, e = program.getNumResults(); i != e; ++i)
      if (program.getResultAttr(
              i, aten::ATenDialect::getBufferMutationAttrName())) {
        program->setAttr(FSDPDialect::getSyncBuffersAttrName(), name);
        isFound = true;
      }
  if (isFound)
    return success();
  return func::FuncOp(programs.front())
             .emitError("sync-buffers: expected a program that changes a "
                        "buffer, such as "
                        "the statistics of batch norm, found none; leave out '")
         << stringifySyncBuffers(syncBuffers) << '\'';
}

LogicalResult ShardPass::shard() {
  ModuleOp module = getOperation();
  auto programs = getPrograms(module);
  if (failed(programs))
    return failure();
  func::FuncOp first = programs->front();
  ShardUnits units;
  for (func::FuncOp program : *programs)
    if (failed(checkLevel(program, Level::ATen)) ||
        failed(checkSizes(program)) || failed(units.add(program)))
      return failure();
  const MeshSizes &sizes = mesh;
  int64_t shards = sizes.shard;
  if (!isHybrid(strategy))
    shards = std::max({int64_t(ranks), sizes.replicate, sizes.shard});
  if (strategy != Strategy::NoShard && shards == 1) {
    first->emitWarning("one rank has nothing to shard: using 'no_shard'");
    strategy = Strategy::NoShard;
  }
  if (failed(markSynchronised(*programs)))
    return failure();
  FailureOr<MeshOp> meshOp = createMesh(first);
  if (failed(meshOp))
    return failure();
  auto decisions = decide(first, *meshOp, units);
  if (failed(decisions) || failed(units.create(first, *meshOp, *decisions)))
    return failure();
  for (func::FuncOp program : *programs)
    if (failed(Sharder(program, units, *meshOp, keepOutput, syncBuffers).run()))
      return failure();
  return success();
}

} // namespace fsdp
