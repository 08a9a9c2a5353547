//===- StepToProgram.cpp - A function becomes a program -------------------===//
//
// Calls, collectives with memory of their own, and updates.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

#include "fsdp/Dialect/FSDP/IR/ClipFactor.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;

RankedTensorType fsdp::detail::getMemoryType(Type type) {
  return TypeSwitch<Type, RankedTensorType>(type)
      .Case([](RankedTensorType type) { return type; })
      .Case([](ShardType type) {
        return RankedTensorType::get({type.getNumel() / type.getShards()},
                                     type.getElementType());
      })
      .Case([](GatheredType type) {
        return RankedTensorType::get({type.getNumel()}, type.getElementType());
      })
      .Case([](FutureType type) { return getMemoryType(type.getValueType()); })
      .Default([](Type) { return RankedTensorType(); });
}

void Lowering::setPhase(aten::Phase phase) {
  if (isInit)
    return;
  switch (phase) {
  case aten::Phase::Forward:
    role = plan::Role::Forward;
    return;
  case aten::Phase::Backward:
  case aten::Phase::Recompute:
    role = plan::Role::Backward;
    return;
  case aten::Phase::Update:
    role = plan::Role::Update;
    return;
  }
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

LogicalResult Lowering::lower(aten::CallOp op) {
  if (op.getPhase())
    setPhase(*op.getPhase());
  SmallVector<Value> inputs, outputs;
  for (Value input : op.getInputs()) {
    Value buffer = buffers.lookup(input);
    if (!buffer)
      return op.emitError("expected operands with a place in memory, found ")
             << input.getType();
    inputs.push_back(getScalar(buffer, plan::Space::Device));
  }
  SmallVector<bool> present;
  for (Value output : op.getOutputs()) {
    auto type = dyn_cast<RankedTensorType>(output.getType());
    present.push_back(type != nullptr);
    if (isa<NoneType>(output.getType()))
      continue;
    if (!type || !type.hasStaticShape())
      return op.emitError("expected tensors of known sizes as results, found ")
             << output.getType();
    // The offset of a view stays in the type until plan-fold-views reads it.
    outputs.push_back(addTransient(op.getLoc(), type));
    buffers[output] = outputs.back();
  }
  auto places = outputs.size() == present.size()
                    ? DenseBoolArrayAttr()
                    : builder.getDenseBoolArrayAttr(present);
  plan::LaunchOp::create(builder, op.getLoc(), op.getCallee(), op.getArgs(),
                         inputs, outputs, places, op.getScopeAttr(), role,
                         Stream::Compute);
  return success();
}

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

/// A scalar in the memory of who reads it.
Value Lowering::getScalar(Value scalar, plan::Space space) {
  bool isOnHost = plan::getRoot(scalar).getSpace() != plan::Space::Device;
  if (isOnHost == (space != plan::Space::Device))
    return scalar;
  Value &other = scalars[scalar];
  if (!other) {
    other = addTransient(scalar.getLoc(), plan::getTensorType(scalar));
    plan::getRoot(other).setSpace(isOnHost ? plan::Space::Device
                                           : plan::Space::Pinned);
    // No wait of the schedule says that it is there.
    copy(scalar.getLoc(), scalar, other, Stream::Compute);
  }
  return other;
}

LogicalResult Lowering::lower(PieceOp op) {
  Location loc = op.getLoc();
  Value full = buffers.lookup(op.getFull());
  Value piece = addTransient(loc, getMemoryType(op.getPiece().getType()));
  if (FlatSymbolRefAttr communicator = tables.getCommunicator(
          llvm::to_vector(op.getAxes().getAsValueRange<StringAttr>()),
          Stream::Gather))
    plan::PieceOp::create(builder, loc, communicator.getValue(), full, piece,
                          op.getUnitAttr(), role, Stream::Compute);
  else
    copy(loc, full, piece, Stream::Compute);
  buffers[op.getPiece()] = piece;
  return success();
}

LogicalResult Lowering::lower(ViewOp op) {
  ParameterAttr parameter =
      tables.getLayout(op.getUnitAttr()).find(op.getParameter());
  auto type = cast<RankedTensorType>(op.getTensor().getType());
  int64_t offset =
      parameter.getOffset() * aten::getItemSize(type.getElementType());
  buffers[op.getTensor()] =
      tables.addView(op.getLoc(), buffers.lookup(op.getFull()), offset, type);
  return success();
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

/// Zeroes what no gradient is copied to.
void Lowering::zeroGaps(FlattenGradsOp op, Value flat, LayoutAttr layout) {
  Type elementType = plan::getTensorType(flat).getElementType();
  auto zero = [&](int64_t begin, int64_t end) {
    if (begin == end)
      return;
    Value gap = tables.addView(
        op.getLoc(), flat, begin * aten::getItemSize(elementType),
        RankedTensorType::get({end - begin}, elementType));
    plan::ZeroOp::create(builder, op.getLoc(), gap, role, Stream::Compute);
  };
  int64_t end = 0;
  for (auto [parameter, isPresent] :
       llvm::zip_equal(layout.getParameters(), op.getPresent())) {
    if (!isPresent)
      continue;
    zero(end, parameter.getOffset());
    end = parameter.getEnd();
  }
  zero(end, layout.getPadded());
}

/// Where a flat gradient is laid out at once: where it is reduced in place, or
/// where it waits for the next micro-batch; or in memory of its own.
Value Lowering::getFlatPlace(FlattenGradsOp op) {
  auto flatType = cast<RankedTensorType>(op.getFlat().getType());
  if (!op.getFlat().hasOneUse())
    return addTransient(op.getLoc(), flatType);
  OpOperand &use = *op.getFlat().use_begin();
  // Where the whole is reduced into a whole of the same type.
  if (auto reduce = dyn_cast<CollectiveOpInterface>(use.getOwner());
      reduce && reduce.getKind() == CollectiveKind::AllReduce &&
      !reduce.getCopy()) {
    if (getMemoryType(reduce->getResult(0).getType()) == flatType)
      return getReduced(reduce);
  }
  if (isa<func::ReturnOp>(use.getOwner()))
    if (auto state = func.getResultAttrOfType<StateAttr>(
            use.getOperandNumber(), FSDPDialect::getStateAttrName()))
      return tables.getState(op.getLoc(), state, flatType);
  return addTransient(op.getLoc(), flatType);
}

LogicalResult Lowering::lower(FlattenGradsOp op) {
  setPhase(aten::Phase::Backward);
  auto flatType = cast<RankedTensorType>(op.getFlat().getType());
  Type elementType = flatType.getElementType();
  Value flat = getFlatPlace(op);
  LayoutAttr layout = tables.getLayout(op.getUnitAttr());
  auto gradients = op.getGradients();
  auto next = gradients.begin();
  for (auto [parameter, isPresent] :
       llvm::zip_equal(layout.getParameters(), op.getPresent())) {
    if (!isPresent)
      continue;
    RankedTensorType type =
        parameter.getStrides().empty()
            ? RankedTensorType::get(parameter.getSizes(), elementType)
            : aten::getTensorType(parameter.getSizes(), elementType,
                                  parameter.getStrides());
    Value place = tables.addView(
        op.getLoc(), flat,
        parameter.getOffset() * aten::getItemSize(elementType), type);
    copy(op.getLoc(), buffers.lookup(*next++), place, Stream::Compute);
  }
  zeroGaps(op, flat, layout);
  buffers[op.getFlat()] = flat;
  return success();
}

/// In the place of the first operand.
LogicalResult Lowering::lower(AccumulateOp op) {
  setPhase(aten::Phase::Backward);
  Value sum = buffers.lookup(op.getSum());
  plan::AccumulateOp::create(builder, op.getLoc(), op.getUnit(),
                             buffers.lookup(op.getGradient()), sum, role,
                             Stream::Compute);
  buffers[op.getTotal()] = sum;
  return success();
}

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

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

//===----------------------------------------------------------------------===//
// All of it
//===----------------------------------------------------------------------===//

LogicalResult Lowering::run() {
  if (!func.getBody().hasOneBlock())
    return func.emitError("expected one block");
  for (BlockArgument argument : func.getArguments())
    if (failed(lowerArgument(argument)))
      return failure();
  for (Operation &op : func.getBody().front()) {
    LogicalResult result =
        TypeSwitch<Operation *, LogicalResult>(&op)
            .Case<aten::CallOp, LaunchOpInterface, AsyncWaitOp, AsyncReshardOp,
                  PieceOp, ViewOp, FlattenGradsOp, AccumulateOp, MeasureOp,
                  ClipFactorOp, ScaleOp, UpdateOpInterface, func::ReturnOp>(
                [&](auto op) { return lower(op); })
            .Default([](Operation *op) {
              return op->emitError("expected the scheduled level, found '")
                     << op->getName() << "'";
            });
    if (failed(result))
      return failure();
    if (!isa<AsyncWaitOp>(op))
      for (Value value : op.getResults())
        roles[value] = role;
  }
  return success();
}

LogicalResult fsdp::detail::lowerFunction(func::FuncOp func, Tables &tables,
                                          plan::ProgramOp program) {
  return Lowering(func, tables, program).run();
}
