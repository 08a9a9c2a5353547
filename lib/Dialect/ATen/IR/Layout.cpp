//===- Layout.cpp - Element types and layouts -----------------------------===//
//
// The strided layout of a tensor, and what can be computed from a tensor type.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/ATen/IR/Limits.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::aten;

//===----------------------------------------------------------------------===//
// Element types
//===----------------------------------------------------------------------===//

Type aten::getElementType(MLIRContext *context, StringRef name) {
  if (name.consume_front("complex<") && name.consume_back(">")) {
    Type part = getElementType(context, name);
    return isa_and_nonnull<FloatType>(part) ? ComplexType::get(part) : Type();
  }
  StringRef integer = name;
  auto sign = integer.consume_front("u") ? IntegerType::Unsigned
                                         : IntegerType::Signless;
  unsigned width;
  if (integer.consume_front("i") && !integer.starts_with("0") &&
      !integer.getAsInteger(10, width) && width <= 64) {
    Type type = IntegerType::get(context, width, sign);
    return isElementType(type) ? type : Type();
  }
  using Get = Type (*)(MLIRContext *);
#define GET(type)                                                              \
  [](MLIRContext *context) -> Type { return type::get(context); }
  Get get = llvm::StringSwitch<Get>(name)
                .Case("f32", GET(Float32Type))
                .Case("bf16", GET(BFloat16Type))
                .Case("f16", GET(Float16Type))
                .Case("f64", GET(Float64Type))
                .Case("f8E4M3FN", GET(Float8E4M3FNType))
                .Case("f8E5M2", GET(Float8E5M2Type))
                .Case("f8E4M3FNUZ", GET(Float8E4M3FNUZType))
                .Case("f8E5M2FNUZ", GET(Float8E5M2FNUZType))
                .Case("f8E8M0FNU", GET(Float8E8M0FNUType))
                .Default(nullptr);
#undef GET
  return get ? get(context) : Type();
}

bool aten::isElementType(Type type) {
  if (auto complex = dyn_cast<ComplexType>(type))
    return isa<FloatType>(complex.getElementType()) &&
           isElementType(complex.getElementType());
  if (auto integer = dyn_cast<IntegerType>(type)) {
    unsigned width = integer.getWidth();
    return !integer.isSigned() &&
           (width == 8 || width == 16 || width == 32 || width == 64 ||
            (width == 1 && integer.isSignless()));
  }
  return isa<Float32Type, Float16Type, BFloat16Type, Float64Type,
             Float8E4M3FNType, Float8E5M2Type, Float8E4M3FNUZType,
             Float8E5M2FNUZType, Float8E8M0FNUType>(type);
}

int64_t aten::getItemSize(Type elementType) {
  if (auto complex = dyn_cast<ComplexType>(elementType))
    return 2 * getItemSize(complex.getElementType());
  return llvm::divideCeil(elementType.getIntOrFloatBitWidth(), 8);
}

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

SmallVector<int64_t> aten::getDenseStrides(ArrayRef<int64_t> shape) {
  SmallVector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    if (ShapedType::isDynamic(shape[i]) || ShapedType::isDynamic(stride))
      stride = ShapedType::kDynamic;
    else if (llvm::MulOverflow(stride, std::max<int64_t>(shape[i], 1), stride))
      stride = std::numeric_limits<int64_t>::max();
  }
  return strides;
}

SmallVector<int64_t> aten::getStrides(RankedTensorType type) {
  if (auto layout = dyn_cast_or_null<StridedAttr>(type.getEncoding()))
    return llvm::to_vector(layout.getStrides());
  return getDenseStrides(type.getShape());
}

int64_t aten::getOffset(RankedTensorType type) {
  auto layout = dyn_cast_or_null<StridedAttr>(type.getEncoding());
  return layout ? layout.getOffset() : 0;
}

bool aten::hasKnownLayout(RankedTensorType type) {
  return type.hasStaticShape() &&
         llvm::none_of(getStrides(type), ShapedType::isDynamic) &&
         !ShapedType::isDynamic(getOffset(type));
}

