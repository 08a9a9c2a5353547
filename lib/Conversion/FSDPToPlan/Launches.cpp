//===- Launches.cpp - Launches become commands ----------------------------===//
//
// A launch becomes a command on its stream, with memory of its own. What it
// waits for becomes events and orders of buffers: the launches before it on its
// stream, its operands, computations before it unless it runs ahead of them,
// and the ends of the memory that it comes after.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

#include "fsdp/Analysis/ReductionPlace.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;

//===----------------------------------------------------------------------===//
// What a launch waits for
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

/// What does not run ahead starts when all that is computed before it is done,
/// and all that is waited for: its memory may be what a reduction has read.
/// Later launches of a bucket start with the first one.
void Lowering::hold(Operation *launch) {
  Operation *before = launch->getPrevNode();
  if (runsAhead(launch) || (before && isInOneBucket(before, launch)))
    return;
  Block *block = builder.getInsertionBlock();
  for (Operation &op : llvm::reverse(
           llvm::make_range(block->begin(), builder.getInsertionPoint())))
    if (auto command = dyn_cast<plan::CommandOpInterface>(op);
        command && command.getStream() == Stream::Compute &&
        !isa<plan::RecordOp>(op))
      return waitFor(launch->getLoc(), command, getStream(launch));
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

//===----------------------------------------------------------------------===//
// Gathers and copies
//===----------------------------------------------------------------------===//

void Lowering::lowerGather(LaunchOpInterface op) {
  auto collective = cast<CollectiveOpInterface>(op.getOperation());
  IntegerAttr bucket = collective.getBucketAttr();
  FlatSymbolRefAttr communicator =
      tables.getCommunicator(collective.getGroupAxes(), Stream::Gather);
  if (!copiedGathers.contains(op.getFuture()))
    hold(op);
  if (collective.getCopy() && communicator)
    return gatherCopied(op, communicator);
  Location loc = op.getLoc();
  Value piece = buffers.lookup(op.getLaunched());
  RankedTensorType pieceType = plan::getTensorType(piece);
  RankedTensorType fullType = getMemoryType(op.getFuture().getType());
  if (pieceType.getElementType() != fullType.getElementType()) {
    Value cast = addTransient(loc, pieceType.clone(fullType.getElementType()));
    // Nothing stands between the collectives of a group.
    OpBuilder::InsertionGuard guard(builder);
    if (bucket)
      setInsertionPointBefore(bucket);
    launches[op.getFuture()] = copy(loc, piece, cast, Stream::Gather);
    addAfter(op.getAfter(), cast);
    piece = cast;
  }
  Value full = piece; // for a group of one rank
  if (communicator) {
    full = addTransient(loc, fullType);
    launches[op.getFuture()] = plan::AllGatherOp::create(
        builder, loc, communicator.getValue(), piece, full, op.getUnitAttr(),
        bucket, role, Stream::Gather);
  }
  addAfter(op.getAfter(), full);
  buffers[op.getFuture()] = full;
}

/// Where a copy belongs: a gradient into that of the unit; what the function
/// returns into its state, if nothing reads that any more; else into memory of
/// its own.
Value Lowering::getCopyTarget(LaunchOpInterface op) {
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
      buffers.lookup(op.getLaunched()) == reduced.lookup(op.getUnitAttr());
  if (isOnHost(type) && isGradient)
    return getState(op, op.getUnitAttr(), StateAttr::getGradientKind(),
                    cast<ShardType>(type));
  Value target = addTransient(loc, getMemoryType(type));
  if (isOnHost(type))
    plan::getRoot(target).setSpace(plan::Space::Pinned);
  return target;
}

void Lowering::lowerCopy(LaunchOpInterface op) {
  hold(op);
  Value target = getCopyTarget(op);
  launches[op.getFuture()] =
      copy(op.getLoc(), buffers.lookup(op.getLaunched()), target, Stream::Copy);
  addAfter(op.getAfter(), target);
  buffers[op.getFuture()] = target;
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

/// Where the reduced gradient of a unit belongs.
Value Lowering::getReduced(CollectiveOpInterface op) {
  Location loc = op.getLoc();
  FlatSymbolRefAttr unit = op.getUnitAttr();
  auto type = cast<ShardType>(getArrived(op->getResult(0).getType()));
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
Value Lowering::getSource(CollectiveOpInterface op, Value value) {
  RankedTensorType type = plan::getTensorType(value);
  Type via = op.getWireType();
  if (type.getElementType() == via)
    return value;
  Value source =
      addTransient(op->getLoc(), cast<RankedTensorType>(type.clone(via)));
  OpBuilder::InsertionGuard guard(builder);
  if (op.getBucketAttr())
    setInsertionPointBefore(op.getBucketAttr());
  copy(op->getLoc(), value, source, getSourceStream(op));
  return source;
}

/// Casts sums to the type of where they belong, after the last collective of a
/// group: nothing stands between them.
void Lowering::addReduction(CollectiveOpInterface op,
                            plan::CommandOpInterface reduction, Value sum,
                            Value target) {
  Value future = op->getResult(0);
  launches[future] = reduction;
  if (sum != target)
    sums.push_back({future, sum, target, reduction.getStream()});
  if (isInOneBucket(op, op->getNextNode()))
    return;
  for (const Sum &own : sums)
    launches[own.future] =
        copy(own.future.getLoc(), own.sum, own.target, own.stream);
  sums.clear();
}

/// The command that reduces: what is copied into one buffer for several units
/// is of none.
plan::CommandOpInterface Lowering::reduce(CollectiveOpInterface op,
                                          FlatSymbolRefAttr communicator,
                                          Value source, Value sum,
                                          FlatSymbolRefAttr unit,
                                          IntegerAttr group) {
  if (op.getKind() == CollectiveKind::ReduceScatter)
    return plan::ReduceScatterOp::create(
        builder, op.getLoc(), communicator.getValue(), op.getDivideAttr(),
        op.getWireType(), source, sum, unit, group, role, getStream(op));
  auto all = cast<AsyncAllReduceOp>(op.getOperation());
  return plan::AllReduceOp::create(
      builder, op.getLoc(), communicator.getValue(), op.getDivideAttr(),
      op.getWireType(), source, sum, unit, all.getRoleAttr(), all.getMax(),
      all.getFirst(), group, role, getStream(op));
}

/// In a group of one rank, a reduction is a copy.
void Lowering::lowerReduction(LaunchOpInterface launch) {
  auto op = cast<CollectiveOpInterface>(launch.getOperation());
  Location loc = op.getLoc();
  Value source = buffers.lookup(launch.getLaunched()), target;
  FlatSymbolRefAttr communicator =
      tables.getCommunicator(op.getGroupAxes(), launch.getStream());
  if (op.getUnitAttr()) {
    setPhase(aten::Phase::Backward);
    if (op.getCopy() && communicator)
      return reduceCopied(launch, communicator);
    target = getReduced(op);
  } else {
    auto all = cast<AsyncAllReduceOp>(op.getOperation());
    setPhase(all.getRole() == ReductionRole::Norm ? aten::Phase::Update
                                                  : aten::Phase::Forward);
    source = getScalar(source, plan::Space::Device);
    target = addTransient(loc, getMemoryType(launch.getFuture().getType()));
  }
  if (communicator) {
    hold(launch);
    source = getSource(op, source);
    Value sum = getSum(target, op.getWireType());
    addReduction(op,
                 reduce(op, communicator, source, sum, op.getUnitAttr(),
                        op.getBucketAttr()),
                 sum, target);
  } else {
    copy(loc, source, target, Stream::Compute);
  }
  buffers[launch.getFuture()] = target;
}

//===----------------------------------------------------------------------===//
// All of them
//===----------------------------------------------------------------------===//

LogicalResult Lowering::lower(LaunchOpInterface op) {
  if (aten::PhaseAttr phase = op.getPhaseAttr())
    setPhase(phase.getValue());
  if (op.isGather())
    lowerGather(op);
  else if (op.isCopy())
    lowerCopy(op);
  else
    lowerReduction(op);
  return success();
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
