//===- StepToProgram.cpp - A function becomes a program -------------------===//
//
// Every value of the function gets a buffer, every operation its commands, in
// the order of the block.
//
//===----------------------------------------------------------------------===//

#include "StepToProgram.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace fsdp;
using fsdp::detail::getMemoryType;
using fsdp::detail::Tables;

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

namespace {
/// Goes through one function.
class Lowering {
public:
  Lowering(func::FuncOp func, Tables &tables, plan::ProgramOp program)
      : func(func), tables(tables), isInit(program.getInit()),
        builder(OpBuilder::atBlockEnd(&program.getBody().front())),
        role(isInit ? plan::Role::Init : plan::Role::Forward) {}

  LogicalResult run();

private:
  LogicalResult lowerArgument(BlockArgument argument);
  LogicalResult lower(aten::CallOp op);
  LogicalResult lower(AsyncUnshardOp op);
  LogicalResult lower(AsyncWaitOp op);
  LogicalResult lower(AsyncReshardOp op);
  LogicalResult lower(PieceOp op);
  LogicalResult lower(ViewOp op);
  LogicalResult lower(FlattenGradsOp op);
  LogicalResult lower(AsyncReduceScatterOp op);
  LogicalResult lower(AsyncAllReduceOp op);
  LogicalResult lower(AdamWOp op);
  LogicalResult lower(SGDOp op);
  LogicalResult lower(func::ReturnOp op);

  /// What is gathered as one and copied out at the first wait.
  struct CopiedGather {
    SmallVector<AsyncUnshardOp> launches;
    Value whole;
    plan::Role role;
  };

  void setPhase(aten::Phase phase);
  void setInsertionPointBefore(IntegerAttr group);
  void addAfter(AsyncUnshardOp op, Value target);
  void gatherCopied(AsyncUnshardOp first, FlatSymbolRefAttr communicator);
  void copyOut(const CopiedGather &gather);
  template <typename Plan, typename Op>
  void reduceCopied(Op first, FlatSymbolRefAttr communicator, int64_t rows,
                    Stream stream);
  void concatenate(Location loc, ArrayRef<Value> sources, int64_t rows,
                   Value target, Stream stream);
  plan::LaunchOp split(Location loc, Value source, int64_t rows,
                       ArrayRef<Value> targets, Stream stream);
  Value asRows(Value vector, int64_t rows);
  void zeroGaps(FlattenGradsOp op, Value flat, LayoutAttr layout);
  FailureOr<Value> getDestination(unsigned index, Value value);

  void copy(Location loc, Value source, Value target, Stream stream) {
    if (source != target)
      plan::CopyOp::create(builder, loc, source, target, role, stream);
  }
  /// The program, as the owner of its inputs, outputs and loss.
  FlatSymbolRefAttr getOwner() { return FlatSymbolRefAttr::get(func); }
  Value addTransient(Location loc, RankedTensorType type) {
    return tables.addBuffer(loc, plan::BufferRole::Transient, type);
  }
  plan::BufferOp getState(Operation *op, FlatSymbolRefAttr unit, StringRef kind,
                          ShardType type) {
    return tables.getState(
        op->getLoc(),
        StateAttr::get(builder.getContext(), unit, builder.getStringAttr(kind)),
        type);
  }

  func::FuncOp func;
  Tables &tables;
  bool isInit;
  OpBuilder builder;
  /// That of the latest operation with a phase: some have none.
  plan::Role role;
  /// Where each value is, and the role of the command that puts it there.
  DenseMap<Value, Value> buffers;
  DenseMap<Value, plan::Role> roles;
  /// The commands of reductions, by their futures.
  DenseMap<Value, plan::CommandOpInterface> reductions;
  /// By the futures.
  DenseMap<Value, CopiedGather> copiedGathers;
};
} // namespace

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
// Arguments
//===----------------------------------------------------------------------===//

