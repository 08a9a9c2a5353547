//===- Arguments.cpp - Arguments and results of nodes ---------------------===//
//
// Every kind of argument that the archive's schema has: imported, or rejected
// by name.
//
//===----------------------------------------------------------------------===//

#include "Importer.h"

#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::pt2;

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

FailureOr<NamedValue *> Importer::lookup(const Cursor &name) {
  StringRef text;
  if (failed(name.read(text)))
    return failure();
  auto found = names.find(text);
  if (found == names.end())
    return name.error() << "the graph has no value " << quote(text);
  return &found->second;
}

LogicalResult Importer::readUse(const Cursor &name, Attribute &value,
                                SmallVectorImpl<Value> &inputs) {
  FailureOr<NamedValue *> info = lookup(name);
  if (failed(info))
    return failure();
  if (!(*info)->isDefined)
    return name.error() << "the value is used before it is defined";
  value = (*info)->constant;
  if (value)
    return success();
  value = aten::OperandAttr::get(builder.getContext());
  inputs.push_back((*info)->value);
  return success();
}

FailureOr<NamedValue *> Importer::define(const Cursor &name, Type &type) {
  FailureOr<NamedValue *> info = lookup(name);
  if (failed(info))
    return failure();
  if (std::exchange((*info)->isDefined, true))
    return name.error() << "the value is defined twice";
  type = (*info)->scalarType;
  if (type)
    return info;
  FailureOr<RankedTensorType> tensor = readTensorType((*info)->meta);
  if (failed(tensor))
    return failure();
  type = *tensor;
  return info;
}

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

namespace {
enum class Variant {
  None,
  Tensor,
  Tensors,
  Int,
  Ints,
  Float,
  Floats,
  Bool,
  Bools,
  String,
  Strings,
  SymScalar,
  SymScalars,
  ScalarType,
  MemoryFormat,
  Layout,
  Device,
  OptionalTensor,
  OptionalTensors,
  Graph,
  CustomObject,
  Operator,
  Complex,
  Nested,
  Unknown
};
} // namespace

static Variant getVariant(StringRef name) {
  return llvm::StringSwitch<Variant>(name)
      .Case("as_tensor", Variant::Tensor)
      .Case("as_int", Variant::Int)
      .Case("as_ints", Variant::Ints)
      .Case("as_float", Variant::Float)
      .Case("as_bool", Variant::Bool)
      .Case("as_none", Variant::None)
      .Case("as_scalar_type", Variant::ScalarType)
      .Case("as_device", Variant::Device)
      .Case("as_layout", Variant::Layout)
      .Case("as_memory_format", Variant::MemoryFormat)
      .Case("as_tensors", Variant::Tensors)
      .Case("as_floats", Variant::Floats)
      .Case("as_bools", Variant::Bools)
      .Case("as_string", Variant::String)
      .Case("as_strings", Variant::Strings)
      .Cases({"as_sym_int", "as_sym_float", "as_sym_bool"}, Variant::SymScalar)
      .Cases({"as_sym_ints", "as_sym_floats", "as_sym_bools"},
             Variant::SymScalars)
      .Case("as_optional_tensor", Variant::OptionalTensor)
      .Case("as_optional_tensors", Variant::OptionalTensors)
      .Case("as_graph", Variant::Graph)
      .Case("as_custom_obj", Variant::CustomObject)
      .Case("as_operator", Variant::Operator)
      .Case("as_complex", Variant::Complex)
      .Cases({"as_nested_tensors", "as_int_lists", "as_float_lists",
              "as_string_to_argument"},
             Variant::Nested)
      .Default(Variant::Unknown);
}

LogicalResult Importer::readScalar(const Cursor &scalar, Attribute &value,
                                   SmallVectorImpl<Value> &inputs) {
  StringRef variant;
  Cursor content;
  if (failed(scalar.readUnion(variant, content)))
    return failure();
  if (variant == "as_name")
    return readUse(content, value, inputs);
  int64_t integer = 0;
  bool truth = false;
  double number = 0;
  if (variant == "as_int") {
    if (failed(content.read(integer)))
      return failure();
    value = builder.getI64IntegerAttr(integer);
  } else if (variant == "as_bool") {
    if (failed(content.read(truth)))
      return failure();
    value = builder.getBoolAttr(truth);
  } else if (variant == "as_float") {
    if (failed(content.read(number)))
      return failure();
    value = builder.getF64FloatAttr(number);
  } else {
    return scalar.expected("as_name, as_int, as_float or as_bool");
  }
  return success();
}

