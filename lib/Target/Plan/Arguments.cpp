//===- Arguments.cpp - Launch arguments, between dialect and file ---------===//

#include "Arguments.h"

#include "fsdp/Archive/DType.h"
#include "fsdp/Operators/OpFacts.h"

#include "mlir/IR/AsmState.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/TypeSwitch.h"

#include <cstring>
#include <limits>

using namespace mlir;
using namespace fsdp;
namespace pf = fsdp::planfile;

//===----------------------------------------------------------------------===//
// Element types
//===----------------------------------------------------------------------===//

std::optional<pf::DType> fsdp::toPlanDType(Type type) {
  auto complex = dyn_cast<ComplexType>(type);
  Type part = complex ? complex.getElementType() : type;
  if (!part.isIntOrFloat())
    return std::nullopt;
  size_t bits = std::max(8u, part.getIntOrFloatBitWidth()) << bool(complex);
  for (pf::DType dtype : pf::EnumValuesDType())
    if (archive::getItemSize(archive::DType(dtype)) * 8 == bits &&
        fromPlanDType(dtype, type.getContext()) == type)
      return dtype;
  return std::nullopt;
}

Type fsdp::fromPlanDType(pf::DType dtype, MLIRContext *context) {
  // The first element types of the archive's table are those of the plan file.
  return aten::getElementType(context,
                              archive::getMLIRName(archive::DType(dtype)));
}

//===----------------------------------------------------------------------===//
// Constants
//===----------------------------------------------------------------------===//

std::vector<uint64_t> ConstantValue::bits() const {
  std::vector<uint64_t> result(floats.size());
  if (!floats.empty())
    std::memcpy(result.data(), floats.data(), floats.size() * sizeof(double));
  return result;
}

flatbuffers::Offset<pf::Constant>
fsdp::writeConstant(flatbuffers::FlatBufferBuilder &fbb,
                    const ConstantValue &value) {
  auto write = [&]() -> flatbuffers::Offset<void> {
    switch (value.kind) {
    case pf::Value::Int:
      return pf::CreateInt(fbb, value.integers[0]).Union();
    case pf::Value::Float:
      return pf::CreateFloat(fbb, value.floats[0]).Union();
    case pf::Value::Bool:
      return pf::CreateBool(fbb, value.integers[0] != 0).Union();
    case pf::Value::Text:
      return pf::CreateTextDirect(fbb, value.text.c_str()).Union();
    case pf::Value::Ints:
      return pf::CreateIntsDirect(fbb, &value.integers).Union();
    case pf::Value::Floats:
      return pf::CreateFloatsDirect(fbb, &value.floats).Union();
    case pf::Value::Bools: {
      std::vector<uint8_t> truths(value.integers.begin(), value.integers.end());
      return pf::CreateBoolsDirect(fbb, &truths).Union();
    }
    case pf::Value::Type:
      return pf::CreateType(fbb, pf::DType(value.integers[0])).Union();
    case pf::Value::Device:
      return pf::CreateDevice(fbb).Union();
    case pf::Value::MemoryFormat:
      return pf::CreateMemoryFormat(fbb, uint8_t(value.integers[0])).Union();
    case pf::Value::Layout:
      return pf::CreateLayout(fbb).Union();
    case pf::Value::Refs: {
      std::vector<int32_t> refs(value.integers.begin(), value.integers.end());
      return pf::CreateRefsDirect(fbb, &refs).Union();
    }
    default:
      return pf::CreateNone(fbb).Union();
    }
  };
  flatbuffers::Offset<void> offset = write();
  return pf::CreateConstant(fbb, value.kind, offset);
}

// In the order of the plan file: contiguous, preserve, channels_last,
// channels_last_3d.
static constexpr aten::MemoryFormat memoryFormats[] = {
    aten::MemoryFormat::Contiguous, aten::MemoryFormat::Preserve,
    aten::MemoryFormat::ChannelsLast, aten::MemoryFormat::ChannelsLast3D};

