//===- Updates.cpp - Measures and updates become commands -----------------===//
//
// They change their shards in place. What an update reads beside them, measures
// and factors, are scalars, which are copied to where the shards are.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

#include "fsdp/Dialect/FSDP/IR/ClipFactor.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;

LogicalResult Lowering::lower(MeasureOp op) {
  setPhase(aten::Phase::Update);
  Value shard = buffers.lookup(op.getShard());
  plan::Space space = plan::getRoot(shard).getSpace();
  Value target =
      addTransient(op.getLoc(), getMemoryType(op.getMeasure().getType()));
  plan::getRoot(target).setSpace(space);
  Value initial = buffers.lookup(op.getInitial());
  plan::MeasureOp::create(builder, op.getLoc(), op.getKind(), op.getUnit(),
                          op.getIntervals(), shard,
                          initial ? getScalar(initial, space) : initial, target,
                          role, Stream::Compute);
  buffers[op.getMeasure()] = target;
  return success();
}

/// In few launches, each of one number.
LogicalResult Lowering::lower(ClipFactorOp op) {
  setPhase(aten::Phase::Update);
  MLIRContext *context = op.getContext();
  auto launch = [&](StringRef name, ArrayRef<Value> inputs,
                    Attribute constant) -> Value {
    SmallVector<Attribute> places(inputs.size(),
                                  aten::OperandAttr::get(context));
    if (constant)
      places.push_back(constant);
    Value result = addTransient(
        op.getLoc(), RankedTensorType::get({}, builder.getF64Type()));
    plan::LaunchOp::create(
        builder, op.getLoc(), aten::OpNameAttr::get(context, name),
        aten::ArgsAttr::get(context, places, ArrayRef<StringAttr>()), inputs,
        result, DenseBoolArrayAttr(), StringAttr(), role, Stream::Compute);
    return result;
  };
  auto measures = llvm::map_to_vector(op.getMeasures(), [&](Value value) {
    return getScalar(buffers.lookup(value), plan::Space::Device);
  });
  std::optional<Value> scale;
  if (op.getLossScale())
    scale = buffers.lookup(op.getLossScale());
  Value factor =
      makeClipFactor<Value>({op.getMaxNorm().convertToDouble(), op.getKind()},
                            measures, scale, context, launch);
  Value target =
      addTransient(op.getLoc(), getMemoryType(op.getFactor().getType()));
  copy(op.getLoc(), factor, target, Stream::Compute);
  buffers[op.getFactor()] = target;
  return success();
}

/// In the place of the operand, which ends here.
LogicalResult Lowering::lower(ScaleOp op) {
  setPhase(aten::Phase::Update);
  for (Operation *user : op.getShard().getUsers())
    if (op->isBeforeInBlock(user) && !isa<func::ReturnOp>(user)) {
      InFlightDiagnostic diagnostic =
          op.emitError("expected no use of a gradient after it has been "
                       "scaled, in its place; found one");
      diagnostic.attachNote(user->getLoc()) << "used here";
      return diagnostic;
    }
  Value shard = buffers.lookup(op.getShard());
  MLIRContext *context = op.getContext();
  SmallVector<Attribute> places(2, aten::OperandAttr::get(context));
  plan::LaunchOp::create(
      builder, op.getLoc(), aten::OpNameAttr::get(context, "mul.out"),
      aten::ArgsAttr::get(context, places, ArrayRef<StringAttr>()),
      ValueRange{shard, buffers.lookup(op.getFactor())}, ValueRange{shard},
      DenseBoolArrayAttr(), StringAttr(), role, Stream::Compute);
  buffers[op.getScaled()] = shard;
  return success();
}

/// The command of the same name, with the same operands in the plan's memory.
LogicalResult Lowering::lower(UpdateOpInterface op) {
  setPhase(aten::Phase::Update);
  if (!isa<BlockArgument>(op.getHyper()))
    return op->emitError("expected hyper-parameters that the caller sets, "
                         "found values that are computed");
  MLIRContext *context = op->getContext();
  OperationState command(op->getLoc(), ("plan." + op.getRule()).str());
  plan::Space space =
      plan::getRoot(buffers.lookup(op.getGradient())).getSpace();
  for (Value operand : op->getOperands()) {
    Value buffer = buffers.lookup(operand);
    bool isScalar = llvm::is_contained(op.getScalars(), operand);
    command.addOperands(isScalar ? getScalar(buffer, space) : buffer);
  }
  NamedAttrList attributes(
      cast<DictionaryAttr>(op->getPropertiesAsAttribute()));
  attributes.set("role", plan::RoleAttr::get(context, role));
  attributes.set("stream", plan::StreamAttr::get(context, Stream::Compute));
  command.addAttributes(attributes);
  builder.create(command);
  for (const UpdatedState &state : op.getStates())
    buffers[state.after] = buffers.lookup(state.before);
  return success();
}
