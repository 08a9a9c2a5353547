//===- StepToProgram.cpp - A function becomes a program -------------------===//
//
// Calls, collectives with memory of their own, and updates.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

#include "fsdp/Analysis/ReductionPlace.h"
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

/// Where to put what the next collective of a group needs: nothing stands
/// between collectives of one group.
void Lowering::setInsertionPointBefore(IntegerAttr group) {
  Block *block = builder.getInsertionBlock();
  Block::iterator begin = block->end();
  while (begin != block->begin()) {
    auto command = dyn_cast<plan::CommandOpInterface>(*std::prev(begin));
    if (!command || command.getGroup() != uint64_t(group.getInt()))
      break;
    --begin;
  }
  builder.setInsertionPoint(block, begin);
}

/// An event after a command and the rest of its group, for which another stream
/// waits.
void Lowering::waitFor(Location loc, plan::CommandOpInterface command,
                       Stream waiter) {
  // Nothing stands between the collectives of a group.
  Operation *last = command;
  while (auto next =
             dyn_cast_or_null<plan::CommandOpInterface>(last->getNextNode())) {
    if (!next.getGroup() || next.getGroup() != command.getGroup())
      break;
    last = next;
  }
  auto record = dyn_cast_or_null<plan::RecordOp>(last->getNextNode());
  if (!record || record.getStream() != command.getStream()) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointAfter(last);
    record = plan::RecordOp::create(builder, loc,
                                    plan::EventType::get(builder.getContext()),
                                    command.getRole(), command.getStream());
  }
  plan::WaitOp::create(builder, loc, record.getEvent(), role, waiter);
}

/// What does not run ahead starts when all that is computed before it is done.
/// Later launches of a bucket start with the first one.
void Lowering::hold(Operation *launch) {
  Operation *before = launch->getPrevNode();
  if (runsAhead(launch) ||
      (getBucket(launch) && before && getBucket(before) == getBucket(launch)))
    return;
  Block *block = builder.getInsertionBlock();
  for (Operation &op : llvm::reverse(
           llvm::make_range(block->begin(), builder.getInsertionPoint())))
    if (auto command = dyn_cast<plan::CommandOpInterface>(op);
        command && command.getStream() == Stream::Compute &&
        !isa<plan::RecordOp, plan::WaitOp>(op))
      return waitFor(launch->getLoc(), command, getStream(launch));
}

LogicalResult Lowering::lower(AsyncUnshardOp op) {
  setPhase(op.getPhase());
  FlatSymbolRefAttr communicator =
      tables.getCommunicator(op.getGroupAxes(), Stream::Gather);
  if (!copiedGathers.contains(op.getFuture()))
    hold(op);
  if (op.getCopy() && communicator) {
    gatherCopied(op, communicator);
    return success();
  }
  Location loc = op.getLoc();
  Value piece = buffers.lookup(op.getShard());
  RankedTensorType pieceType = plan::getTensorType(piece);
  RankedTensorType fullType = getMemoryType(op.getFuture().getType());
  if (pieceType.getElementType() != fullType.getElementType()) {
    Value cast = addTransient(loc, pieceType.clone(fullType.getElementType()));
    // Nothing stands between the collectives of a group.
    OpBuilder::InsertionGuard guard(builder);
    if (op.getBucketAttr())
      setInsertionPointBefore(op.getBucketAttr());
    launches[op.getFuture()] = copy(loc, piece, cast, Stream::Gather);
    addAfter(op.getAfter(), cast);
    piece = cast;
  }
  Value full = piece; // for a group of one rank
  if (communicator) {
    full = addTransient(loc, fullType);
    launches[op.getFuture()] = plan::AllGatherOp::create(
        builder, loc, communicator.getValue(), piece, full, op.getUnitAttr(),
        op.getBucketAttr(), role, Stream::Gather);
  }
  addAfter(op.getAfter(), full);
  buffers[op.getFuture()] = full;
  return success();
}