Attribute fsdp::readConstant(const pf::Constant &constant, aten::Device device,
                             MLIRContext *context) {
  Builder builder(context);
  switch (constant.value_type()) {
  case pf::Value::Int:
    return builder.getI64IntegerAttr(constant.value_as_Int()->value());
  case pf::Value::Float:
    return builder.getF64FloatAttr(constant.value_as_Float()->value());
  case pf::Value::Bool:
    return builder.getBoolAttr(constant.value_as_Bool()->value());
  case pf::Value::Text:
    return builder.getStringAttr(
        constant.value_as_Text()->value()->string_view());
  case pf::Value::Ints: {
    auto *values = constant.value_as_Ints()->values();
    return builder.getDenseI64ArrayAttr(
        SmallVector<int64_t>(values->begin(), values->end()));
  }
  case pf::Value::Floats: {
    auto *values = constant.value_as_Floats()->values();
    SmallVector<double> floats(values->begin(), values->end());
    return floats.empty() ? Attribute(builder.getDenseI64ArrayAttr({}))
                          : builder.getDenseF64ArrayAttr(floats);
  }
  case pf::Value::Bools: {
    auto *values = constant.value_as_Bools()->values();
    SmallVector<bool> truths;
    for (uint8_t value : *values)
      truths.push_back(value != 0);
    return truths.empty() ? Attribute(builder.getDenseI64ArrayAttr({}))
                          : builder.getDenseBoolArrayAttr(truths);
  }
  case pf::Value::Type:
    return TypeAttr::get(
        fromPlanDType(constant.value_as_Type()->value(), context));
  case pf::Value::MemoryFormat:
    return aten::MemoryFormatAttr::get(
        context, memoryFormats[constant.value_as_MemoryFormat()->value() % 4]);
  case pf::Value::Device:
    return aten::DeviceAttr::get(context, device);
  case pf::Value::Layout:
    return aten::LayoutAttr::get(context, aten::Layout::Strided);
  default:
    return builder.getUnitAttr();
  }
}

FailureOr<std::vector<uint8_t>>
fsdp::getBytes(Operation *op, ElementsAttr elements, RankedTensorType type) {
  size_t itemSize = aten::getItemSize(type.getElementType());
  std::vector<uint8_t> logical; // row-major
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(elements)) {
    AsmResourceBlob *blob = resource.getRawHandle().getBlob();
    if (!blob)
      return op->emitOpError()
             << "expected the content of a constant, found an empty resource";
    logical.assign(blob->getData().begin(), blob->getData().end());
  } else if (auto dense = dyn_cast<DenseElementsAttr>(elements)) {
    if (type.getElementType().isInteger(1)) {
      for (bool value : dense.getValues<bool>())
        logical.push_back(value);
    } else {
      ArrayRef<char> raw = dense.getRawData();
      for (int64_t i = 0, e = dense.isSplat() ? type.getNumElements() : 1;
           i != e; ++i)
        logical.insert(logical.end(), raw.begin(), raw.end());
    }
  }
  if (logical.size() != size_t(type.getNumElements()) * itemSize)
    return op->emitOpError()
           << "expected a value of " << type.getNumElements() * itemSize
           << " bytes, found " << logical.size();
  if (aten::isDense(type))
    return logical;

  std::vector<uint8_t> placed(plan::getExtent(type));
  SmallVector<int64_t> index(type.getRank()), strides = aten::getStrides(type);
  for (size_t from = 0; from != logical.size(); from += itemSize) {
    int64_t to = 0;
    for (auto [i, stride] : llvm::zip_equal(index, strides))
      to += i * stride;
    std::copy_n(logical.begin() + from, itemSize,
                placed.begin() + to * itemSize);
    for (int64_t d = type.getRank() - 1;
         d >= 0 && ++index[d] == type.getDimSize(d); --d)
      index[d] = 0;
  }
  return placed;
}

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

