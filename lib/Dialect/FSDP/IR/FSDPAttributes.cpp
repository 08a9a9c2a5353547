//===- FSDPAttributes.cpp - Attributes of the fsdp dialect ----------------===//
//
// Text and verification of layouts, divisors and states.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "fsdp/Dialect/ATen/IR/Limits.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/TypeSwitch.h"

#include <charconv>
#include <cmath>
#include <numeric>

using namespace mlir;

#define GET_ATTRDEF_CLASSES
#include "fsdp/Dialect/FSDP/IR/FSDPAttributes.cpp.inc"

namespace fsdp {

void FSDPDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "fsdp/Dialect/FSDP/IR/FSDPAttributes.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// ParameterAttr
//===----------------------------------------------------------------------===//

int64_t ParameterAttr::getNumel() const { return llvm::product_of(getSizes()); }

LogicalResult
ParameterAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                      StringAttr name, ArrayRef<int64_t> sizes, int64_t offset,
                      bool, ArrayRef<int64_t> strides, ArrayRef<StringAttr>) {
  if (offset < 0 || llvm::any_of(sizes, [](int64_t n) { return n < 0; }))
    return emitError() << "expected sizes and an offset that are not negative "
                          "of parameter "
                       << name;
  int64_t numel = 1;
  bool isTooLarge = offset > aten::mostElements;
  for (int64_t size : sizes)
    isTooLarge |= llvm::MulOverflow(numel, std::max<int64_t>(size, 1), numel) ||
                  numel > aten::mostElements;
  if (isTooLarge || numel > aten::mostElements - offset)
    return emitError() << "expected parameter " << name << " to end below "
                       << aten::mostElements << " elements";
  if (strides.empty())
    return success();
  if (strides.size() != sizes.size())
    return emitError() << "expected " << sizes.size()
                       << " strides of parameter " << name << ", got "
                       << strides.size();
  // Dense in some order: the strides are the running products of the sizes.
  SmallVector<unsigned> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  llvm::sort(order, [&](unsigned lhs, unsigned rhs) {
    return std::tuple(strides[lhs], sizes[lhs], lhs) <
           std::tuple(strides[rhs], sizes[rhs], rhs);
  });
  int64_t expected = 1;
  for (unsigned dim : order) {
    if (sizes[dim] != 1 && strides[dim] != expected)
      return emitError()
             << "expected the strides of a dense tensor of parameter " << name;
    expected *= sizes[dim];
  }
  return success();
}

/// `"wte.weight" : 128x32 at 64 frozen strides [1, 128] aliases ["head"]`,
/// without the brackets that stand around it outside a layout.
static FailureOr<ParameterAttr> parseParameterBody(AsmParser &parser) {
  std::string name; // as an attribute, the colon would announce its type
  SmallVector<int64_t> sizes, strides;
  SmallVector<StringAttr> aliases;
  int64_t offset = 0;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseString(&name) || parser.parseColon() ||
      parser.parseDimensionList(sizes, /*allowDynamic=*/false,
                                /*withTrailingX=*/false) ||
      parser.parseKeyword("at") || parser.parseInteger(offset))
    return failure();
  bool frozen = succeeded(parser.parseOptionalKeyword("frozen"));
  if (succeeded(parser.parseOptionalKeyword("strides")) &&
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
        return parser.parseInteger(strides.emplace_back());
      }))
    return failure();
  if (succeeded(parser.parseOptionalKeyword("aliases")) &&
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
        return parser.parseAttribute(aliases.emplace_back());
      }))
    return failure();
  MLIRContext *context = parser.getContext();
  auto attr = ParameterAttr::getChecked(
      [&] { return parser.emitError(loc); }, context,
      StringAttr::get(context, name), sizes, offset, frozen, strides, aliases);
  if (!attr)
    return failure();
  return attr;
}

static void printParameterBody(AsmPrinter &printer, ParameterAttr parameter) {
  printer << parameter.getName() << " : ";
  printer.printDimensionList(parameter.getSizes());
  printer << (parameter.getSizes().empty() ? "at " : " at ")
          << parameter.getOffset();
  if (parameter.getFrozen())
    printer << " frozen";
  if (!parameter.getStrides().empty()) {
    printer << " strides [";
    llvm::interleaveComma(parameter.getStrides(), printer);
    printer << ']';
  }
  if (!parameter.getAliases().empty()) {
    printer << " aliases [";
    llvm::interleaveComma(parameter.getAliases(), printer);
    printer << ']';
  }
}

Attribute ParameterAttr::parse(AsmParser &parser, Type) {
  if (parser.parseLess())
    return {};
  FailureOr<ParameterAttr> parameter = parseParameterBody(parser);
  if (failed(parameter) || parser.parseGreater())
    return {};
  return *parameter;
}

void ParameterAttr::print(AsmPrinter &printer) const {
  printer << '<';
  printParameterBody(printer, *this);
  printer << '>';
}

//===----------------------------------------------------------------------===//
// LayoutAttr
//===----------------------------------------------------------------------===//

ParameterAttr LayoutAttr::find(StringRef name) const {
  for (ParameterAttr parameter : getParameters())
    if (parameter.getName() == name)
      return parameter;
  return {};
}

bool LayoutAttr::hasTrainable() const {
  return !llvm::all_of(getParameters(), [](ParameterAttr parameter) {
    return parameter.getFrozen();
  });
}

