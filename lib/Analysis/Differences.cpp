//===- Differences.cpp - Where a step and its source differ ---------------===//
//
// Two values differ where the calls that made them do: the operands are
// followed as long as the calls are alike.
//
//===----------------------------------------------------------------------===//

#include "EquivalenceImpl.h"

using namespace mlir;
using namespace fsdp;
using fsdp::aten::ATenDialect;

/// How a role is called in a diagnostic.
std::string Equivalence::getName(Role role) {
  auto text = dyn_cast<StringAttr>(role.second);
  std::string quoted = text ? ("'" + text.getValue() + "'").str() : "";
  if (role.first == ATenDialect::getLossAttrName())
    return "loss";
  if (role.first == ATenDialect::getGradOfAttrName())
    return "gradient of " + quoted;
  if (role.first == ATenDialect::getBufferMutationAttrName())
    return "new content of buffer " + quoted;
  auto number = dyn_cast<IntegerAttr>(role.second);
  return (role.first == ATenDialect::getOutputAttrName()
              ? "output "
              : "gradient of input ") +
         std::to_string(number ? number.getInt() : 0);
}

/// The call, view, argument or such that `value` of the step is carried from.
Value Equivalence::resolve(Value value) {
  while (true) {
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
      auto result = func.getArgAttrOfType<IntegerAttr>(
          argument.getArgNumber(), FSDPDialect::getResultAttrName());
      if (!result || !init)
        return value;
      value =
          init.getBody().front().getTerminator()->getOperand(result.getInt());
    } else if (auto op = value.getDefiningOp<AccumulateOp>()) {
      value = isa<BlockArgument>(op.getSum()) ? op.getGradient() : op.getSum();
    } else if (isa<CollectiveOpInterface, LaunchOpInterface, AsyncWaitOp,
                   CopyOp, PieceOp>(value.getDefiningOp())) {
      value = value.getDefiningOp()->getOperand(0);
    } else {
      return value;
    }
  }
}

std::string Equivalence::describe(Value value) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
    unsigned index = argument.getArgNumber();
    if (auto state = func.getArgAttr(index, FSDPDialect::getStateAttrName()))
      os << state;
    else if (auto role = getRole(func.getArgAttrDict(index)))
      os << role->first.getValue().split('.').second << ' ' << role->second;
    else
      os << "argument " << index;
  } else if (auto view = value.getDefiningOp<ViewOp>()) {
    os << "param " << view.getParameterAttr();
  } else if (auto call = value.getDefiningOp<aten::CallOp>()) {
    os << "a result of '" << call.getCallee().getName() << '\'';
  } else {
    os << "a result of '" << value.getDefiningOp()->getName() << '\'';
  }
  return text;
}

/// Reports where the two values begin to differ.
LogicalResult Equivalence::reportDifference(Role role, Value found,
                                            Value expected) {
  while (true) {
    found = resolve(found);
    auto left = found.getDefiningOp<aten::CallOp>();
    auto right = expected.getDefiningOp<aten::CallOp>();
    if (!left || !right || left.getCallee() != right.getCallee() ||
        left.getArgs() != right.getArgs())
      break;
    auto pairs = llvm::zip_equal(left.getInputs(), right.getInputs());
    auto different = llvm::find_if(pairs, [&](const auto &pair) {
      return numbers.lookup(std::get<0>(pair)) !=
             numbers.lookup(std::get<1>(pair));
    });
    if (different == pairs.end())
      break;
    std::tie(found, expected) = *different;
  }
  InFlightDiagnostic diagnostic =
      emitError(found.getLoc())
      << "the " << getName(role) << " depends on another value: expected "
      << describe(expected) << " of type " << expected.getType() << ", found "
      << describe(found) << " of type " << found.getType();
  diagnostic.attachNote(expected.getLoc()) << "in the source, it is this";
  return diagnostic;
}
