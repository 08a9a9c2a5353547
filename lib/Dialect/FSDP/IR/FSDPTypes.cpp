//===- FSDPTypes.cpp - Types of the fsdp dialect --------------------------===//
//
// Text and verification of shards, gathered units and futures.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "fsdp/Dialect/ATen/IR/Limits.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace fsdp {

/// `12704xf32`.
static ParseResult parseFlatShape(AsmParser &parser, int64_t &numel,
                                  Type &elementType) {
  SmallVector<int64_t> sizes;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseDimensionList(sizes, /*allowDynamic=*/false,
                                /*withTrailingX=*/true) ||
      parser.parseType(elementType))
    return failure();
  if (sizes.size() != 1)
    return parser.emitError(loc, "expected one size, got ") << sizes.size();
  numel = sizes.front();
  return success();
}

static void printFlatShape(AsmPrinter &printer, int64_t numel,
                           Type elementType) {
  printer << numel << 'x' << elementType;
}

static LogicalResult verifyFlat(function_ref<InFlightDiagnostic()> emitError,
                                int64_t numel, Type elementType) {
  if (numel < 0 || numel > aten::mostElements)
    return emitError() << "expected at most " << aten::mostElements
                       << " elements, got " << numel;
  if (!isa<FloatType>(elementType))
    return emitError() << "expected elements of a float type, got "
                       << elementType;
  return success();
}

LogicalResult ShardType::verify(function_ref<InFlightDiagnostic()> emitError,
                                int64_t numel, Type elementType, int64_t shards,
                                MemorySpace /*space*/) {
  if (failed(verifyFlat(emitError, numel, elementType)))
    return failure();
  if (shards < 1 || numel % shards != 0)
    return emitError() << "expected a number of shards that divides " << numel
                       << ", got " << shards;
  return success();
}

LogicalResult GatheredType::verify(function_ref<InFlightDiagnostic()> emitError,
                                   int64_t numel, Type elementType) {
  return verifyFlat(emitError, numel, elementType);
}

LogicalResult FutureType::verify(function_ref<InFlightDiagnostic()> emitError,
                                 Type valueType) {
  if (!isa<GatheredType, ShardType, RankedTensorType>(valueType))
    return emitError() << "expected a gathered unit, a shard or a tensor in "
                          "flight, got "
                       << valueType;
  return success();
}

Type getArrived(Type type) {
  auto future = dyn_cast<FutureType>(type);
  return future ? future.getValueType() : type;
}

bool isOnHost(Type type) {
  auto shard = dyn_cast<ShardType>(getArrived(type));
  return shard && shard.isOnHost();
}

MemorySpace getMemorySpace(Type type) {
  return isOnHost(type) ? MemorySpace::Host : MemorySpace::Device;
}

int64_t getLocalNumel(Type type) {
  return TypeSwitch<Type, int64_t>(type)
      .Case([](RankedTensorType type) {
        return type.hasStaticShape() ? type.getNumElements() : 0;
      })
      .Case([](ShardType type) { return type.getLocalNumel(); })
      .Case([](GatheredType type) { return type.getNumel(); })
      .Case([](FutureType type) { return getLocalNumel(type.getValueType()); })
      .Default([](Type) { return int64_t(0); });
}

int64_t getBytes(int64_t numel, Type elementType) {
  return elementType && aten::isElementType(elementType)
             ? numel * aten::getItemSize(elementType)
             : 0;
}

int64_t getMemoryBytes(Type type) {
  return getBytes(getLocalNumel(type), getElementType(type));
}

Type getElementType(Type type) {
  return TypeSwitch<Type, Type>(type)
      .Case<GatheredType, ShardType, RankedTensorType>(
          [](auto type) { return type.getElementType(); })
      .Case([](FutureType type) { return getElementType(type.getValueType()); })
      .Default([](Type) { return Type(); });
}

} // namespace fsdp

#define GET_TYPEDEF_CLASSES
#include "fsdp/Dialect/FSDP/IR/FSDPTypes.cpp.inc"

void fsdp::FSDPDialect::registerTypes() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "fsdp/Dialect/FSDP/IR/FSDPTypes.cpp.inc"
      >();
}
