//===- ScaleLoss.cpp - Scale the loss, and update where that is finite ----===//
//
// What torch.amp.GradScaler does, in the step: the backward starts with the
// scale, updates divide by it and change nothing where a gradient is not
// finite, and then the scale itself is updated.
//
//===----------------------------------------------------------------------===//

#include "Measures.h"

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_SCALELOSSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
/// Adds the scaler to one function.
class Scaler {
public:
  Scaler(func::FuncOp func, const GradScaler &scaler)
      : func(func), scaler(scaler), block(func.getBody().front()),
        builder(block.getTerminator()), arguments(getArguments(func)),
        results(getResults(func)) {}

  LogicalResult scaleSeed();
  LogicalResult scaleUpdates();
  void finish() { setSignature(func, arguments, results); }

  Measures measures;

private:
  /// A buffer with one number, the same on all ranks.
  Value addBuffer(StringRef name, Type type, Attribute initial);
  void addResult(StringRef name, Value value);
  SmallVector<Value> call(StringRef callee, aten::Phase phase, TypeRange types,
                          ValueRange inputs, ArrayRef<Attribute> constants = {},
                          ArrayRef<StringAttr> keywords = {});
  Value cast(Value value, Type elementType, aten::Phase phase);

  func::FuncOp func;
  const GradScaler &scaler;
  Block &block;
  OpBuilder builder;
  Ports arguments, results;
  Value scale;
};
} // namespace

Value Scaler::addBuffer(StringRef name, Type elementType, Attribute initial) {
  auto type = RankedTensorType::get({}, elementType);
  arguments.add(
      type, builder.getDictionaryAttr(
                {builder.getNamedAttr(aten::ATenDialect::getBufferAttrName(),
                                      builder.getStringAttr(name)),
                 builder.getNamedAttr(aten::ATenDialect::getValueAttrName(),
                                      DenseElementsAttr::get(type, initial))}));
  return block.addArgument(
      type, NameLoc::get(builder.getStringAttr(name), func.getLoc()));
}

void Scaler::addResult(StringRef name, Value value) {
  Operation *end = block.getTerminator();
  end->insertOperands(end->getNumOperands(), value);
  results.add(value.getType(),
              builder.getDictionaryAttr(builder.getNamedAttr(
                  aten::ATenDialect::getBufferMutationAttrName(),
                  builder.getStringAttr(name))));
}

SmallVector<Value> Scaler::call(StringRef callee, aten::Phase phase,
                                TypeRange types, ValueRange inputs,
                                ArrayRef<Attribute> constants,
                                ArrayRef<StringAttr> keywords) {
  MLIRContext *context = func.getContext();
  SmallVector<Attribute> values(inputs.size(), aten::OperandAttr::get(context));
  llvm::append_range(values, constants);
  auto loc = NameLoc::get(builder.getStringAttr("grad_scaler"), func.getLoc());
  return aten::CallOp::create(builder, loc, types, callee,
                              aten::ArgsAttr::get(context, values, keywords),
                              inputs, aten::PhaseAttr::get(context, phase))
      .getOutputs();
}

Value Scaler::cast(Value value, Type elementType, aten::Phase phase) {
  auto type = mlir::cast<RankedTensorType>(value.getType());
  if (type.getElementType() == elementType)
    return value;
  return call("_to_copy", phase, type.clone(elementType), value,
              TypeAttr::get(elementType), builder.getStringAttr("dtype"))
      .front();
}

/// A loss of 16 bits is multiplied in f32 and rounded, as
/// `torch.amp.GradScaler.scale` and its backward do.
LogicalResult Scaler::scaleSeed() {
  aten::CallOp seed = getGradientSeed(func);
  auto type = seed && seed.getNumResults() == 1
                  ? dyn_cast<RankedTensorType>(seed.getResult(0).getType())
                  : RankedTensorType();
  if (!type || type.getRank() != 0)
    return func.emitError("expected an archive that says where the backward of "
                          "a loss of one number starts, to scale the loss: "
                          "capture it with fsdp_mlir.capture, or leave the "
                          "grad-scaler out");
  scale = addBuffer(GradScaler::getScaleName(), builder.getF32Type(),
                    builder.getF32FloatAttr(float(scaler.initScale)));
  builder.setInsertionPointAfter(seed);
  Type elementType = type.getElementType();
  Type product = elementType.isF64() ? elementType : builder.getF32Type();
  aten::Phase phase = aten::Phase::Backward;
  Value scaled =
      call("mul.Tensor", phase, type.clone(product), {seed.getResult(0), scale})
          .front();
  Operation *first = scaled.getDefiningOp();
  scaled = cast(scaled, elementType, phase);
  seed.getResult(0).replaceAllUsesExcept(scaled, first);
  return success();
}

