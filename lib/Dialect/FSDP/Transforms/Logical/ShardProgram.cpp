//===- ShardProgram.cpp - A program over shards ---------------------------===//
//
// First what the program does with parameters is looked up and checked; nothing
// is changed before all of it is known. Then the body is rewritten in one walk
// (ShardValues.cpp says with what), and then the signature.
//
//===----------------------------------------------------------------------===//

#include "Sharder.h"

#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;

namespace fsdp {

//===----------------------------------------------------------------------===//
// Preparation
//===----------------------------------------------------------------------===//

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
// The step
//===----------------------------------------------------------------------===//

/// Outputs that are dropped take with them what only they need. Returns the
/// results that are kept beside the loss and the gradients.
SmallVector<Value> Sharder::dropResults() {
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
  return others;
}

void Sharder::rewriteBody() {
  SmallVector<Value> others = dropResults();
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
  builder.setInsertionPoint(block.getTerminator());
  reduceRest();
  returnResults(others);
  for (Operation *op : llvm::reverse(setAside))
    op->erase();
}

/// Results that no operation computes, but the caller or the parameters.
void Sharder::reduceRest() {
  for (auto [index, gradient] : llvm::enumerate(gradients)) {
    const ShardUnits::Parameter &parameter = table.parameters[index];
    if (gradient && !units[parameter.unit].gradients[parameter.place])
      addGradient(index, resolve(gradient, aten::Phase::Backward));
  }
  if (!meanLoss)
    meanLoss = reduceOverMesh(resolve(loss, aten::Phase::Forward),
                              ReductionRole::Loss, /*isFirst=*/false);
}

void Sharder::returnResults(ArrayRef<Value> others) {
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
  block.getTerminator()->setOperands(results);
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

/// The program as it was stays in the module, for verifiers.
void Sharder::keepSource() {
  func::FuncOp source = step.clone();
  source.setName((step.getSymName() + ".source").str());
  source.setPrivate();
  source->removeAttr(aten::ATenDialect::getProgramAttrName());
  SymbolTable(step->getParentOfType<ModuleOp>())
      .insert(source, std::next(Block::iterator(step)));
  step->setAttr(FSDPDialect::getSourceAttrName(),
                FlatSymbolRefAttr::get(source));
}

LogicalResult Sharder::run() {
  if (failed(collectParameters()) || failed(collectResults()) ||
      failed(checkGradients()))
    return failure();

  keepSource();
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

} // namespace fsdp