namespace {

using SchemaArgument = operators::OperatorSchema::Argument;

/// A constant as the schema's kind wants it: an empty list has no kind of its
/// own, and a number may stand for a list.
ConstantValue fit(ConstantValue value, const SchemaArgument &argument) {
  if (!argument.isList)
    return value;
  if (value.kind == pf::Value::Int || value.kind == pf::Value::Bool) {
    value.kind =
        value.kind == pf::Value::Int ? pf::Value::Ints : pf::Value::Bools;
    value.integers.resize(std::max<size_t>(argument.listSize, 1),
                          value.integers[0]);
  } else if (value.kind == pf::Value::Float) {
    value.kind = pf::Value::Floats;
    value.floats.resize(std::max<size_t>(argument.listSize, 1),
                        value.floats[0]);
  } else if (value.kind == pf::Value::Ints && argument.kind == "float") {
    value.kind = pf::Value::Floats;
    value.floats.assign(value.integers.begin(), value.integers.end());
    value.integers.clear();
  } else if (value.kind == pf::Value::Ints && argument.kind == "bool") {
    value.kind = pf::Value::Bools;
  } else if (value.kind == pf::Value::Ints && argument.kind == "Tensor") {
    value.kind = pf::Value::Refs;
  }
  return value;
}

/// The constant that an attribute without places stands for.
std::optional<ConstantValue> getConstant(Attribute attr) {
  return llvm::TypeSwitch<Attribute, std::optional<ConstantValue>>(attr)
      .Case([](UnitAttr) { return ConstantValue{pf::Value::None}; })
      .Case([](BoolAttr truth) {
        return ConstantValue{pf::Value::Bool, {truth.getValue()}};
      })
      .Case([](IntegerAttr integer) {
        return ConstantValue{pf::Value::Int, {integer.getInt()}};
      })
      .Case([](FloatAttr number) {
        return ConstantValue{pf::Value::Float, {}, {number.getValueAsDouble()}};
      })
      .Case([](StringAttr text) {
        return ConstantValue{pf::Value::Text, {}, {}, text.str()};
      })
      .Case([](DenseI64ArrayAttr list) {
        return ConstantValue{pf::Value::Ints, list.asArrayRef().vec()};
      })
      .Case([](DenseF64ArrayAttr list) {
        return ConstantValue{pf::Value::Floats, {}, list.asArrayRef().vec()};
      })
      .Case([](DenseBoolArrayAttr list) {
        ArrayRef<bool> truths = list.asArrayRef();
        return ConstantValue{
            pf::Value::Bools,
            std::vector<int64_t>(truths.begin(), truths.end())};
      })
      .Case([](TypeAttr type) -> std::optional<ConstantValue> {
        if (std::optional<pf::DType> dtype = toPlanDType(type.getValue()))
          return ConstantValue{pf::Value::Type, {int64_t(*dtype)}};
        return std::nullopt;
      })
      .Case([](aten::DeviceAttr) { return ConstantValue{pf::Value::Device}; })
      .Case([](aten::MemoryFormatAttr format) {
        int64_t number = llvm::find(memoryFormats, format.getValue()) -
                         std::begin(memoryFormats);
        return ConstantValue{pf::Value::MemoryFormat, {number}};
      })
      .Case([](aten::LayoutAttr layout) -> std::optional<ConstantValue> {
        if (layout.getValue() == aten::Layout::Strided)
          return ConstantValue{pf::Value::Layout};
        return std::nullopt;
      })
      .Default([](Attribute) { return std::nullopt; });
}

/// The constant that a default value in a schema is written as.
std::optional<ConstantValue> parseDefault(StringRef text,
                                          const SchemaArgument &argument) {
  if (text == "None")
    return ConstantValue{pf::Value::None};
  if (text == "True" || text == "False")
    return ConstantValue{pf::Value::Bool, {text == "True"}};
  int64_t integer = 0;
  bool isInteger = !text.getAsInteger(10, integer);
  // The dispatcher prints element types as PyTorch numbers them.
  if (argument.kind == "ScalarType" && isInteger && integer == 4)
    return ConstantValue{pf::Value::Type, {int64_t(pf::DType::I64)}};
  if (argument.kind != "float" && isInteger)
    return ConstantValue{pf::Value::Int, {integer}};
  double number = 0;
  if (!text.getAsDouble(number))
    return ConstantValue{pf::Value::Float, {}, {number}};
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\''))
    return ConstantValue{
        pf::Value::Text, {}, {}, text.drop_front().drop_back().str()};
  if (text.front() == '[' && text.back() == ']') {
    ConstantValue list{pf::Value::Ints};
    SmallVector<StringRef> pieces;
    text.drop_front().drop_back().split(pieces, ',', -1, /*KeepEmpty=*/false);
    for (StringRef piece : pieces) {
      std::optional<ConstantValue> element =
          parseDefault(piece.trim(), argument);
      if (!element)
        return std::nullopt;
      if (element->kind == pf::Value::Bool)
        list.kind = pf::Value::Bools;
      if (element->kind == pf::Value::Float)
        list.kind = pf::Value::Floats;
      llvm::append_range(list.integers, element->integers);
      llvm::append_range(list.floats, element->floats);
    }
    return list;
  }
  // The enumerations that PyTorch's schemas name.
  return llvm::StringSwitch<std::optional<ConstantValue>>(text)
      .Case("Mean", ConstantValue{pf::Value::Int, {1}})
      .Case("Sum", ConstantValue{pf::Value::Int, {2}})
      .Case("contiguous_format", ConstantValue{pf::Value::MemoryFormat, {0}})
      .Case("long", ConstantValue{pf::Value::Type, {int64_t(pf::DType::I64)}})
      .Case("float", ConstantValue{pf::Value::Type, {int64_t(pf::DType::F32)}})
      .Case("inf", ConstantValue{pf::Value::Float,
                                 {},
                                 {std::numeric_limits<double>::infinity()}})
      .Default(std::nullopt);
}

