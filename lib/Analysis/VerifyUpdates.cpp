//===- VerifyUpdates.cpp - Are updates what the program says? -------------===//

#include "VerifyUpdates.h"

using namespace mlir;

namespace fsdp {

LogicalResult verifyDecay(func::FuncOp step, UnitOp unit,
                          ArrayRef<UnitInterval> intervals) {
  auto names =
      step->getAttrOfType<ArrayAttr>(FSDPDialect::getNoDecayAttrName());
  DenseSet<Attribute> withoutDecay;
  if (names)
    withoutDecay.insert(names.begin(), names.end());
  for (const UnitInterval &interval : intervals) {
    Value hyper = cast<UpdateOpInterface>(interval.op).getHyper();
    auto argument = dyn_cast<BlockArgument>(hyper);
    bool decays =
        !argument || !step.getArgAttr(argument.getArgNumber(),
                                      FSDPDialect::getNoDecayAttrName());
    for (ParameterAttr parameter : unit.getLayout().getParameters())
      if (parameter.getOffset() < interval.end &&
          parameter.getEnd() > interval.begin &&
          withoutDecay.contains(parameter.getName()) == decays)
        return interval.op->emitError("expected parameter ")
               << parameter.getName() << " to be updated with"
               << (decays ? "out" : "") << " weight decay, as the program says";
  }
  return success();
}

LogicalResult verifyUnsynchronised(func::FuncOp program) {
  DenseMap<Attribute, StringRef> kinds; // of what is summed, by unit
  for (unsigned i = 0, e = program.getNumResults(); i != e; ++i)
    if (auto state = program.getResultAttrOfType<StateAttr>(
            i, FSDPDialect::getStateAttrName());
        state && state.isAccumulated())
      kinds[state.getUnit()] = state.getKind();
  for (auto op : program.getOps<CollectiveOpInterface>()) {
    if (op.isGather())
      continue;
    FlatSymbolRefAttr unit = op.getUnitAttr();
    StringRef kind = kinds.lookup(unit);
    if (kind == StateAttr::getUnshardedGradientKind())
      return op->emitError("expected a micro-batch whose gradients stay "
                           "unsharded to reduce none, found ")
             << unit;
    if (kind == StateAttr::getPartialGradientKind() &&
        op.getKind() == CollectiveKind::AllReduce)
      return op->emitError("expected a micro-batch whose gradients are partial "
                           "to all-reduce none, found ")
             << unit;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Clipping
//===----------------------------------------------------------------------===//

LogicalResult verifyClipping(func::FuncOp program,
                             MeasuredGradients &measured) {
  ClipGradNorm clip = getClipGradNorm(program);
  if (!clip)
    return success();
  ClipFactorOp factor;
  for (auto update : program.getBody().front().getOps<UpdateOpInterface>()) {
    Value value = update.getScalar(UpdateScalar::ClipFactor);
    auto own = value ? value.getDefiningOp<ClipFactorOp>() : ClipFactorOp();
    factor = factor ? factor : own;
    if (!own || own != factor ||
        update.getScalar(UpdateScalar::LossScale) != factor.getLossScale() ||
        update.getGradient().getDefiningOp<ScaleOp>())
      return update->emitError("expected the gradient to be multiplied by the "
                               "clip factor of the program alone, found ")
             << (value ? "another scale" : "no clip factor");
  }
  if (!factor)
    return success();
  if (factor.getKind() != clip.kind ||
      factor.getMaxNorm().convertToDouble() != clip.maxNorm)
    return factor.emitError("expected the norm to be clipped as the program "
                            "says, found another bound or order");
  return measured.verify(factor, factor.getKind(), factor.getMeasures());
}

//===----------------------------------------------------------------------===//
// Scaling
//===----------------------------------------------------------------------===//

static aten::CallOp getCall(Value value, StringRef callee) {
  auto call = value ? value.getDefiningOp<aten::CallOp>() : aten::CallOp();
  return call && call.getCallee().getName() == callee ? call : aten::CallOp();
}

/// The argument that is this buffer.
static Value getBuffer(func::FuncOp program, StringRef name) {
  for (BlockArgument argument : program.getArguments())
    if (auto own = program.getArgAttrOfType<StringAttr>(
            argument.getArgNumber(), aten::ATenDialect::getBufferAttrName());
        own && own == name)
      return argument;
  return {};
}

/// What the program makes of this buffer.
static Value getMutation(func::FuncOp program, StringRef name) {
  for (unsigned i = 0, e = program.getNumResults(); i != e; ++i)
    if (auto own = program.getResultAttrOfType<StringAttr>(
            i, aten::ATenDialect::getBufferMutationAttrName());
        own && own == name)
      return program.getBody().front().getTerminator()->getOperand(i);
  return {};
}

/// The scale, its tracker and the number of skipped updates, each by what was
/// found.
static LogicalResult verifyScale(func::FuncOp program, const GradScaler &scaler,
                                 Value scale, Value skipped, Value found) {
  Value tracker = getBuffer(program, GradScaler::getGrowthTrackerName());
  Value after = getMutation(program, GradScaler::getScaleName());
  aten::CallOp update = getCall(after, "_amp_update_scale");
  Builder builder(program.getContext());
  Attribute operand = aten::OperandAttr::get(program.getContext());
  SmallVector<Attribute> expected = {
      operand,
      operand,
      operand,
      builder.getF64FloatAttr(scaler.growthFactor),
      builder.getF64FloatAttr(scaler.backoffFactor),
      builder.getI64IntegerAttr(scaler.growthInterval)};
  if (!update || update.getArgs().getValues() != ArrayRef(expected) ||
      !llvm::equal(update.getInputs(), ValueRange{scale, tracker, found}) ||
      after != update.getResult(0) ||
      getMutation(program, GradScaler::getGrowthTrackerName()) !=
          update.getResult(1))
    return program.emitError("expected the scale to grow and to back off by "
                             "what is found, as the program says; found "
                             "another scale");
  aten::CallOp sum =
      getCall(getMutation(program, GradScaler::getSkippedName()), "add.Tensor");
  if (!sum || sum.getNumArgs() != 2 ||
      !llvm::equal(sum.getInputs(), ValueRange{skipped, found}))
    return program.emitError("expected the number of updates that are skipped "
                             "to grow by what is found, found another");
  return success();
}

LogicalResult verifyScaling(func::FuncOp program, MeasuredGradients &measured) {
  GradScaler scaler = getGradScaler(program);
  if (!scaler)
    return success();
  Value scale = getBuffer(program, GradScaler::getScaleName());
  Value skipped = getBuffer(program, GradScaler::getSkippedName());
  Value found;
  for (auto update : program.getBody().front().getOps<UpdateOpInterface>()) {
    found = found ? found : update.getScalar(UpdateScalar::FoundInf);
    UpdateScalars expected = {update.getScalar(UpdateScalar::ClipFactor), scale,
                              found, skipped};
    if (!scale || !found || !skipped || update.getScalars() != expected)
      return update->emitError("expected an update that divides by the scale "
                               "of the loss, and changes nothing where a "
                               "gradient is not finite; found another");
  }
  if (!found)
    return success();
  aten::CallOp cast = getCall(found, "_to_copy");
  if (!cast || cast.getInputs().size() != 1)
    return program.emitError("expected what is found as a number of f32, found "
                             "another value");
  SmallVector<Value> measures;
  Value all = cast.getInputs().front();
  while (aten::CallOp larger = getCall(all, "maximum")) {
    measures.push_back(larger.getInputs().back());
    all = larger.getInputs().front();
  }
  measures.push_back(all);
  if (failed(measured.verify(cast, MeasureKind::FoundInf, measures)))
    return failure();
  return verifyScale(program, scaler, scale, skipped, found);
}

} // namespace fsdp
