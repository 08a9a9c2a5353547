//===- StepToProgram.cpp - A function becomes a program -------------------===//
//
// Each operation of a function of the scheduled level becomes commands, in the
// order of the block:
//
//   aten.call                  plan.launch
//
//   fsdp.async.unshard         a cast, plan.all_gather      Launches.cpp,
//   fsdp.async.reduce_scatter  plan.reduce_scatter, a cast  CopiedBuckets.cpp
//   fsdp.async.all_reduce      plan.all_reduce, a cast
//   fsdp.async.copy            plan.copy
//   fsdp.async.wait            plan.record, plan.wait
//   fsdp.async.reshard         none: only later memory waits
//
//   fsdp.piece                 plan.piece                   FlatParameters.cpp
//   fsdp.view                  none: a window on a buffer
//   fsdp.flatten_grads         plan.copy, plan.zero of gaps
//   fsdp.accumulate            plan.accumulate
//
//   fsdp.measure               plan.measure                 Updates.cpp
//   fsdp.clip_factor           plan.launch, several
//   fsdp.scale                 plan.launch
//   an update                  the command of its name
//
//   arguments, return          plan.buffer of state         Placement.cpp
//
// In a group of one rank, a collective is a copy, or none at all.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

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
