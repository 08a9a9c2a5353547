//===- CopiedBuckets.cpp - Collectives over one buffer --------------------===//
//
// What is sent is copied into it, what is received out of it.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;

/// The launches that are one collective over one buffer, from the first on.
SmallVector<LaunchOpInterface>
Lowering::getCopiedBucket(LaunchOpInterface first) {
  SmallVector<LaunchOpInterface> bucket = {first};
  for (Operation *next = first->getNextNode();
       isInOneBucket(first, next) &&
       cast<CollectiveOpInterface>(next).getCopy();
       next = next->getNextNode())
    bucket.push_back(cast<LaunchOpInterface>(next));
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

/// The same to vectors of another type, which that operator does not take.
plan::CommandOpInterface Lowering::castOut(Location loc, Value source,
                                           ArrayRef<Value> targets,
                                           Stream stream) {
  Type element = plan::getTensorType(source).getElementType();
  plan::CommandOpInterface last;
  int64_t offset = 0;
  for (Value target : targets) {
    auto type =
        cast<RankedTensorType>(plan::getTensorType(target).clone(element));
    Value part = tables.addView(loc, source, offset, type);
    last = plan::CopyOp::create(builder, loc, part, target, role, stream);
    offset += type.getNumElements() * aten::getItemSize(element);
  }
  return last;
}

/// Into how many pieces the unit of a gather is split.
static int64_t getNumPieces(LaunchOpInterface gather) {
  return cast<ShardType>(getArrived(gather.getLaunched().getType()))
      .getShards();
}

void Lowering::gatherCopied(LaunchOpInterface first,
                            FlatSymbolRefAttr communicator) {
  if (copiedGathers.contains(first.getFuture()))
    return;
  Location loc = first.getLoc();
  CopiedGather gather{getCopiedBucket(first), {}, role};
  SmallVector<Value> pieces;
  int64_t length = 0;
  for (LaunchOpInterface op : gather.launches) {
    pieces.push_back(buffers.lookup(op.getLaunched()));
    length += plan::getTensorType(pieces.back()).getNumElements();
  }
  int64_t ranks = getNumPieces(first);
  Type type = getMemoryType(first.getFuture().getType()).getElementType();
  Value source = addTransient(loc, RankedTensorType::get({length}, type));
  gather.whole =
      addTransient(loc, RankedTensorType::get({length * ranks}, type));
  concatenate(loc, pieces, 1, source, Stream::Gather);
  auto launch = plan::AllGatherOp::create(
      builder, loc, communicator.getValue(), source, gather.whole,
      gather.launches.size() == 1 ? first.getUnitAttr() : FlatSymbolRefAttr(),
      IntegerAttr(), role, Stream::Gather);
  for (LaunchOpInterface op : gather.launches) {
    addAfter(op.getAfter(), source);
    addAfter(op.getAfter(), gather.whole);
    copiedGathers[op.getFuture()] = gather;
    launches[op.getFuture()] = launch;
  }
}

/// Each unit gets memory of its own.
void Lowering::copyOut(const CopiedGather &gather) {
  SmallVector<Value> units;
  for (LaunchOpInterface op : gather.launches)
    units.push_back(buffers[op.getFuture()] = addTransient(
                        op.getLoc(), getMemoryType(op.getFuture().getType())));
  LaunchOpInterface first = gather.launches.front();
  plan::Role current = std::exchange(role, gather.role);
  split(first.getLoc(), gather.whole, getNumPieces(first), units,
        Stream::Compute);
  role = current;
}

/// The pieces of one rank are a row: what a reduction scatters is interleaved.
/// The sum for a unit alone goes where it belongs.
void Lowering::reduceCopied(LaunchOpInterface launch,
                            FlatSymbolRefAttr communicator) {
  if (buffers.contains(launch.getFuture()))
    return;
  Location loc = launch.getLoc();
  auto first = cast<CollectiveOpInterface>(launch.getOperation());
  Stream stream = launch.getStream();
  Type via = first.getWireType();
  SmallVector<LaunchOpInterface> bucket = getCopiedBucket(launch);
  SmallVector<Value> sources, targets;
  int64_t count = 0;
  for (LaunchOpInterface op : bucket) {
    sources.push_back(buffers.lookup(op.getLaunched()));
    targets.push_back(
        getReduced(cast<CollectiveOpInterface>(op.getOperation())));
    buffers[op.getFuture()] = targets.back();
    count += plan::getTensorType(sources.back()).getNumElements();
  }
  int64_t rows = 1;
  if (first.getKind() == CollectiveKind::ReduceScatter)
    rows = cast<ShardType>(launch.getFuture().getType().getValueType())
               .getShards();
  auto addVector = [&](int64_t size) {
    return addTransient(loc, RankedTensorType::get({size}, via));
  };
  bool isAlone = bucket.size() == 1;
  Value whole = addVector(count);
  Value sums = isAlone ? getSum(targets.front(), via) : addVector(count / rows);
  hold(launch);
  concatenate(loc, sources, rows, whole, getSourceStream(launch));
  plan::CommandOpInterface last = reduce(
      first, communicator, whole, sums,
      isAlone ? launch.getUnitAttr() : FlatSymbolRefAttr(), IntegerAttr());
  if (plan::getTensorType(targets.front()).getElementType() != via)
    last = castOut(loc, sums, targets, stream);
  else if (!isAlone)
    last = split(loc, sums, 1, targets, stream);
  for (LaunchOpInterface op : bucket)
    launches[op.getFuture()] = last;
}