LogicalResult Scaler::scaleUpdates() {
  aten::Phase phase = aten::Phase::Update;
  auto updates = llvm::to_vector(block.getOps<UpdateOpInterface>());
  builder.setInsertionPoint(updates.front());
  auto measured = measureGradients(builder, func, MeasureKind::FoundInf);
  if (failed(measured))
    return failure();
  measures = std::move(*measured);
  Value found = measures.values.front();
  for (Value other : ArrayRef(measures.values).drop_front())
    found = call("maximum", phase, found.getType(), {found, other}).front();
  found = cast(found, builder.getF32Type(), phase);

  Value skipped = addBuffer(GradScaler::getSkippedName(), builder.getF32Type(),
                            builder.getF32FloatAttr(0));
  for (UpdateOpInterface update : updates) {
    update.setScalar(UpdateScalar::LossScale, scale);
    update.setScalar(UpdateScalar::FoundInf, found);
    update.setScalar(UpdateScalar::Skipped, skipped);
  }

  Value tracker = addBuffer(GradScaler::getGrowthTrackerName(),
                            builder.getI32Type(), builder.getI32IntegerAttr(0));
  builder.setInsertionPoint(block.getTerminator());
  SmallVector<Value> next =
      call("_amp_update_scale", phase, {scale.getType(), tracker.getType()},
           {scale, tracker, found},
           {builder.getF64FloatAttr(scaler.growthFactor),
            builder.getF64FloatAttr(scaler.backoffFactor),
            builder.getI64IntegerAttr(scaler.growthInterval)});
  addResult(GradScaler::getScaleName(), next[0]);
  addResult(GradScaler::getGrowthTrackerName(), next[1]);
  addResult(
      GradScaler::getSkippedName(),
      call("add.Tensor", phase, skipped.getType(), {skipped, found}).front());
  func->setAttr(FSDPDialect::getGradScalerAttrName(),
                getAttribute(scaler, func.getContext()));
  return success();
}

namespace {
class ScaleLossPass : public impl::ScaleLossPassBase<ScaleLossPass> {
  using ScaleLossPassBase::ScaleLossPassBase;

  void runOnOperation() final {
    auto programs = getPrograms(getOperation());
    if (failed(programs))
      return signalPassFailure();
    auto updates = [](func::FuncOp program) {
      return !program.getBody().front().getOps<UpdateOpInterface>().empty();
    };
    if (!gradScaler || llvm::none_of(*programs, updates))
      return;
    for (func::FuncOp program : *programs)
      if (updates(program) || program->hasAttr(FSDPDialect::getPartAttrName()))
        if (failed(checkLevel(program, {Level::Logical})) ||
            failed(scale(program, updates(program))))
          return signalPassFailure();
  }

  LogicalResult scale(func::FuncOp program, bool hasUpdates) {
    func::FuncOp source = getSource(program);
    for (func::FuncOp func : {program, source})
      for (unsigned i = 0, e = func ? func.getNumArguments() : 0; i != e; ++i)
        if (auto name = func.getArgAttrOfType<StringAttr>(
                i, aten::ATenDialect::getBufferAttrName());
            name && GradScaler::isState(name))
          return func.emitError("expected no buffer that is called ")
                 << name << ", as one of the grad-scaler is";
    Scaler scaler(program, gradScaler);
    if (failed(scaler.scaleSeed()))
      return failure();
    if (hasUpdates && failed(scaler.scaleUpdates()))
      return failure();
    scaler.finish();
    if (hasUpdates)
      remark::passed(program.getLoc(),
                     getRemark(getArgument(), "scale", program))
          << remark::metric("Units", scaler.measures.numUnits)
          << remark::metric("Elements", scaler.measures.numElements)
          << remark::metric("Reductions", scaler.measures.numReductions);
    return success();
  }
};
} // namespace

} // namespace fsdp