LogicalResult Lowering::lowerArgument(BlockArgument argument) {
  unsigned index = argument.getArgNumber();
  Location loc = argument.getLoc();
  auto get = [&](StringRef name) { return func.getArgAttr(index, name); };
  if (get(FSDPDialect::getHyperAttrName()))
    return success(); // slots of the caller, not memory of the plan
  if (auto state =
          dyn_cast_or_null<StateAttr>(get(FSDPDialect::getStateAttrName()))) {
    buffers[argument] =
        tables.getState(loc, state, cast<ShardType>(argument.getType()));
    return success();
  }
  if (auto result = dyn_cast_or_null<IntegerAttr>(
          get(FSDPDialect::getResultAttrName()))) {
    size_t number = result.getInt();
    if (number >= tables.initResults.size())
      return func.emitError("argument ")
             << index << ": expected one of the " << tables.initResults.size()
             << " results of 'init', found " << number;
    buffers[argument] = tables.initResults[number];
    return success();
  }

  auto type = dyn_cast<RankedTensorType>(argument.getType());
  struct Kind {
    StringRef attribute;
    plan::BufferRole role;
  };
  const Kind kinds[] = {
      {aten::ATenDialect::getInputAttrName(), plan::BufferRole::Input},
      {aten::ATenDialect::getBufferAttrName(), plan::BufferRole::ModelBuffer},
      {aten::ATenDialect::getConstantAttrName(), plan::BufferRole::Constant}};
  for (const Kind &kind : kinds) {
    Attribute name = get(kind.attribute);
    if (!name || !type)
      continue;
    // Inputs are the program's own; of constants, the name says little.
    Attribute content = get(aten::ATenDialect::getValueAttrName());
    Attribute key = name;
    if (kind.role == plan::BufferRole::Input)
      key = builder.getArrayAttr({getOwner(), name});
    else if (kind.role == plan::BufferRole::Constant)
      key = builder.getArrayAttr({name, content});
    Value &value = tables.getNamed(kind.attribute, key);
    if (!value) {
      plan::BufferOp buffer =
          tables.addBuffer(loc, kind.role, plan::dropOffset(type));
      if (kind.role == plan::BufferRole::Input) {
        buffer.setOwnerAttr(getOwner());
        buffer.setIndexAttr(cast<IntegerAttr>(name));
      }
      if (Attribute known = get(aten::ATenDialect::getInputNameAttrName()))
        buffer.setNameAttr(cast<StringAttr>(known));
      if (kind.role == plan::BufferRole::ModelBuffer)
        buffer.setNameAttr(cast<StringAttr>(name));
      if (content)
        buffer.setValueAttr(cast<ElementsAttr>(content));
      value = buffer;
    }
    auto known = value.getDefiningOp<plan::BufferOp>();
    if (known.getTensorType() != plan::dropOffset(type) ||
        known.getValueAttr() != content)
      return func.emitError("argument ")
             << index << ": expected " << name
             << " to have the same type and content in all programs, found "
             << type << " beside " << known.getTensorType();
    buffers[argument] = value;
    return success();
  }
  return func.emitError("argument ")
         << index << ": expected a state, an input, a buffer, a constant or a "
         << "result of 'init', found a value of type " << argument.getType();
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
    inputs.push_back(buffer);
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
    auto gather = dyn_cast<plan::AllGatherOp>(*std::prev(begin));
    if (!gather || gather.getGroupAttr() != group)
      break;
    --begin;
  }
  builder.setInsertionPoint(block, begin);
}

LogicalResult Lowering::lower(AsyncUnshardOp op) {
  setPhase(op.getPhase());
  FlatSymbolRefAttr communicator = tables.getCommunicator(op.getGroupAxes());
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
    copy(loc, piece, cast, Stream::Gather);
    piece = cast;
  }
  Value full = piece; // for a group of one rank
  if (communicator) {
    full = addTransient(loc, fullType);
    plan::AllGatherOp::create(builder, loc, communicator.getValue(), piece,
                              full, op.getUnitAttr(), op.getBucketAttr(), role,
                              Stream::Gather);
  }
  addAfter(op, full);
  buffers[op.getFuture()] = full;
  return success();
}

/// The gather starts when what it is to come after has ended.
void Lowering::addAfter(AsyncUnshardOp op, Value full) {
  // Of a group of one rank, there may be no memory of its own to wait with.
  plan::BufferOp target = plan::getRoot(full);
  for (Value freed : op.getAfter())
    if (plan::BufferOp before = plan::getRoot(buffers.lookup(freed));
        before != target && !before.isPersistent() && !target.isPersistent() &&
        !llvm::is_contained(target.getAfter(), before.getBuffer()))
      target.getAfterMutable().append(before.getBuffer());
}