/// The kind of a custom operator's argument, as a schema spells it.
StringRef getKind(Attribute attr) {
  return llvm::TypeSwitch<Attribute, StringRef>(attr)
      .Case([](aten::OperandAttr) { return "Tensor"; })
      .Case([](BoolAttr) { return "bool"; })
      .Case([](IntegerAttr) { return "int"; })
      .Case([](FloatAttr) { return "float"; })
      .Case([](StringAttr) { return "str"; })
      .Case([](DenseI64ArrayAttr) { return "int[]"; })
      .Case([](DenseF64ArrayAttr) { return "float[]"; })
      .Case([](DenseBoolArrayAttr) { return "bool[]"; })
      .Case([](ArrayAttr) { return "Tensor?[]"; })
      .Case([](TypeAttr) { return "ScalarType"; })
      .Case([](aten::DeviceAttr) { return "Device"; })
      .Case([](aten::LayoutAttr) { return "Layout"; })
      .Case([](aten::MemoryFormatAttr) { return "MemoryFormat"; })
      .Default([](Attribute) { return "Tensor?"; });
}

} // namespace

std::string fsdp::getSchemaText(aten::OpNameAttr callee, aten::ArgsAttr args,
                                size_t numResults) {
  if (const operators::OpFacts *facts = callee.getFacts())
    return std::string(facts->schema);
  std::string text = callee.getQualifiedName() + "(";
  for (auto [i, value] : llvm::enumerate(args.getValues())) {
    text += i ? ", " : "";
    text += getKind(value).str() + " ";
    text += i < args.getNumPositional()
                ? "_" + std::to_string(i)
                : args.getKeywords()[i - args.getNumPositional()].str();
  }
  text += ") -> ";
  if (numResults == 1)
    return text + "Tensor";
  text += "(";
  for (size_t i = 0; i != numResults; ++i)
    text += i ? ", Tensor" : "Tensor";
  return text + ")";
}

std::string fsdp::getSchemaText(plan::LaunchOp launch) {
  return getSchemaText(launch.getCalleeAttr(), launch.getArgs(),
                       launch.getPresent() ? launch.getPresent()->size()
                                           : launch.getOutputs().size());
}