/// Where a copy belongs: a gradient into that of the unit; what the function
/// returns into its state, if nothing reads that any more; else into memory of
/// its own.
Value Lowering::getCopyTarget(AsyncCopyOp op) {
  Type type = getArrived(op.getFuture().getType());
  Location loc = op.getLoc();
  auto wait = op.getFuture().hasOneUse()
                  ? dyn_cast<AsyncWaitOp>(*op.getFuture().user_begin())
                  : AsyncWaitOp();
  if (wait && wait.getValue().hasOneUse() &&
      isa<func::ReturnOp>(*wait.getValue().user_begin())) {
    auto state = func.getResultAttrOfType<StateAttr>(
        wait.getValue().use_begin()->getOperandNumber(),
        FSDPDialect::getStateAttrName());
    bool isRead = llvm::any_of(func.getArguments(), [&](BlockArgument old) {
      return func.getArgAttr(old.getArgNumber(),
                             FSDPDialect::getStateAttrName()) == state &&
             llvm::any_of(old.getUsers(), [&](Operation *user) {
               return op->isBeforeInBlock(user);
             });
    });
    if (state && !isRead)
      return tables.getState(loc, state, type);
  }
  bool isGradient =
      buffers.lookup(op.getSource()) == reduced.lookup(op.getUnitAttr());
  if (isOnHost(type) && isGradient)
    return getState(op, op.getUnitAttr(), StateAttr::getGradientKind(),
                    cast<ShardType>(type));
  Value target = addTransient(loc, getMemoryType(type));
  if (isOnHost(type))
    plan::getRoot(target).setSpace(plan::Space::Pinned);
  return target;
}

LogicalResult Lowering::lower(AsyncCopyOp op) {
  setPhase(op.getPhase());
  hold(op);
  Value target = getCopyTarget(op);
  launches[op.getFuture()] =
      copy(op.getLoc(), buffers.lookup(op.getSource()), target, Stream::Copy);
  addAfter(op.getAfter(), target);
  buffers[op.getFuture()] = target;
  return success();
}

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

/// Who writes the memory starts when what it is to come after has ended.
void Lowering::addAfter(ValueRange freed, Value memory) {
  // Of a group of one rank, there may be no memory of its own to wait with.
  plan::BufferOp target = plan::getRoot(memory);
  for (Value each : freed)
    if (plan::BufferOp before = plan::getRoot(buffers.lookup(each));
        before != target && !before.isPersistent() && !target.isPersistent() &&
        !llvm::is_contained(target.getAfter(), before.getBuffer()))
      target.getAfterMutable().append(before.getBuffer());
}

LogicalResult Lowering::lower(AsyncWaitOp op) {
  // What the first update waits for is of the update.
  Operation *next = op->getNextNode();
  while (isa_and_nonnull<AsyncWaitOp>(next))
    next = next->getNextNode();
  if (isa_and_nonnull<UpdateOpInterface, MeasureOp, ScaleOp>(next))
    setPhase(aten::Phase::Update);
  if (plan::CommandOpInterface launch = launches.lookup(op.getFuture()))
    waitFor(op.getLoc(), launch, Stream::Compute);
  if (auto found = copiedGathers.find(op.getFuture());
      found != copiedGathers.end() && !buffers.contains(op.getFuture()))
    copyOut(found->second);
  buffers[op.getValue()] = buffers.lookup(op.getFuture());
  if (auto found = roles.find(op.getFuture()); found != roles.end())
    roles[op.getValue()] = found->second;
  return success();
}

/// The memory ends with its last reader: only who waits for that needs to know.
LogicalResult Lowering::lower(AsyncReshardOp op) {
  buffers[op.getFreed()] = buffers.lookup(op.getFull());
  return success();
}

static SmallVector<StringRef> getAxes(ArrayAttr axes) {
  return llvm::map_to_vector(axes.getAsRange<StringAttr>(),
                             [](StringAttr axis) { return axis.getValue(); });
}