bool aten::isTooLarge(RankedTensorType type) {
  int64_t numElements = 1;
  for (int64_t size : type.getShape())
    if (llvm::MulOverflow(numElements, std::max<int64_t>(size, 1),
                          numElements) ||
        numElements > mostElements)
      return true;
  auto layout = dyn_cast_or_null<StridedAttr>(type.getEncoding());
  if (!layout)
    return false;
  int64_t last = std::max<int64_t>(layout.getOffset(), 0);
  for (auto [size, step] :
       llvm::zip_equal(type.getShape(), layout.getStrides())) {
    int64_t stride = std::max<int64_t>(step, 1), reach = 0;
    if (stride > mostElements ||
        llvm::MulOverflow(std::max<int64_t>(size, 1) - 1, stride, reach) ||
        llvm::AddOverflow(last, reach, last))
      return true;
  }
  return last > mostElements;
}

RankedTensorType aten::getTensorType(ArrayRef<int64_t> shape, Type elementType,
                                     ArrayRef<int64_t> strides,
                                     int64_t offset) {
  StridedAttr layout;
  if (offset != 0 || strides != ArrayRef(getDenseStrides(shape)))
    layout = StridedAttr::get(elementType.getContext(), strides, offset);
  return RankedTensorType::get(shape, elementType, layout);
}

bool aten::isGapless(RankedTensorType type) {
  // Strides may repeat elements, as those of expand do, and still fill the
  // extent by accident: each must be the product of the sizes below it.
  SmallVector<std::pair<int64_t, int64_t>> dimensions;
  for (auto [size, stride] : llvm::zip_equal(type.getShape(), getStrides(type)))
    if (size != 1)
      dimensions.emplace_back(stride, size);
  llvm::sort(dimensions);
  int64_t expected = 1;
  for (auto [stride, size] : dimensions) {
    if (stride != expected)
      return type.getNumElements() == 0;
    expected *= size;
  }
  return true;
}

//===----------------------------------------------------------------------===//
// StridedAttr
//===----------------------------------------------------------------------===//

static void printExtent(AsmPrinter &printer, int64_t extent) {
  if (ShapedType::isDynamic(extent))
    printer << '?';
  else
    printer << extent;
}

static ParseResult parseExtent(AsmParser &parser, int64_t &extent) {
  extent = ShapedType::kDynamic;
  if (succeeded(parser.parseOptionalQuestion()))
    return success();
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseInteger(extent))
    return failure();
  // The smallest integer is how an unknown extent is kept.
  if (ShapedType::isDynamic(extent))
    return parser.emitError(loc, "expected '?' for an unknown extent, got ")
           << extent;
  return success();
}

Attribute StridedAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> strides;
  int64_t offset = 0;
  auto loc = parser.getCurrentLocation();
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
        return parseExtent(parser, strides.emplace_back());
      }))
    return {};
  if (succeeded(parser.parseOptionalComma()) &&
      (parser.parseKeyword("offset") || parser.parseEqual() ||
       parseExtent(parser, offset)))
    return {};
  if (parser.parseGreater())
    return {};
  auto emitError = [&] { return parser.emitError(loc); };
  return getChecked(function_ref<InFlightDiagnostic()>(emitError),
                    parser.getContext(), ArrayRef(strides), offset);
}

void StridedAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getStrides(), printer,
                        [&](int64_t stride) { printExtent(printer, stride); });
  printer << ']';
  if (getOffset() != 0) {
    printer << ", offset = ";
    printExtent(printer, getOffset());
  }
  printer << '>';
}

LogicalResult StridedAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                  ArrayRef<int64_t> strides, int64_t offset) {
  auto isLegal = [](int64_t extent) {
    return ShapedType::isDynamic(extent) || extent >= 0;
  };
  if (!llvm::all_of(strides, isLegal) || !isLegal(offset))
    return emitError() << "S2: expected strides and offset that are not "
                          "negative";
  return success();
}

LogicalResult StridedAttr::verifyEncoding(
    ArrayRef<int64_t> shape, Type /*elementType*/,
    function_ref<InFlightDiagnostic()> emitError) const {
  if (shape.size() != getStrides().size())
    return emitError() << "S1: expected one stride per dimension, found "
                       << getStrides().size() << " strides and " << shape.size()
                       << " dimensions";
  if (!ShapedType::isDynamicShape(shape) && getOffset() == 0 &&
      getStrides() == ArrayRef(getDenseStrides(shape)))
    return emitError() << "S3: a dense row-major tensor has no layout";
  return success();
}