FailureOr<std::vector<MatchedArgument>>
fsdp::matchArguments(Operation *op, const operators::OperatorSchema &schema,
                     aten::ArgsAttr args) {
  std::vector<MatchedArgument> result;
  unsigned positional = 0, used = 0;
  for (const SchemaArgument &argument : schema.arguments) {
    MatchedArgument &match = result.emplace_back();
    if (argument.isWritten) {
      match.kind = MatchedArgument::Written;
      continue;
    }
    std::optional<unsigned> index = args.find(argument.name);
    if (!index && positional < args.getNumPositional())
      index = positional++;
    if (!index) {
      std::optional<ConstantValue> value;
      if (argument.fallback)
        value = parseDefault(*argument.fallback, argument);
      if (!value)
        return op->emitOpError()
               << "expected an argument '" << argument.name << "'";
      match.constant = fit(std::move(*value), argument);
      continue;
    }
    ++used;
    Attribute attr = args.getValues()[*index];
    for (Attribute before : args.getValues().take_front(*index))
      match.firstOperand += aten::ArgsAttr::countPlaces(before);
    auto list = dyn_cast<ArrayAttr>(attr);
    if (isa<aten::OperandAttr>(attr)) {
      match.kind =
          argument.isList ? MatchedArgument::Tensors : MatchedArgument::Tensor;
      match.present = {true};
    } else if (list) {
      match.kind = MatchedArgument::Tensors;
      for (Attribute element : list)
        match.present.push_back(isa<aten::OperandAttr>(element));
    } else if (std::optional<ConstantValue> value = getConstant(attr)) {
      match.constant = fit(std::move(*value), argument);
    } else {
      return op->emitOpError() << "expected for '" << argument.name
                               << "' what a plan file knows, found " << attr;
    }
  }
  if (used != args.getValues().size())
    return op->emitOpError()
           << "expected at most the arguments of '" << schema.name
           << "', found " << args.getValues().size();
  return result;
}

FailureOr<LaunchArguments> fsdp::completeArguments(plan::LaunchOp launch) {
  aten::OpNameAttr callee = launch.getCalleeAttr();
  const operators::OpFacts *facts = callee.getFacts();
  std::optional<operators::OperatorSchema> custom;
  if (!facts)
    custom = operators::parseOperatorSchema(getSchemaText(launch));
  const operators::OperatorSchema *schema =
      facts    ? cast<aten::ATenDialect>(callee.getDialect()).getSchema(*facts)
      : custom ? &*custom
               : nullptr;
  if (!schema)
    return launch.emitOpError() << "expected an operator with a schema, found '"
                                << getSchemaText(launch) << "'";
  auto matched = matchArguments(launch, *schema, launch.getArgs());
  if (failed(matched))
    return failure();

  LaunchArguments result;
  auto output = launch.getOutputs().begin(),
       outputEnd = launch.getOutputs().end();
  for (auto [match, argument] : llvm::zip_equal(*matched, schema->arguments)) {
    LaunchArguments::Argument &complete = result.arguments.emplace_back();
    bool isWritten = match.kind == MatchedArgument::Written;
    complete.isTensorList = match.kind == MatchedArgument::Tensors ||
                            (isWritten && argument.isList);
    complete.isTensor = match.kind == MatchedArgument::Tensor ||
                        (isWritten && !argument.isList);
    complete.constant = match.constant;
    if (isWritten) {
      if (output == outputEnd)
        return launch.emitOpError() << "expected a buffer for the argument '"
                                    << argument.name << "'";
      // A list takes all there are: no operator that plans run writes two.
      do
        complete.tensors.push_back(*output++);
      while (argument.isList && output != outputEnd);
      continue;
    }
    auto operand = launch.getInputs().begin() + match.firstOperand;
    for (bool isPresent : match.present)
      complete.tensors.push_back(isPresent ? Value(*operand++) : Value());
  }

  if (schema->hasWrittenArguments()) {
    if (output != outputEnd)
      return launch.emitOpError() << "expected as many buffers to write as '"
                                  << getSchemaText(launch) << "' has";
    return result;
  }
  std::optional<ArrayRef<bool>> places = launch.getPresent();
  if (!places) {
    result.results.assign(output, outputEnd);
    return result;
  }
  for (bool present : *places)
    result.results.push_back(present ? Value(*output++) : Value());
  return result;
}
