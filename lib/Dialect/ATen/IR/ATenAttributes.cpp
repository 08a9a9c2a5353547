//===- ATenAttributes.cpp - Names and arguments of calls ------------------===//
//
// The operator's name with its facts, and the argument template. Layouts are in
// Layout.cpp.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ArgsSyntax.h"
#include "fsdp/Operators/OpFacts.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::aten;

//===----------------------------------------------------------------------===//
// OpNameAttr
//===----------------------------------------------------------------------===//

namespace fsdp::aten::detail {
/// A name and, found once, its facts.
struct OpNameAttrStorage : public AttributeStorage {
  using KeyTy = StringRef;

  OpNameAttrStorage(StringRef name, const operators::OpFacts *facts)
      : name(name), facts(facts) {}
  bool operator==(const KeyTy &key) const { return key == name; }
  static OpNameAttrStorage *construct(AttributeStorageAllocator &allocator,
                                      const KeyTy &key) {
    StringRef name = allocator.copyInto(key);
    return new (allocator.allocate<OpNameAttrStorage>())
        OpNameAttrStorage(name, operators::lookupOpFacts(name));
  }

  StringRef name;
  const operators::OpFacts *facts;
};
} // namespace fsdp::aten::detail

StringRef OpNameAttr::getName() const { return getImpl()->name; }

const operators::OpFacts *OpNameAttr::getFacts() const {
  return getImpl()->facts;
}

std::string OpNameAttr::getQualifiedName() const {
  StringRef name = getName();
  return (name.contains("::") ? name : "aten::" + name).str();
}

static bool isIdentifier(StringRef text) {
  return !text.empty() && !llvm::isDigit(text.front()) &&
         llvm::all_of(text,
                      [](char c) { return llvm::isAlnum(c) || c == '_'; });
}

LogicalResult OpNameAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                 StringRef name) {
  StringRef space = "torch", rest = name;
  if (name.contains("::"))
    std::tie(space, rest) = name.split("::");
  auto [base, overload] = rest.split('.');
  if (!isIdentifier(space) || !isIdentifier(base) ||
      (base != rest && !isIdentifier(overload)))
    return emitError() << "N1: expected [namespace::]operator[.overload], "
                          "found '"
                       << name << "'";
  if (overload == "default" || space == "aten")
    return emitError() << "N2: the default overload and the namespace aten are "
                          "not spelled out, found '"
                       << name << "'";
  return success();
}

//===----------------------------------------------------------------------===//
// ArgsAttr
//===----------------------------------------------------------------------===//

static bool isInt(Attribute value) {
  auto integer = dyn_cast<IntegerAttr>(value);
  return integer && integer.getType().isSignlessInteger(64);
}

static bool isFloat(Attribute value) {
  auto number = dyn_cast<FloatAttr>(value);
  return number && number.getType().isF64();
}

Attribute ArgsAttr::getList(MLIRContext *context,
                            ArrayRef<Attribute> elements) {
  if (llvm::all_of(elements, isInt))
    return DenseI64ArrayAttr::get(
        context, llvm::map_to_vector(elements, [](Attribute element) {
          return cast<IntegerAttr>(element).getInt();
        }));
  if (llvm::all_of(elements, isFloat))
    return DenseF64ArrayAttr::get(
        context, llvm::map_to_vector(elements, [](Attribute element) {
          return cast<FloatAttr>(element).getValueAsDouble();
        }));
  if (llvm::all_of(elements, llvm::IsaPred<BoolAttr>))
    return DenseBoolArrayAttr::get(
        context, llvm::map_to_vector(elements, [](Attribute element) {
          return cast<BoolAttr>(element).getValue();
        }));
  return ArrayAttr::get(context, elements);
}

unsigned ArgsAttr::countPlaces(Attribute value) {
  if (auto list = dyn_cast<ArrayAttr>(value))
    return llvm::count_if(list, llvm::IsaPred<OperandAttr>);
  return isa<OperandAttr>(value);
}

unsigned ArgsAttr::countPlaces() const {
  unsigned places = 0;
  for (Attribute value : getValues())
    places += countPlaces(value);
  return places;
}

std::optional<unsigned> ArgsAttr::find(StringRef keyword) const {
  for (auto [index, name] : llvm::enumerate(getKeywords()))
    if (name == keyword)
      return getNumPositional() + index;
  return std::nullopt;
}

LogicalResult ArgsAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               ArrayRef<Attribute> values,
                               ArrayRef<StringAttr> keywords) {
  auto isScalar = [](Attribute value) {
    auto text = dyn_cast<StringAttr>(value);
    return isInt(value) || isFloat(value) || isa<BoolAttr, UnitAttr>(value) ||
           isa<OperandAttr>(value) || (text && isa<NoneType>(text.getType()));
  };
  for (Attribute value : values) {
    auto dtype = dyn_cast<TypeAttr>(value);
    auto list = dyn_cast<ArrayAttr>(value);
    if (!isScalar(value) && !list &&
        !isa<DenseI64ArrayAttr, DenseF64ArrayAttr, DenseBoolArrayAttr,
             DeviceAttr, LayoutAttr, MemoryFormatAttr>(value) &&
        !(dtype && isa<IntegerType, FloatType, ComplexType>(dtype.getValue())))
      return emitError() << "G1: " << value << " can't be an argument";
    auto numbers = dyn_cast<DenseArrayAttr>(value);
    bool isCanonical =
        list ? llvm::all_of(list, isScalar) &&
                   getList(value.getContext(), list.getValue()) == list
             : !numbers || !numbers.empty() || isa<DenseI64ArrayAttr>(value);
    if (!isCanonical)
      return emitError() << "G2: " << value << " is not a canonical list";
  }
  llvm::SmallDenseSet<StringAttr> seen;
  for (StringAttr keyword : keywords)
    if (!isIdentifier(keyword) || !seen.insert(keyword).second)
      return emitError() << "G3: " << keyword
                         << " is no identifier, or occurs twice";
  if (keywords.size() > values.size())
    return emitError() << "G3: there are more names than values";
  return success();
}

Attribute ArgsAttr::parse(AsmParser &parser, Type) {
  auto parsePlace = [&](bool &isPlace) -> ParseResult {
    isPlace = succeeded(parser.parseOptionalQuestion());
    return success();
  };
  ArgsAttr args;
  if (parser.parseLess() || parseArgs(parser, args, parsePlace) ||
      parser.parseGreater())
    return {};
  return args;
}

void ArgsAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printArgs(printer, *this, [&] { printer << '?'; });
  printer << '>';
}

//===----------------------------------------------------------------------===//
// Generated definitions
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ATenEnums.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "fsdp/Dialect/ATen/IR/ATenAttributes.cpp.inc"

void ATenDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "fsdp/Dialect/ATen/IR/ATenAttributes.cpp.inc"
      >();
}