LogicalResult LayoutAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                 ArrayRef<ParameterAttr> parameters,
                                 int64_t numel, int64_t padded) {
  if (parameters.empty())
    return emitError() << "expected at least one parameter";
  llvm::SmallPtrSet<Attribute, 16> names;
  int64_t end = 0;
  for (ParameterAttr parameter : parameters) {
    if (parameter.getOffset() < end)
      return emitError() << "expected parameter " << parameter.getName()
                         << " at or after " << end
                         << ", where the one before it ends, got "
                         << parameter.getOffset();
    end = parameter.getEnd();
    if (!names.insert(parameter.getName()).second)
      return emitError() << "name " << parameter.getName() << " occurs twice";
    for (StringAttr alias : parameter.getAliases())
      if (!names.insert(alias).second)
        return emitError() << "name " << alias << " occurs twice";
  }
  if (end > numel)
    return emitError() << "expected parameters to end inside the " << numel
                       << " elements, but they end at " << end;
  if (numel > padded)
    return emitError() << "expected at least " << numel
                       << " elements with padding, got " << padded;
  if (padded > aten::mostElements)
    return emitError() << "expected at most " << aten::mostElements
                       << " elements with padding, got " << padded;
  return success();
}

Attribute LayoutAttr::parse(AsmParser &parser, Type) {
  SmallVector<ParameterAttr> parameters;
  int64_t numel = 0, padded = 0;
  SMLoc loc = parser.getCurrentLocation();
  auto parseParameter = [&]() -> ParseResult {
    FailureOr<ParameterAttr> parameter = parseParameterBody(parser);
    if (failed(parameter))
      return failure();
    parameters.push_back(*parameter);
    return success();
  };
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square,
                                     parseParameter) ||
      parser.parseComma() || parser.parseKeyword("numel") ||
      parser.parseEqual() || parser.parseInteger(numel) ||
      parser.parseComma() || parser.parseKeyword("padded") ||
      parser.parseEqual() || parser.parseInteger(padded) ||
      parser.parseGreater())
    return {};
  return LayoutAttr::getChecked([&] { return parser.emitError(loc); },
                                parser.getContext(), parameters, numel, padded);
}

void LayoutAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getParameters(), printer, [&](ParameterAttr parameter) {
    printParameterBody(printer, parameter);
  });
  printer << "], numel = " << getNumel() << ", padded = " << getPadded() << '>';
}

//===----------------------------------------------------------------------===//
// DivideAttr
//===----------------------------------------------------------------------===//

LogicalResult DivideAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                 llvm::APFloat pre, llvm::APFloat post) {
  for (double divisor : {pre.convertToDouble(), post.convertToDouble()})
    if (!std::isfinite(divisor) || divisor < 1)
      return emitError() << "expected finite divisors of at least 1, got "
                         << divisor;
  return success();
}

/// A whole number or a decimal one.
static ParseResult parseDivisor(AsmParser &parser, StringRef name,
                                double &divisor) {
  if (parser.parseKeyword(name) || parser.parseEqual())
    return failure();
  int64_t whole = 0;
  OptionalParseResult result = parser.parseOptionalInteger(whole);
  if (!result.has_value())
    return parser.parseFloat(divisor);
  divisor = static_cast<double>(whole);
  return *result;
}

Attribute DivideAttr::parse(AsmParser &parser, Type) {
  double pre = 0, post = 0;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parseDivisor(parser, "pre", pre) ||
      parser.parseComma() || parseDivisor(parser, "post", post) ||
      parser.parseGreater())
    return {};
  return DivideAttr::getChecked([&] { return parser.emitError(loc); },
                                parser.getContext(), pre, post);
}

void DivideAttr::print(AsmPrinter &printer) const {
  // The shortest text that reads back as the same number.
  auto number = [](double divisor) {
    char text[400];
    auto end = std::to_chars(std::begin(text), std::end(text), divisor,
                             std::chars_format::fixed);
    return std::string(text, end.ptr);
  };
  printer << "<pre = " << number(getPre()) << ", post = " << number(getPost())
          << '>';
}

//===----------------------------------------------------------------------===//
// StateAttr
//===----------------------------------------------------------------------===//

LogicalResult StateAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                FlatSymbolRefAttr, StringAttr kind) {
  if (!llvm::is_contained({getParameterKind(), getGradientKind(),
                           getExpAvgKind(), getExpAvgSqKind(),
                           getMomentumKind(), getShardedGradientKind(),
                           getPartialGradientKind(), getUnshardedGradientKind(),
                           getUnshardedParameterKind()},
                          kind.getValue()))
    return emitError() << "unknown kind of state " << kind;
  return success();
}

Attribute StateAttr::parse(AsmParser &parser, Type) {
  FlatSymbolRefAttr unit;
  std::string kind;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseAttribute(unit) ||
      parser.parseComma() || parser.parseKeywordOrString(&kind) ||
      parser.parseGreater())
    return {};
  MLIRContext *context = parser.getContext();
  return StateAttr::getChecked([&] { return parser.emitError(loc); }, context,
                               unit, StringAttr::get(context, kind));
}

void StateAttr::print(AsmPrinter &printer) const {
  printer << '<' << getUnit() << ", " << getKind().getValue() << '>';
}

} // namespace fsdp