LogicalResult Lowering::lower(PieceOp op) {
  Location loc = op.getLoc();
  Value full = buffers.lookup(op.getFull());
  Value piece = addTransient(loc, getMemoryType(op.getPiece().getType()));
  if (FlatSymbolRefAttr communicator =
          tables.getCommunicator(getAxes(op.getAxes()), Stream::Gather))
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
  if (auto reduce = dyn_cast<AsyncAllReduceOp>(use.getOwner());
      reduce && !reduce.getCopy()) {
    auto type = cast<ShardType>(reduce.getFuture().getType().getValueType());
    if (getMemoryType(type) == flatType)
      return getReduced(reduce, op.getUnitAttr(), type);
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

Value Lowering::getReduced(CollectiveOpInterface op, FlatSymbolRefAttr unit,
                           ShardType type) {
  Location loc = op.getLoc();
  ReductionPlace to = getReductionPlace(op, tables.getUnit(unit));
  switch (to.kind) {
  case ReductionPlace::Kept:
    return tables.getState(loc, to.state, type);
  case ReductionPlace::Gradient:
    return getState(op, unit, StateAttr::getGradientKind(), type);
  case ReductionPlace::ToHost: {
    Value &place = reduced[unit];
    return place = place ? place : addTransient(loc, getMemoryType(type));
  }
  case ReductionPlace::Own:
    return addTransient(loc, getMemoryType(type));
  }
  llvm_unreachable("a kind of place");
}

/// What is reduced: of the type of the sums.
Value Lowering::getSource(Operation *op, Value value, Type via, Stream stream) {
  RankedTensorType type = plan::getTensorType(value);
  if (type.getElementType() == via)
    return value;
  Value source =
      addTransient(op->getLoc(), cast<RankedTensorType>(type.clone(via)));
  OpBuilder::InsertionGuard guard(builder);
  if (auto group = op->getAttrOfType<IntegerAttr>("bucket"))
    setInsertionPointBefore(group);
  copy(op->getLoc(), value, source, stream);
  return source;
}

/// Casts sums to the type of where they belong, after the last collective of a
/// group: nothing stands between them.
template <typename Op>
void Lowering::addReduction(Op op, plan::CommandOpInterface reduction,
                            Value sum, Value target) {
  launches[op.getFuture()] = reduction;
  if (sum != target)
    sums.push_back({op.getFuture(), sum, target, reduction.getStream()});
  auto next = dyn_cast_or_null<Op>(op->getNextNode());
  if (op.getBucketAttr() && next && next.getBucketAttr() == op.getBucketAttr())
    return;
  for (const Sum &own : sums)
    launches[own.future] =
        copy(own.future.getLoc(), own.sum, own.target, own.stream);
  sums.clear();
}

LogicalResult Lowering::lower(AsyncReduceScatterOp op) {
  setPhase(aten::Phase::Backward);
  auto type = cast<ShardType>(op.getFuture().getType().getValueType());
  FlatSymbolRefAttr communicator =
      tables.getCommunicator(getAxes(op.getAxes()), Stream::Reduce);
  if (op.getCopy() && communicator) {
    reduceCopied<plan::ReduceScatterOp>(op, communicator, type.getShards(),
                                        Stream::Reduce);
    return success();
  }
  Value source = buffers.lookup(op.getFlat());
  Value target = getReduced(op, op.getUnitAttr(), type);
  if (communicator) {
    hold(op);
    source = getSource(op, source, op.getVia(), Stream::Compute);
    Value sum = getSum(target, op.getVia());
    auto reduction = plan::ReduceScatterOp::create(
        builder, op.getLoc(), communicator.getValue(), op.getDivide(),
        op.getVia(), source, sum, op.getUnitAttr(), op.getBucketAttr(), role,
        Stream::Reduce);
    addReduction(op, reduction, sum, target);
  } else {
    copy(op.getLoc(), source, target, Stream::Compute);
  }
  buffers[op.getFuture()] = target;
  return success();
}

LogicalResult Lowering::lower(AsyncAllReduceOp op) {
  Location loc = op.getLoc();
  Type type = op.getFuture().getType().getValueType();
  Value source = buffers.lookup(op.getInput()), target;
  FlatSymbolRefAttr communicator =
      tables.getCommunicator(getAxes(op.getAxes()), Stream::AllReduce);
  if (FlatSymbolRefAttr unit = op.getUnitAttr()) {
    setPhase(aten::Phase::Backward);
    if (op.getCopy() && communicator) {
      reduceCopied<plan::AllReduceOp>(op, communicator, 1, Stream::AllReduce);
      return success();
    }
    target = getReduced(op, unit, cast<ShardType>(type));
  } else {
    setPhase(op.getRole() == ReductionRole::Norm ? aten::Phase::Update
                                                 : aten::Phase::Forward);
    source = getScalar(source, plan::Space::Device);
    target = addTransient(loc, getMemoryType(type));
  }
  if (communicator) {
    hold(op);
    source = getSource(op, source, op.getVia(),
                       getSourceStream(op.getInput(), Stream::AllReduce));
    Value sum = getSum(target, op.getVia());
    auto reduction = plan::AllReduceOp::create(
        builder, loc, communicator.getValue(), op.getDivide(), op.getVia(),
        source, sum, op.getUnitAttr(), op.getRoleAttr(), op.getMax(),
        op.getFirst(), op.getBucketAttr(), role, Stream::AllReduce);
    addReduction(op, reduction, sum, target);
  } else {
    copy(loc, source, target, Stream::Compute);
  }
  buffers[op.getFuture()] = target;
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
            .Case<aten::CallOp, AsyncUnshardOp, AsyncCopyOp, AsyncReshardOp,
                  PieceOp, ViewOp, FlattenGradsOp, AccumulateOp,
                  AsyncReduceScatterOp, AsyncAllReduceOp, MeasureOp,
                  ClipFactorOp, ScaleOp, UpdateOpInterface, AsyncWaitOp,
                  func::ReturnOp>([&](auto op) { return lower(op); })
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
