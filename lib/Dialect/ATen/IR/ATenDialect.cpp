//===- ATenDialect.cpp - The ATen dialect ---------------------------------===//
//
// Initialisation, and the verification of the roles that arguments and results
// of a function have in a training step.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/ATen/IR/Limits.h"

#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Operators/OperatorSchema.h"

#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/RWMutex.h"

using namespace mlir;
using namespace fsdp::aten;

namespace fsdp::aten::detail {
/// Schemas by the facts of their operators; threads verify at once.
struct Schemas {
  llvm::sys::RWMutex mutex;
  llvm::DenseMap<const operators::OpFacts *,
                 std::unique_ptr<operators::OperatorSchema>>
      parsed;
};
} // namespace fsdp::aten::detail

#include "fsdp/Dialect/ATen/IR/ATenDialect.cpp.inc"

const fsdp::operators::OperatorSchema *
ATenDialect::getSchema(const operators::OpFacts &facts) {
  {
    llvm::sys::ScopedReader lock(schemas->mutex);
    if (auto found = schemas->parsed.find(&facts);
        found != schemas->parsed.end())
      return found->second.get();
  }
  auto schema = operators::parseOperatorSchema(facts.schema);
  llvm::sys::ScopedWriter lock(schemas->mutex);
  auto [entry, isNew] = schemas->parsed.try_emplace(&facts);
  if (isNew && schema)
    entry->second =
        std::make_unique<operators::OperatorSchema>(std::move(*schema));
  return entry->second.get();
}