/// True if something else is computed between the wait and the first use.
static bool isAheadOfUse(AsyncWaitOp op) {
  Operation *next = op->getNextNode();
  while (isa<AsyncWaitOp>(next))
    next = next->getNextNode();
  return !llvm::is_contained(next->getOperands(), op.getValue());
}

/// The consumer waits for who writes the buffer. Only where a reduction is
/// waited for earlier, by choice of the schedule, is there something to do.
LogicalResult Lowering::lower(AsyncWaitOp op) {
  if (auto found = copiedGathers.find(op.getFuture());
      found != copiedGathers.end() && !buffers.contains(op.getFuture()))
    copyOut(found->second);
  buffers[op.getValue()] = buffers.lookup(op.getFuture());
  if (auto found = roles.find(op.getFuture()); found != roles.end())
    roles[op.getValue()] = found->second;
  plan::CommandOpInterface reduction = reductions.lookup(op.getFuture());
  if (!reduction || !isAheadOfUse(op))
    return success();
  // Nothing stands between the collectives of a group.
  Operation *last = reduction;
  while (auto next =
             dyn_cast_or_null<plan::CommandOpInterface>(last->getNextNode())) {
    if (!next.getGroup() || next.getGroup() != reduction.getGroup())
      break;
    last = next;
  }
  auto record = dyn_cast_or_null<plan::RecordOp>(last->getNextNode());
  if (!record) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointAfter(last);
    record = plan::RecordOp::create(builder, op.getLoc(),
                                    plan::EventType::get(builder.getContext()),
                                    reduction.getRole(), reduction.getStream());
  }
  plan::WaitOp::create(builder, op.getLoc(), record.getEvent(), role,
                       Stream::Compute);
  return success();
}

//===----------------------------------------------------------------------===//
// Copied buckets
//===----------------------------------------------------------------------===//

/// The launches that are one collective over one buffer, from the first on.
template <typename Op> static SmallVector<Op> getCopiedBucket(Op first) {
  SmallVector<Op> bucket = {first};
  while (IntegerAttr number = first.getBucketAttr()) {
    auto next = dyn_cast_or_null<Op>(bucket.back()->getNextNode());
    if (!next || !next.getCopy() || next.getBucketAttr() != number)
      break;
    bucket.push_back(next);
  }
  return bucket;
}

/// A vector as a matrix of so many rows.
Value Lowering::asRows(Value vector, int64_t rows) {
  RankedTensorType type = plan::getTensorType(vector);
  if (rows == 1)
    return vector;
  return tables.addView(
      vector.getLoc(), vector, 0,
      type.clone(ArrayRef<int64_t>{rows, type.getNumElements() / rows}));
}

/// Row by row, one source after the other.
void Lowering::concatenate(Location loc, ArrayRef<Value> sources, int64_t rows,
                           Value target, Stream stream) {
  MLIRContext *context = builder.getContext();
  SmallVector<Attribute> places(sources.size(),
                                aten::OperandAttr::get(context));
  auto args = aten::ArgsAttr::get(context,
                                  {aten::ArgsAttr::getList(context, places),
                                   builder.getI64IntegerAttr(rows != 1)},
                                  ArrayRef<StringAttr>());
  auto inputs = llvm::map_to_vector(
      sources, [&](Value source) { return asRows(source, rows); });
  plan::LaunchOp::create(
      builder, loc, aten::OpNameAttr::get(context, "cat.out"), args, inputs,
      asRows(target, rows), DenseBoolArrayAttr(), StringAttr(), role, stream);
}

/// The opposite.
plan::LaunchOp Lowering::split(Location loc, Value source, int64_t rows,
                               ArrayRef<Value> targets, Stream stream) {
  MLIRContext *context = builder.getContext();
  auto lengths = llvm::map_to_vector(targets, [&](Value target) {
    return plan::getTensorType(target).getNumElements() / rows;
  });
  auto args = aten::ArgsAttr::get(context,
                                  {aten::OperandAttr::get(context),
                                   builder.getDenseI64ArrayAttr(lengths),
                                   builder.getI64IntegerAttr(rows != 1)},
                                  ArrayRef<StringAttr>());
  auto outputs = llvm::map_to_vector(
      targets, [&](Value target) { return asRows(target, rows); });
  return plan::LaunchOp::create(
      builder, loc, aten::OpNameAttr::get(context, "split_with_sizes_copy.out"),
      args, asRows(source, rows), outputs, DenseBoolArrayAttr(), StringAttr(),
      role, stream);
}