LogicalResult Importer::readArgument(const Cursor &argument, Attribute &value,
                                     SmallVectorImpl<Value> &inputs) {
  StringRef name;
  Cursor content;
  if (failed(argument.readUnion(name, content)))
    return failure();
  MLIRContext *context = builder.getContext();
  auto readList = [&](auto readElement) -> LogicalResult {
    SmallVector<Attribute> elements;
    if (failed(content.forEachElement([&](const Cursor &element) {
          return readElement(element, elements.emplace_back());
        })))
      return failure();
    value = aten::ArgsAttr::getList(context, elements);
    return success();
  };
  auto readInt = [&](const Cursor &cursor, Attribute &value) -> LogicalResult {
    int64_t integer = 0;
    if (failed(cursor.read(integer)))
      return failure();
    value = builder.getI64IntegerAttr(integer);
    return success();
  };
  auto readFloat = [&](const Cursor &cursor,
                       Attribute &value) -> LogicalResult {
    double number = 0;
    if (failed(cursor.read(number)))
      return failure();
    value = builder.getF64FloatAttr(number);
    return success();
  };
  auto readBool = [&](const Cursor &cursor, Attribute &value) -> LogicalResult {
    bool truth = false;
    if (failed(cursor.read(truth)))
      return failure();
    value = builder.getBoolAttr(truth);
    return success();
  };
  auto readString = [&](const Cursor &cursor,
                        Attribute &value) -> LogicalResult {
    StringRef text;
    if (failed(cursor.read(text)))
      return failure();
    value = builder.getStringAttr(text);
    return success();
  };
  auto readTensor = [&](const Cursor &cursor,
                        Attribute &value) -> LogicalResult {
    Cursor tensor;
    if (failed(cursor.read({{"name", tensor}})))
      return failure();
    return readUse(tensor, value, inputs);
  };
  auto readOptional = [&](const Cursor &cursor,
                          Attribute &value) -> LogicalResult {
    StringRef variant;
    Cursor tensor;
    if (failed(cursor.readUnion(variant, tensor)))
      return failure();
    if (variant == "as_tensor")
      return readTensor(tensor, value);
    if (variant != "as_none")
      return cursor.expected("as_tensor or as_none");
    value = builder.getUnitAttr();
    return success();
  };
  auto readSymbolic = [&](const Cursor &cursor, Attribute &value) {
    return readScalar(cursor, value, inputs);
  };
  auto unsupported = [&](StringRef what) -> LogicalResult {
    return argument.error() << what << " are not supported";
  };

  switch (getVariant(name)) {
  case Variant::None:
    value = builder.getUnitAttr();
    return success();
  case Variant::Tensor:
    return readTensor(content, value);
  case Variant::Tensors:
    return readList(readTensor);
  case Variant::Int:
    return readInt(content, value);
  case Variant::Ints:
    return readList(readInt);
  case Variant::Float:
    return readFloat(content, value);
  case Variant::Floats:
    return readList(readFloat);
  case Variant::Bool:
    return readBool(content, value);
  case Variant::Bools:
    return readList(readBool);
  case Variant::String:
    return readString(content, value);
  case Variant::Strings:
    return readList(readString);
  case Variant::SymScalar:
    return readSymbolic(content, value);
  case Variant::SymScalars:
    return readList(readSymbolic);
  case Variant::OptionalTensor:
    return readOptional(content, value);
  case Variant::OptionalTensors:
    return readList(readOptional);
  case Variant::ScalarType: {
    FailureOr<Type> type = readElementType(content);
    if (failed(type))
      return failure();
    value = TypeAttr::get(*type);
    return success();
  }
  case Variant::MemoryFormat: {
    int64_t code = 0;
    if (failed(content.read(code)))
      return failure();
    std::optional<aten::MemoryFormat> format;
    if (code >= 1)
      format = aten::symbolizeMemoryFormat(code - 1);
    if (!format)
      return content.expected("the number of a memory format");
    value = aten::MemoryFormatAttr::get(context, *format);
    return success();
  }
  case Variant::Layout: {
    aten::LayoutAttr layout;
    if (failed(readLayout(content, layout)))
      return failure();
    value = layout;
    return success();
  }
  case Variant::Device: {
    aten::DeviceAttr device;
    if (failed(readDevice(content, device)))
      return failure();
    value = device;
    return success();
  }
  case Variant::Graph:
    return unsupported("operators that take a graph (cond, while_loop, ...)");
  case Variant::CustomObject:
    return unsupported("custom objects");
  case Variant::Operator:
    return unsupported("operators as arguments");
  case Variant::Complex:
    return unsupported("complex numbers as arguments");
  case Variant::Nested:
    return unsupported("nested lists and dictionaries as arguments");
  case Variant::Unknown:
    return argument.expected("an argument of schema 8");
  }
  llvm_unreachable("covered switch");
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

LogicalResult Importer::readResult(const Cursor &output,
                                   SmallVectorImpl<Type> &types,
                                   SmallVectorImpl<NamedValue *> &names) {
  StringRef variant;
  Cursor content;
  if (failed(output.readUnion(variant, content)))
    return failure();
  auto addName = [&](const Cursor &name, bool isScalar) -> LogicalResult {
    Type type;
    FailureOr<NamedValue *> info = define(name, type);
    if (failed(info))
      return failure();
    if (isScalar != static_cast<bool>((*info)->scalarType))
      return name.error() << "the value is "
                          << (isScalar ? "a tensor" : "no tensor");
    types.push_back(type);
    names.push_back(*info);
    return success();
  };
  auto addTensor = [&](const Cursor &tensor) -> LogicalResult {
    Cursor name;
    if (failed(tensor.read({{"name", name}})))
      return failure();
    return addName(name, /*isScalar=*/false);
  };
  auto addNone = [&] {
    types.push_back(builder.getNoneType());
    names.push_back(nullptr);
    return success();
  };
  auto addOptional = [&](const Cursor &optional) -> LogicalResult {
    StringRef variant;
    Cursor tensor;
    if (failed(optional.readUnion(variant, tensor)))
      return failure();
    if (variant == "as_none")
      return addNone();
    if (variant != "as_tensor")
      return optional.expected("as_tensor or as_none");
    return addTensor(tensor);
  };
  switch (getVariant(variant)) {
  case Variant::None:
    return addNone();
  case Variant::Tensor:
    return addTensor(content);
  case Variant::Tensors:
    return content.forEachElement(addTensor);
  case Variant::OptionalTensor:
    return addOptional(content);
  case Variant::OptionalTensors:
    return content.forEachElement(addOptional);
  case Variant::SymScalar: {
    Cursor name;
    if (failed(content.read({{"as_name", name}})))
      return failure();
    return addName(name, /*isScalar=*/true);
  }
  default:
    return output.expected("as_tensor, as_tensors, as_none or a symbolic "
                           "scalar");
  }
}
