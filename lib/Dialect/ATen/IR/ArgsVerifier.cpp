//===- ArgsVerifier.cpp - Arguments fit the operator's schema -------------===//
//
// What a call is checked for when it is made, so that no pass has to.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Operators/OperatorSchema.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::aten;

using Argument = operators::OperatorSchema::Argument;

namespace {
/// What an argument may be given as; a list has that of its elements.
enum class Kind {
  Tensor,
  None,
  Int,
  Float,
  Bool,
  Text,
  DType,
  Device,
  Layout,
  Format
};
} // namespace

static Kind getKind(Type operand) {
  if (isa<NoneType>(operand))
    return Kind::None;
  if (operand.isInteger(1))
    return Kind::Bool;
  if (isa<IntegerType>(operand))
    return Kind::Int;
  return isa<FloatType>(operand) ? Kind::Float : Kind::Tensor;
}

/// The kind of a constant, and of the elements of one that is a list.
static Kind getKind(Attribute value) {
  return llvm::TypeSwitch<Attribute, Kind>(value)
      .Case<BoolAttr, DenseBoolArrayAttr>([](auto) { return Kind::Bool; })
      .Case<IntegerAttr, DenseI64ArrayAttr>([](auto) { return Kind::Int; })
      .Case<FloatAttr, DenseF64ArrayAttr>([](auto) { return Kind::Float; })
      .Case([](StringAttr) { return Kind::Text; })
      .Case([](TypeAttr) { return Kind::DType; })
      .Case([](DeviceAttr) { return Kind::Device; })
      .Case([](LayoutAttr) { return Kind::Layout; })
      .Case([](MemoryFormatAttr) { return Kind::Format; })
      .Default([](Attribute) { return Kind::None; });
}

/// True if a value of this kind is one of the argument, or of its elements.
static bool takes(const Argument &argument, Kind kind) {
  StringRef name = argument.kind;
  bool isNumber =
      kind == Kind::Int || kind == Kind::Float || kind == Kind::Bool;
  switch (kind) {
  case Kind::Tensor:
    return name == "Tensor";
  case Kind::None:
    return argument.isList ? argument.noneInside
                           : argument.isOptional ||
                                 operators::mayBeUndefined(argument.name);
  case Kind::Text:
    return name == "str";
  case Kind::DType:
    return name == "ScalarType";
  case Kind::Device:
    return name == "Device";
  case Kind::Layout:
    return name == "Layout";
  case Kind::Format:
    return name == "MemoryFormat";
  case Kind::Int:
    if (name == "int" || name == "SymInt" || name == "float")
      return true;
    break;
  case Kind::Float:
    if (name == "float")
      return true;
    break;
  case Kind::Bool:
    if (name == "bool")
      return true;
    break;
  }
  // PyTorch takes a number for a tensor, too.
  return isNumber &&
         (name == "Scalar" || (name == "Tensor" && !argument.isList));
}

/// True if the argument takes `value`, whose places are the first `operands`.
static bool takes(const Argument &argument, Attribute value,
                  OperandRange operands) {
  auto take = [&](Attribute element) {
    if (!isa<OperandAttr>(element))
      return takes(argument, getKind(element));
    Type type = operands.front().getType();
    operands = operands.drop_front();
    return takes(argument, getKind(type));
  };
  if (auto list = dyn_cast<ArrayAttr>(value))
    return argument.isList && llvm::all_of(list, take);
  if (auto list = dyn_cast<DenseArrayAttr>(value))
    return argument.isList && (list.empty() || take(value));
  if (isa<UnitAttr>(value) && argument.isList)
    return argument.isOptional;
  // One stands for a list, but a tensor for none.
  bool isTensor = isa<OperandAttr>(value) && argument.isList &&
                  getKind(operands.front().getType()) == Kind::Tensor;
  return !isTensor && take(value);
}

/// As a schema has it: "int[2]?".
static std::string spell(const Argument &argument) {
  std::string text = argument.kind + (argument.noneInside ? "?" : "");
  if (argument.isList)
    text += argument.listSize ? "[" + std::to_string(argument.listSize) + "]"
                              : "[]";
  return text + (argument.isOptional ? "?" : "");
}

LogicalResult aten::verifyArguments(Operation *op, OpNameAttr callee,
                                    ArgsAttr args, OperandRange inputs) {
  const operators::OpFacts *facts = callee.getFacts();
  auto &dialect = cast<ATenDialect>(callee.getDialect());
  const operators::OperatorSchema *schema =
      facts ? dialect.getSchema(*facts) : nullptr;
  if (!schema)
    return success();
  // Of each argument, the first of its operands.
  SmallVector<unsigned> firsts = {0};
  for (Attribute value : args.getValues())
    firsts.push_back(firsts.back() + ArgsAttr::countPlaces(value));
  unsigned positional = args.getNumPositional(), used = 0;
  for (const Argument &argument : schema->arguments) {
    if (argument.isWritten)
      continue;
    unsigned index = used;
    if (used < positional) {
      ++used;
    } else if (std::optional<unsigned> named = args.find(argument.name)) {
      index = *named;
      ++used;
    } else if (argument.fallback) {
      continue;
    } else {
      return op->emitOpError("C4: operator '")
             << callee.getName() << "' needs an argument '" << argument.name
             << "'";
    }
    Attribute value = args.getValues()[index];
    OperandRange operands = inputs.drop_front(firsts[index]);
    // A number can't be viewed.
    bool isViewed = facts->isView && &argument == &schema->arguments.front() &&
                    !argument.isList;
    if (!takes(argument, value, operands) ||
        (isViewed && (!isa<OperandAttr>(value) ||
                      getKind(operands.front().getType()) != Kind::Tensor)))
      return op->emitOpError("C4: expected '")
             << argument.name << "' of operator '" << callee.getName()
             << "' to be of type " << spell(argument) << ", got "
             << (isa<OperandAttr>(value) ? "an operand of another type"
                                         : "another constant");
  }
  if (used != args.getValues().size())
    return op->emitOpError("C4: operator '")
           << callee.getName()
           << "' has no such arguments, or is given one of them twice";
  return success();
}