void Lowering::gatherCopied(AsyncUnshardOp first,
                            FlatSymbolRefAttr communicator) {
  if (copiedGathers.contains(first.getFuture()))
    return;
  Location loc = first.getLoc();
  CopiedGather gather{getCopiedBucket(first), {}, role};
  SmallVector<Value> pieces;
  int64_t length = 0;
  for (AsyncUnshardOp op : gather.launches) {
    pieces.push_back(buffers.lookup(op.getShard()));
    length += plan::getTensorType(pieces.back()).getNumElements();
  }
  ShardType shard = first.getShard().getType();
  Type type = getMemoryType(first.getFuture().getType()).getElementType();
  Value source = addTransient(loc, RankedTensorType::get({length}, type));
  gather.whole = addTransient(
      loc, RankedTensorType::get({length * shard.getShards()}, type));
  concatenate(loc, pieces, 1, source, Stream::Gather);
  plan::AllGatherOp::create(
      builder, loc, communicator.getValue(), source, gather.whole,
      gather.launches.size() == 1 ? first.getUnitAttr() : FlatSymbolRefAttr(),
      IntegerAttr(), role, Stream::Gather);
  for (AsyncUnshardOp op : gather.launches) {
    addAfter(op, gather.whole);
    copiedGathers[op.getFuture()] = gather;
  }
}

/// Each unit gets memory of its own.
void Lowering::copyOut(const CopiedGather &gather) {
  SmallVector<Value> units;
  for (AsyncUnshardOp op : gather.launches)
    units.push_back(buffers[op.getFuture()] = addTransient(
                        op.getLoc(), getMemoryType(op.getFuture().getType())));
  AsyncUnshardOp first = gather.launches.front();
  plan::Role current = std::exchange(role, gather.role);
  split(first.getLoc(), gather.whole, first.getShard().getType().getShards(),
        units, Stream::Compute);
  role = current;
}

/// The pieces of one rank are a row: what a reduction scatters is interleaved.
/// The sum for a unit alone goes where it belongs.
template <typename Plan, typename Op>
void Lowering::reduceCopied(Op first, FlatSymbolRefAttr communicator,
                            int64_t rows, Stream stream) {
  if (buffers.contains(first.getFuture()))
    return;
  Location loc = first.getLoc();
  SmallVector<Op> bucket = getCopiedBucket(first);
  SmallVector<Value> sources, targets;
  int64_t count = 0;
  for (Op op : bucket) {
    auto type = cast<ShardType>(op.getFuture().getType().getValueType());
    sources.push_back(buffers.lookup(op->getOperand(0)));
    targets.push_back(
        getState(op, op.getUnitAttr(), StateAttr::getGradientKind(), type));
    buffers[op.getFuture()] = targets.back();
    count += plan::getTensorType(sources.back()).getNumElements();
  }
  auto getVector = [&](int64_t size, Value like) {
    return RankedTensorType::get({size},
                                 plan::getTensorType(like).getElementType());
  };
  bool isAlone = bucket.size() == 1;
  Value whole = addTransient(loc, getVector(count, sources.front()));
  Value sums =
      isAlone ? targets.front()
              : addTransient(loc, getVector(count / rows, targets.front()));
  concatenate(loc, sources, rows, whole, Stream::Compute);
  plan::CommandOpInterface last = Plan::create(
      builder, loc, communicator.getValue(), first.getDivide(), first.getVia(),
      whole, sums, isAlone ? first.getUnitAttr() : FlatSymbolRefAttr(),
      IntegerAttr(), role, stream);
  if (!isAlone)
    last = split(loc, sums, 1, targets, stream);
  for (Op op : bucket)
    reductions[op.getFuture()] = last;
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
          tables.getCommunicator(getAxes(op.getAxes())))
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