void ATenDialect::initialize() {
  schemas = std::make_unique<detail::Schemas>();
  registerAttributes();
  registerResources();
  addOperations<
#define GET_OP_LIST
#include "fsdp/Dialect/ATen/IR/ATenOps.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Kinds of attributes
//===----------------------------------------------------------------------===//

namespace {
/// What an attribute must be.
enum class AttrKind {
  Name,
  Names,
  Dims,
  Index,
  Unit,
  Elements,
  Dictionary,
  LongDictionary,
  Device,
  Float
};
} // namespace

static StringRef describe(AttrKind kind) {
  switch (kind) {
  case AttrKind::Name:
    return "a string";
  case AttrKind::Names:
    return "an array of strings";
  case AttrKind::Dims:
    return "an array of strings and integers";
  case AttrKind::Index:
    return "a 64-bit integer that is not negative";
  case AttrKind::Unit:
    return "no value";
  case AttrKind::Elements:
    return "the elements of a tensor";
  case AttrKind::Dictionary:
    return "a dictionary";
  case AttrKind::LongDictionary:
    return "a dictionary or a resource";
  case AttrKind::Device:
    return "a device";
  case AttrKind::Float:
    return "a floating-point type";
  }
  llvm_unreachable("covered switch");
}

static bool hasKind(Attribute value, AttrKind kind) {
  auto array = dyn_cast<ArrayAttr>(value);
  switch (kind) {
  case AttrKind::Name:
    return isa<StringAttr>(value);
  case AttrKind::Names:
    return array && llvm::all_of(array, llvm::IsaPred<StringAttr>);
  case AttrKind::Dims:
    return array && llvm::all_of(array, llvm::IsaPred<StringAttr, IntegerAttr>);
  case AttrKind::Index: {
    auto index = dyn_cast<IntegerAttr>(value);
    return index && index.getType().isSignlessInteger(64) &&
           !index.getValue().isNegative();
  }
  case AttrKind::Unit:
    return isa<UnitAttr>(value);
  case AttrKind::Elements:
    return isa<ElementsAttr>(value);
  case AttrKind::Dictionary:
    return isa<DictionaryAttr>(value);
  case AttrKind::LongDictionary:
    return isa<DictionaryAttr, ResourceAttr>(value);
  case AttrKind::Device:
    return isa<DeviceAttr>(value);
  case AttrKind::Float: {
    auto type = dyn_cast<TypeAttr>(value);
    return type && isa<FloatType>(type.getValue());
  }
  }
  llvm_unreachable("covered switch");
}

/// Checks A1 and A2 for an attribute that should have `kind`; nothing if it may
/// not stand on `place`.
static LogicalResult verifyKind(Operation *op, NamedAttribute attr,
                                std::optional<AttrKind> kind, StringRef place) {
  if (!kind)
    return op->emitError() << "A1: attribute " << attr.getName()
                           << " is unknown on " << place;
  if (!hasKind(attr.getValue(), *kind))
    return op->emitError() << "A2: expected " << attr.getName() << " to have "
                           << describe(*kind) << ", found " << attr.getValue();
  return success();
}

/// Checks A6 for an argument.
static LogicalResult verifySize(FunctionOpInterface function, unsigned index) {
  auto type = dyn_cast<RankedTensorType>(function.getArgumentTypes()[index]);
  if (type && isTooLarge(type))
    return function.emitError() << "A6: argument " << index << " has more than "
                                << mostElements << " elements";
  return success();
}

LogicalResult ATenDialect::verifyOperationAttribute(Operation *op,
                                                    NamedAttribute attr) {
  auto kind = llvm::StringSwitch<std::optional<AttrKind>>(attr.getName())
                  .Cases({getGradientSeedAttrName(), getProgramAttrName()},
                         AttrKind::Unit)
                  .Case(getDeviceAttrName(), AttrKind::Device)
                  .Case(getParameterOrderAttrName(), AttrKind::Name)
                  .Cases({getSourceAttrName(), getSymbolsAttrName()},
                         AttrKind::Dictionary)
                  .Case(getClassesAttrName(), AttrKind::LongDictionary)
                  .Default(std::nullopt);
  if (failed(verifyKind(op, attr, kind, "an operation")))
    return failure();
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function || attr.getName() != getProgramAttrName())
    return success();
  for (unsigned index = 0; index != function.getNumArguments(); ++index)
    if (failed(verifySize(function, index)))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// Roles
//===----------------------------------------------------------------------===//

/// The attributes that give an argument, or a result, its role.
static ArrayRef<StringRef> getArgRoles() {
  static const StringRef roles[] = {
      ATenDialect::getParamAttrName(), ATenDialect::getBufferAttrName(),
      ATenDialect::getConstantAttrName(), ATenDialect::getInputAttrName()};
  return roles;
}
static ArrayRef<StringRef> getResultRoles() {
  static const StringRef roles[] = {ATenDialect::getLossAttrName(),
                                    ATenDialect::getGradOfAttrName(),
                                    ATenDialect::getGradOfInputAttrName(),
                                    ATenDialect::getBufferMutationAttrName(),
                                    ATenDialect::getOutputAttrName()};
  return roles;
}

static bool hasOneRole(DictionaryAttr attrs, ArrayRef<StringRef> roles) {
  return llvm::count_if(
             roles, [&](StringRef role) { return attrs.contains(role); }) <= 1;
}

/// Checks A7 for all arguments of a function.
static LogicalResult verifyNames(FunctionOpInterface function) {
  static const std::pair<StringRef, StringRef> names[] = {
      {ATenDialect::getParamAttrName(), "parameter"},
      {ATenDialect::getAliasesAttrName(), "parameter"},
      {ATenDialect::getBufferAttrName(), "buffer"},
      {ATenDialect::getConstantAttrName(), "constant"},
      {ATenDialect::getInputAttrName(), "input"},
      {ATenDialect::getInputNameAttrName(), "input"}};
  llvm::DenseSet<std::pair<StringRef, Attribute>> seen;
  for (unsigned i = 0, e = function.getNumArguments(); i != e; ++i) {
    DictionaryAttr attrs = function.getArgAttrDict(i);
    for (auto [attrName, role] : names) {
      Attribute value = attrs ? attrs.get(attrName) : Attribute();
      auto aliases = dyn_cast_or_null<ArrayAttr>(value);
      for (Attribute name : aliases ? aliases.getValue() : ArrayRef(value))
        if (name && !seen.insert({role, name}).second)
          return function.emitError()
                 << "A7: two arguments are " << role << ' ' << name;
    }
  }
  return success();
}

LogicalResult ATenDialect::verifyRegionArgAttribute(Operation *op,
                                                    unsigned /*regionIndex*/,
                                                    unsigned argIndex,
                                                    NamedAttribute attr) {
  StringRef name = attr.getName();
  auto kind = llvm::StringSwitch<std::optional<AttrKind>>(name)
                  .Cases({getParamAttrName(), getBufferAttrName(),
                          getConstantAttrName(), getInputNameAttrName()},
                         AttrKind::Name)
                  .Case(getAliasesAttrName(), AttrKind::Names)
                  .Case(getPersistentAttrName(), AttrKind::Unit)
                  .Case(getValueAttrName(), AttrKind::Elements)
                  .Case(getInputAttrName(), AttrKind::Index)
                  .Case(getDimsAttrName(), AttrKind::Dims)
                  .Cases({getParamDtypeAttrName(), getStorageDtypeAttrName(),
                          getReduceDtypeAttrName()},
                         AttrKind::Float)
                  .Default(std::nullopt);
  if (failed(verifyKind(op, attr, kind, "an argument")))
    return failure();
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function)
    return success();

  if (failed(verifySize(function, argIndex)))
    return failure();
  DictionaryAttr attrs = function.getArgAttrDict(argIndex);
  if (!hasOneRole(attrs, getArgRoles()))
    return op->emitError() << "A3: argument " << argIndex
                           << " has more than one role";
  auto needs = [&](StringRef modifier, bool holds,
                   StringRef what) -> LogicalResult {
    if (name != modifier || holds)
      return success();
    return op->emitError() << "A4: argument " << argIndex << " has '" << name
                           << "', which belongs to " << what;
  };
  bool isBuffer = attrs.contains(getBufferAttrName());
  for (StringRef modifier :
       {StringRef(getAliasesAttrName()), StringRef(getParamDtypeAttrName()),
        StringRef(getStorageDtypeAttrName()),
        StringRef(getReduceDtypeAttrName())})
    if (failed(
            needs(modifier, attrs.contains(getParamAttrName()), "a parameter")))
      return failure();
  if (failed(needs(getPersistentAttrName(), isBuffer, "a buffer")) ||
      failed(needs(getDimsAttrName(), attrs.contains(getInputAttrName()),
                   "an input")) ||
      failed(needs(getInputNameAttrName(), attrs.contains(getInputAttrName()),
                   "an input")) ||
      failed(needs(getValueAttrName(),
                   attrs.contains(getConstantAttrName()) ||
                       (isBuffer && !attrs.contains(getPersistentAttrName())),
                   "a constant or a buffer that is not persistent")))
    return failure();

  if (name == getValueAttrName()) {
    auto value = cast<ElementsAttr>(attr.getValue()).getShapedType();
    Type type = function.getArgumentTypes()[argIndex];
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || tensor.getShape() != value.getShape() ||
        tensor.getElementType() != value.getElementType())
      return op->emitError() << "A5: argument " << argIndex << " is of type "
                             << type << ", but its value of type " << value;
  }

  // Names are compared once per function: with the first argument that has a
  // role, or one could not afford it.
  for (unsigned i = 0; i != argIndex; ++i)
    if (llvm::any_of(getArgRoles(), [&](StringRef role) {
          return static_cast<bool>(function.getArgAttr(i, role));
        }))
      return success();
  return llvm::is_contained(getArgRoles(), name) ? verifyNames(function)
                                                 : success();
}

LogicalResult ATenDialect::verifyRegionResultAttribute(Operation *op,
                                                       unsigned /*regionIndex*/,
                                                       unsigned resultIndex,
                                                       NamedAttribute attr) {
  auto kind = llvm::StringSwitch<std::optional<AttrKind>>(attr.getName())
                  .Case(getLossAttrName(), AttrKind::Unit)
                  .Cases({getGradOfAttrName(), getBufferMutationAttrName()},
                         AttrKind::Name)
                  .Cases({getGradOfInputAttrName(), getOutputAttrName()},
                         AttrKind::Index)
                  .Default(std::nullopt);
  if (failed(verifyKind(op, attr, kind, "a result")))
    return failure();
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (function &&
      !hasOneRole(function.getResultAttrDict(resultIndex), getResultRoles()))
    return op->emitError() << "A3: result " << resultIndex
                           << " has more than one role";
  return success();
}
