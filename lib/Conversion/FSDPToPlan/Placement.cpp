//===- Placement.cpp - Where arguments and results lie --------------------===//
//
// What outlives a program has one place, whoever names it.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

#include "fsdp/PlanFile/PlanFile.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

LogicalResult Lowering::lowerArgument(BlockArgument argument) {
  unsigned index = argument.getArgNumber();
  Location loc = argument.getLoc();
  auto get = [&](StringRef name) { return func.getArgAttr(index, name); };
  if (auto group =
          dyn_cast_or_null<IntegerAttr>(get(FSDPDialect::getHyperAttrName()))) {
    Value &value = tables.getNamed(FSDPDialect::getHyperAttrName(), group);
    bool isWithoutDecay = bool(get(FSDPDialect::getNoDecayAttrName()));
    if (!value) {
      plan::BufferOp buffer =
          tables.addBuffer(loc, plan::BufferRole::Hyper,
                           cast<RankedTensorType>(argument.getType()));
      buffer.setIndexAttr(group);
      buffer.setSpace(plan::Space::Host);
      if (isWithoutDecay)
        buffer.setName(StringRef(planfile::noDecay));
      value = buffer;
    }
    if (value.getDefiningOp<plan::BufferOp>().getName().has_value() !=
        isWithoutDecay)
      return func.emitError("argument ")
             << index << ": expected decay group " << group.getInt()
             << " to be with or without weight decay everywhere, found both";
    buffers[argument] = value;
    return success();
  }
  if (auto state =
          dyn_cast_or_null<StateAttr>(get(FSDPDialect::getStateAttrName()))) {
    buffers[argument] = tables.getState(loc, state, argument.getType());
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
// Results
//===----------------------------------------------------------------------===//

/// Where result `index` of the function belongs.
FailureOr<Value> Lowering::getDestination(unsigned index, Value value) {
  auto get = [&](StringRef name) { return func.getResultAttr(index, name); };
  Location loc = func.getLoc();
  if (auto state =
          dyn_cast_or_null<StateAttr>(get(FSDPDialect::getStateAttrName())))
    return Value(tables.getState(loc, state, value.getType()));
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
