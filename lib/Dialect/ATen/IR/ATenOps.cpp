//===- ATenOps.cpp - The operation of the ATen dialect --------------------===//
//
// Syntax, verification, effects and accessors of `aten.call`.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ArgsSyntax.h"
#include "fsdp/Dialect/ATen/IR/Limits.h"
#include "fsdp/Operators/OpFacts.h"

#include "mlir/IR/Builders.h"
#include "mlir/Interfaces/ViewLikeInterface.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::aten;

//===----------------------------------------------------------------------===//
// CallOp
//===----------------------------------------------------------------------===//

void CallOp::build(OpBuilder &builder, OperationState &state, TypeRange outputs,
                   StringRef callee, ArgsAttr args, ValueRange inputs,
                   PhaseAttr phase, StringAttr scope) {
  build(builder, state, outputs, OpNameAttr::get(builder.getContext(), callee),
        args, scope, phase, inputs);
}

LogicalResult CallOp::verify() {
  for (Type type :
       llvm::concat<const Type>(getInputs().getTypes(), getResultTypes()))
    if (auto tensor = dyn_cast<RankedTensorType>(type);
        tensor && isTooLarge(tensor))
      return emitOpError() << "C5: expected tensors of at most " << mostElements
                           << " elements, got " << tensor;
  unsigned places = getArgs().countPlaces();
  if (places != getInputs().size())
    return emitOpError() << "C1: expected " << places
                         << " operands, one per place among the arguments, got "
                         << getInputs().size();
  const operators::OpFacts *facts = getFacts();
  if (facts && facts->isMutating())
    return emitOpError() << "C2: operator '" << getCallee().getName()
                         << "' changes its arguments in place";
  if (facts && getNumArgs() > facts->numArgs)
    return emitOpError() << "C3: operator '" << getCallee().getName()
                         << "' takes " << unsigned(facts->numArgs)
                         << " arguments, got " << getNumArgs();
  if (facts && !facts->returnsList && getNumResults() != facts->numReturns)
    return emitOpError() << "C3: operator '" << getCallee().getName()
                         << "' has " << unsigned(facts->numReturns)
                         << " results, got " << getNumResults();
  return verifyArguments(*this, getCalleeAttr(), getArgs(), getInputs());
}

void CallOp::getEffects(
    SmallVectorImpl<SideEffects::EffectInstance<MemoryEffects::Effect>>
        &effects) {
  const operators::OpFacts *facts = getFacts();
  SideEffects::Resource *resource = nullptr;
  if (!facts || facts->isMutating())
    resource = OpaqueResource::get();
  else if (facts->isRandom)
    resource = GeneratorResource::get();
  if (!resource)
    return;
  effects.emplace_back(MemoryEffects::Read::get(), resource);
  effects.emplace_back(MemoryEffects::Write::get(), resource);
}

OperandRange CallOp::getArgInputs(unsigned index) {
  unsigned first = 0;
  for (Attribute value : getArgs().getValues().take_front(index))
    first += ArgsAttr::countPlaces(value);
  return getInputs().slice(first,
                           ArgsAttr::countPlaces(getArgs().getValues()[index]));
}

OpFoldResult CallOp::getArg(unsigned index) {
  Attribute value = getArgs().getValues()[index];
  if (isa<OperandAttr>(value))
    return getArgInputs(index).front();
  return value;
}

OpFoldResult CallOp::getArg(StringRef keyword) {
  std::optional<unsigned> index = getArgs().find(keyword);
  return index ? getArg(*index) : OpFoldResult();
}

Value aten::getViewSource(Operation *op) {
  if (auto call = dyn_cast<CallOp>(op)) {
    const operators::OpFacts *facts = call.getFacts();
    return facts && facts->isView && !call.getInputs().empty()
               ? call.getInputs().front()
               : Value();
  }
  auto view = dyn_cast<ViewLikeOpInterface>(op);
  return view ? view.getViewSource() : Value();
}

Value aten::getViewRoot(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    Value source = getViewSource(op);
    if (!source)
      break;
    value = source;
  }
  return value;
}

#define GET_OP_CLASSES
#include "fsdp/Dialect/ATen/IR/ATenOps.cpp.inc"
