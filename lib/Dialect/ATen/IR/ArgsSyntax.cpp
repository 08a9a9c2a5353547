//===- ArgsSyntax.cpp - How arguments are written -------------------------===//
//
// Parser and printer of argument lists.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ArgsSyntax.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/TypeSwitch.h"

#include <charconv>
#include <cmath>
#include <limits>

using namespace mlir;
using namespace fsdp;
using namespace fsdp::aten;

//===----------------------------------------------------------------------===//
// Parser
//===----------------------------------------------------------------------===//

namespace {
class ArgsParser {
public:
  ArgsParser(AsmParser &parser, function_ref<ParseResult(bool &)> parsePlace)
      : parser(parser), builder(parser.getBuilder()), parsePlace(parsePlace) {}

  /// A value, or if `keyword` is given `name = value`.
  ParseResult parse(Attribute &value, StringAttr *keyword);

private:
  ParseResult parseList(Attribute &value);
  ParseResult parseNumber(Attribute &value);
  ParseResult parseWord(StringRef word, Attribute &value);

  AsmParser &parser;
  Builder &builder;
  function_ref<ParseResult(bool &)> parsePlace;
};
} // namespace

ParseResult ArgsParser::parse(Attribute &value, StringAttr *keyword) {
  bool isPlace = false;
  if (parsePlace(isPlace))
    return failure();
  if (isPlace) {
    value = OperandAttr::get(parser.getContext());
    return success();
  }
  if (succeeded(parser.parseOptionalLSquare()))
    return parseList(value);
  std::string text;
  if (succeeded(parser.parseOptionalString(&text))) {
    value = builder.getStringAttr(text);
    return success();
  }
  StringRef word;
  if (failed(parser.parseOptionalKeyword(&word)))
    return parseNumber(value);
  if (keyword && succeeded(parser.parseOptionalEqual())) {
    *keyword = builder.getStringAttr(word);
    return parse(value, nullptr);
  }
  return parseWord(word, value);
}

ParseResult ArgsParser::parseList(Attribute &value) {
  SmallVector<Attribute> elements;
  if (failed(parser.parseOptionalRSquare()) &&
      (parser.parseCommaSeparatedList(
           [&] { return parse(elements.emplace_back(), nullptr); }) ||
       parser.parseRSquare()))
    return failure();
  value = ArgsAttr::getList(parser.getContext(), elements);
  return success();
}

ParseResult ArgsParser::parseNumber(Attribute &value) {
  auto loc = parser.getCurrentLocation();
  bool isNegative = succeeded(parser.parseOptionalMinus());
  if (isNegative && succeeded(parser.parseOptionalKeyword("inf"))) {
    value = builder.getF64FloatAttr(-std::numeric_limits<double>::infinity());
    return success();
  }
  APInt integer;
  OptionalParseResult isInteger = parser.parseOptionalInteger(integer);
  if (isInteger.has_value()) {
    if (failed(*isInteger))
      return failure();
    integer = integer.zext(integer.getBitWidth() + 1);
    if (isNegative)
      integer.negate();
    if (!integer.isSignedIntN(64))
      return parser.emitError(loc, "integer does not fit into 64 bits");
    value = builder.getI64IntegerAttr(integer.getSExtValue());
    return success();
  }
  double number;
  if (parser.parseFloat(number))
    return failure();
  value = builder.getF64FloatAttr(isNegative ? -number : number);
  return success();
}

ParseResult ArgsParser::parseWord(StringRef word, Attribute &value) {
  MLIRContext *context = parser.getContext();
  auto loc = parser.getCurrentLocation();
  Type type = getElementType(context, word);
  if (word == "complex") {
    StringRef part;
    if (parser.parseLess() || parser.parseKeyword(&part) ||
        parser.parseGreater())
      return failure();
    type = getElementType(context, ("complex<" + part + ">").str());
  }
  if (word == "none")
    value = builder.getUnitAttr();
  else if (word == "true" || word == "false")
    value = builder.getBoolAttr(word == "true");
  else if (word == "inf")
    value = builder.getF64FloatAttr(std::numeric_limits<double>::infinity());
  else if (word == "nan")
    value = builder.getF64FloatAttr(std::numeric_limits<double>::quiet_NaN());
  else if (type)
    value = TypeAttr::get(type);
  else if (auto device = symbolizeDevice(word))
    value = DeviceAttr::get(context, *device);
  else if (auto layout = symbolizeLayout(word))
    value = LayoutAttr::get(context, *layout);
  else if (auto format = symbolizeMemoryFormat(word))
    value = MemoryFormatAttr::get(context, *format);
  else
    return parser.emitError(loc) << "unknown argument '" << word << "'";
  return success();
}