LogicalResult Lowering::lower(FlattenGradsOp op) {
  setPhase(aten::Phase::Backward);
  auto flatType = cast<RankedTensorType>(op.getFlat().getType());
  Type elementType = flatType.getElementType();

  // Where the whole is reduced into a whole of the same type, it is laid out
  // at once where the reduced gradient lies, and reduced in place.
  Value flat;
  if (op.getFlat().hasOneUse())
    if (auto reduce =
            dyn_cast<AsyncAllReduceOp>(*op.getFlat().getUsers().begin());
        reduce && !reduce.getCopy()) {
      auto type = cast<ShardType>(reduce.getFuture().getType().getValueType());
      if (getMemoryType(type) == flatType)
        flat = getState(reduce, op.getUnitAttr(), StateAttr::getGradientKind(),
                        type);
    }
  if (!flat)
    flat = addTransient(op.getLoc(), flatType);

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

LogicalResult Lowering::lower(AsyncReduceScatterOp op) {
  setPhase(aten::Phase::Backward);
  auto type = cast<ShardType>(op.getFuture().getType().getValueType());
  FlatSymbolRefAttr communicator =
      tables.getCommunicator(getAxes(op.getAxes()));
  if (op.getCopy() && communicator) {
    reduceCopied<plan::ReduceScatterOp>(op, communicator, type.getShards(),
                                        Stream::Reduce);
    return success();
  }
  Value source = buffers.lookup(op.getFlat());
  Value target =
      getState(op, op.getUnitAttr(), StateAttr::getGradientKind(), type);
  if (communicator)
    reductions[op.getFuture()] = plan::ReduceScatterOp::create(
        builder, op.getLoc(), communicator.getValue(), op.getDivide(),
        op.getVia(), source, target, op.getUnitAttr(), op.getBucketAttr(), role,
        Stream::Reduce);
  else
    copy(op.getLoc(), source, target, Stream::Compute);
  buffers[op.getFuture()] = target;
  return success();
}

LogicalResult Lowering::lower(AsyncAllReduceOp op) {
  Location loc = op.getLoc();
  Type type = op.getFuture().getType().getValueType();
  Value source = buffers.lookup(op.getInput()), target;
  FlatSymbolRefAttr communicator =
      tables.getCommunicator(getAxes(op.getAxes()));
  if (FlatSymbolRefAttr unit = op.getUnitAttr()) {
    setPhase(aten::Phase::Backward);
    if (op.getCopy() && communicator) {
      reduceCopied<plan::AllReduceOp>(op, communicator, 1, Stream::AllReduce);
      return success();
    }
    target =
        getState(op, unit, StateAttr::getGradientKind(), cast<ShardType>(type));
  } else {
    setPhase(aten::Phase::Forward);
    target = addTransient(loc, getMemoryType(type));
  }
  if (communicator)
    reductions[op.getFuture()] = plan::AllReduceOp::create(
        builder, loc, communicator.getValue(), op.getDivide(), op.getVia(),
        source, target, op.getUnitAttr(), op.getBucketAttr(), role,
        Stream::AllReduce);
  else
    copy(loc, source, target, Stream::Compute);
  buffers[op.getFuture()] = target;
  return success();
}

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

LogicalResult Lowering::lower(AdamWOp op) {
  setPhase(aten::Phase::Update);
  Value parameter = buffers.lookup(op.getParameter());
  Value expAvg = buffers.lookup(op.getExpAvg());
  Value expAvgSq = buffers.lookup(op.getExpAvgSq());
  plan::AdamWOp::create(builder, op.getLoc(), op.getUnit(), op.getIntervals(),
                        parameter, buffers.lookup(op.getGradient()), expAvg,
                        expAvgSq, role, Stream::Compute);
  buffers[op.getNewParameter()] = parameter;
  buffers[op.getNewExpAvg()] = expAvg;
  buffers[op.getNewExpAvgSq()] = expAvgSq;
  return success();
}

LogicalResult Lowering::lower(SGDOp op) {
  setPhase(aten::Phase::Update);
  Value parameter = buffers.lookup(op.getParameter());
  Value momentum;
  if (op.getMomentum())
    momentum = buffers.lookup(op.getMomentum());
  plan::SGDOp::create(builder, op.getLoc(), op.getUnit(), op.getIntervals(),
                      parameter, buffers.lookup(op.getGradient()), momentum,
                      role, Stream::Compute);
  buffers[op.getNewParameter()] = parameter;
  if (op.getNewMomentum())
    buffers[op.getNewMomentum()] = momentum;
  return success();
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

/// Where result `index` of the function belongs.
FailureOr<Value> Lowering::getDestination(unsigned index, Value value) {
  auto get = [&](StringRef name) { return func.getResultAttr(index, name); };
  Location loc = func.getLoc();
  if (auto state =
          dyn_cast_or_null<StateAttr>(get(FSDPDialect::getStateAttrName())))
    return Value(tables.getState(loc, state, cast<ShardType>(value.getType())));
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type)
    return func.emitError("result ")
           << index << ": expected a tensor, found " << value.getType();
  type = plan::dropOffset(type);
  if (isInit) {
    tables.initResults.push_back(
        tables.addBuffer(loc, plan::BufferRole::Result, type));
    return tables.initResults.back();
  }
  if (get(aten::ATenDialect::getLossAttrName())) {
    plan::BufferOp buffer = tables.addBuffer(loc, plan::BufferRole::Loss, type);
    buffer.setOwnerAttr(getOwner());
    return Value(buffer);
  }
  if (auto number = dyn_cast_or_null<IntegerAttr>(
          get(aten::ATenDialect::getOutputAttrName()))) {
    plan::BufferOp buffer =
        tables.addBuffer(loc, plan::BufferRole::Output, type);
    buffer.setOwnerAttr(getOwner());
    buffer.setIndexAttr(number);
    return Value(buffer);
  }
  if (Attribute name = get(aten::ATenDialect::getBufferMutationAttrName()))
    if (Value buffer =
            tables.getNamed(aten::ATenDialect::getBufferAttrName(), name))
      return buffer;
  return func.emitError("result ")
         << index << ": expected a state, the loss, an output or the content "
         << "of a buffer";
}

/// The tensor with one element where `type` repeats elements: what can be
/// written.
static RankedTensorType dropRepeats(RankedTensorType type) {
  SmallVector<int64_t> sizes(type.getShape()), strides = aten::getStrides(type);
  for (auto [size, stride] : llvm::zip_equal(sizes, strides))
    if (stride == 0)
      size = 1;
  return aten::getTensorType(sizes, type.getElementType(), strides);
}

/// All results are taken at once: what one of them overwrites is the content of
/// another, if that is put aside first.
LogicalResult Lowering::lower(func::ReturnOp op) {
  SmallVector<Value> sources, targets;
  DenseSet<Operation *> replaced;
  for (auto [index, value] : llvm::enumerate(op.getOperands())) {
    Value source = sources.emplace_back(buffers.lookup(value));
    FailureOr<Value> target = getDestination(index, value);
    if (failed(target))
      return failure();
    targets.push_back(*target);
    if (source != *target)
      replaced.insert(plan::getRoot(*target));
  }
  auto setRole = [&](Value value) {
    if (!isInit)
      role = roles.lookup_or(value, plan::Role::Forward);
  };
  auto see = [&](Value value, RankedTensorType type) {
    return type == plan::getTensorType(value)
               ? value
               : tables.addView(value.getLoc(), value, 0, type);
  };
  for (auto [value, source, target] :
       llvm::zip_equal(op.getOperands(), sources, targets)) {
    if (source == target || !replaced.contains(plan::getRoot(source)))
      continue;
    setRole(value);
    RankedTensorType type = plan::getTensorType(source);
    Value aside = addTransient(value.getLoc(), dropRepeats(type));
    copy(value.getLoc(), see(source, dropRepeats(type)), aside,
         Stream::Compute);
    source = see(aside, type);
  }
  for (auto [value, source, target] :
       llvm::zip_equal(op.getOperands(), sources, targets)) {
    if (source == target)
      continue;
    setRole(value);
    RankedTensorType type = plan::getTensorType(target);
    RankedTensorType distinct = dropRepeats(type);
    if (distinct != type)
      source = see(source, distinct);
    copy(value.getLoc(), source, see(target, distinct), Stream::Compute);
  }
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
            .Case<aten::CallOp, AsyncUnshardOp, AsyncReshardOp, PieceOp, ViewOp,
                  FlattenGradsOp, AsyncReduceScatterOp, AsyncAllReduceOp,
                  AdamWOp, SGDOp, AsyncWaitOp, func::ReturnOp>(
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