ParseResult aten::parseArgs(AsmParser &parser, ArgsAttr &args,
                            function_ref<ParseResult(bool &)> parsePlace) {
  ArgsParser argsParser(parser, parsePlace);
  SmallVector<Attribute> values;
  SmallVector<StringAttr> keywords;
  auto loc = parser.getCurrentLocation();
  auto parseArg = [&]() -> ParseResult {
    StringAttr keyword;
    auto argLoc = parser.getCurrentLocation();
    if (argsParser.parse(values.emplace_back(), &keyword))
      return failure();
    if (keyword)
      keywords.push_back(keyword);
    else if (!keywords.empty())
      return parser.emitError(argLoc, "positional argument after a named one");
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, parseArg))
    return failure();
  auto emitError = [&] { return parser.emitError(loc); };
  args = ArgsAttr::getChecked(function_ref<InFlightDiagnostic()>(emitError),
                              parser.getContext(), ArrayRef(values),
                              ArrayRef(keywords));
  return success(args != nullptr);
}

//===----------------------------------------------------------------------===//
// Printer
//===----------------------------------------------------------------------===//

/// The shortest text that reads back as `number`, with a point so that it is a
/// float to MLIR's lexer.
static void printFloat(raw_ostream &os, double number) {
  if (std::isnan(number)) {
    os << "nan";
    return;
  }
  if (std::isinf(number)) {
    os << (number < 0 ? "-inf" : "inf");
    return;
  }
  char buffer[32];
  auto end = std::to_chars(buffer, std::end(buffer), number).ptr;
  StringRef text(buffer, end - buffer);
  auto [mantissa, exponent] = text.split('e');
  os << mantissa << (mantissa.contains('.') ? "" : ".0");
  if (!exponent.empty())
    os << 'e' << exponent;
}

static void printArg(AsmPrinter &printer, Attribute value,
                     function_ref<void()> printPlace) {
  raw_ostream &os = printer.getStream();
  auto printList = [&](auto elements, auto printElement) {
    os << '[';
    llvm::interleaveComma(elements, os, printElement);
    os << ']';
  };
  auto printBool = [&](bool element) { os << (element ? "true" : "false"); };
  TypeSwitch<Attribute>(value)
      .Case([&](OperandAttr) { printPlace(); })
      .Case([&](BoolAttr attr) { printBool(attr.getValue()); })
      .Case([&](IntegerAttr attr) { os << attr.getInt(); })
      .Case([&](FloatAttr attr) { printFloat(os, attr.getValueAsDouble()); })
      .Case([&](UnitAttr) { os << "none"; })
      .Case([&](StringAttr attr) { printer.printString(attr.getValue()); })
      .Case([&](TypeAttr attr) { os << attr.getValue(); })
      .Case([&](DeviceAttr attr) { os << attr.getValue(); })
      .Case([&](LayoutAttr attr) { os << attr.getValue(); })
      .Case([&](MemoryFormatAttr attr) { os << attr.getValue(); })
      .Case([&](DenseI64ArrayAttr attr) {
        printList(attr.asArrayRef(), [&](int64_t element) { os << element; });
      })
      .Case([&](DenseF64ArrayAttr attr) {
        printList(attr.asArrayRef(),
                  [&](double element) { printFloat(os, element); });
      })
      .Case([&](DenseBoolArrayAttr attr) {
        printList(attr.asArrayRef(), printBool);
      })
      .Case([&](ArrayAttr attr) {
        printList(attr.getValue(), [&](Attribute element) {
          printArg(printer, element, printPlace);
        });
      });
}

void aten::printArgs(AsmPrinter &printer, ArgsAttr args,
                     function_ref<void()> printPlace) {
  unsigned index = 0, positional = args.getNumPositional();
  printer << '(';
  llvm::interleaveComma(args.getValues(), printer, [&](Attribute value) {
    if (index >= positional)
      printer << args.getKeywords()[index - positional].getValue() << " = ";
    printArg(printer, value, printPlace);
    ++index;
  });
  printer << ')';
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

ParseResult aten::parseCallee(OpAsmParser &parser, OpNameAttr &callee) {
  std::string name;
  auto loc = parser.getCurrentLocation();
  if (parser.parseString(&name))
    return failure();
  auto emitError = [&] { return parser.emitError(loc); };
  callee = OpNameAttr::getChecked(function_ref<InFlightDiagnostic()>(emitError),
                                  parser.getContext(), StringRef(name));
  return success(callee != nullptr);
}

void aten::printCallee(OpAsmPrinter &printer, Operation *, OpNameAttr callee) {
  printer.printString(callee.getName());
}

ParseResult
aten::parseCallArgs(OpAsmParser &parser, ArgsAttr &args,
                    SmallVectorImpl<OpAsmParser::UnresolvedOperand> &inputs) {
  return parseArgs(parser, args, [&](bool &isPlace) -> ParseResult {
    OpAsmParser::UnresolvedOperand operand;
    OptionalParseResult result = parser.parseOptionalOperand(operand);
    isPlace = result.has_value();
    if (!isPlace)
      return success();
    inputs.push_back(operand);
    return *result;
  });
}

void aten::printCallArgs(OpAsmPrinter &printer, Operation *, ArgsAttr args,
                         OperandRange inputs) {
  auto next = inputs.begin();
  printArgs(printer, args, [&] { printer.printOperand(*next++); });
}
