//===- Symbols.cpp - Symbolic sizes ---------------------------------------===//
//
// Ranges and values of symbols, and sizes that depend on them.
//
//===----------------------------------------------------------------------===//

#include "Symbols.h"
#include "Expression.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace fsdp::pt2;

LogicalResult Symbols::readName(StringRef name, const Cursor &cursor) {
  StringRef symbol;
  if (failed(cursor.read(symbol)))
    return failure();
  bool isTaken = llvm::any_of(
      names, [&](const auto &entry) { return entry.second == name; });
  if (isTaken || !names.try_emplace(symbol, name).second)
    return cursor.error() << "symbol " << quote(symbol) << " or its name "
                          << quote(name) << " occurs twice";
  return success();
}

StringRef Symbols::getName(StringRef symbol) const {
  auto found = names.find(symbol);
  return found == names.end() ? symbol : found->second;
}

LogicalResult Symbols::parseBindings(const Document &document, StringRef bind) {
  if (bind == "hint") {
    useHints = true;
    return success();
  }
  if (bind.empty())
    return success();
  for (StringRef binding : llvm::split(bind, ',')) {
    auto [symbol, text] = binding.split('=');
    int64_t value = 0;
    if (symbol.empty() || text.getAsInteger(10, value) ||
        !values.try_emplace(getName(symbol), value).second)
      return document.error() << "--bind: expected 'hint' or a list of "
                                 "symbol=integer without repetition, found "
                              << quote(bind);
  }
  return success();
}

LogicalResult Symbols::bind(const Cursor &where, StringRef symbol,
                            int64_t value) {
  const Range &range = ranges[symbol];
  if ((range.min && value < *range.min) || (range.max && value > *range.max)) {
    InFlightDiagnostic diagnostic = where.error();
    diagnostic << "symbol " << quote(symbol) << " can't be " << value
               << ": it is ";
    if (range.min)
      diagnostic << "at least " << *range.min;
    if (range.max)
      diagnostic << (range.min ? " and " : "") << "at most " << *range.max;
    return diagnostic;
  }
  values[symbol] = value;
  return success();
}

LogicalResult Symbols::readRanges(const Cursor &cursor) {
  auto readRange = [&](StringRef key, const Cursor &value) -> LogicalResult {
    StringRef symbol = getName(key);
    Cursor min, max;
    if (failed(value.read({{"min_val", min}, {"max_val", max}})))
      return failure();
    Range range;
    if (!min.isNull() && failed(min.read(range.min.emplace())))
      return failure();
    if (!max.isNull() && failed(max.read(range.max.emplace())))
      return failure();
    if (!ranges.insert({symbol, range}).second)
      return value.error() << "symbol " << quote(symbol) << " occurs twice";
    auto bound = values.find(symbol);
    return bound == values.end() ? success()
                                 : bind(value, symbol, bound->second);
  };
  if (failed(cursor.forEachMember(readRange)))
    return failure();
  for (const auto &entry : values)
    if (!ranges.contains(entry.getKey())) {
      InFlightDiagnostic diagnostic = cursor.error();
      diagnostic << "--bind: there is no symbol " << quote(entry.getKey());
      if (!ranges.empty())
        diagnostic << "; there are ";
      llvm::interleave(
          ranges, [&](const auto &range) { diagnostic << range.first; },
          [&] { diagnostic << ", "; });
      return diagnostic;
    }
  return success();
}

LogicalResult Symbols::takeHint(const Cursor &size) {
  StringRef variant, text;
  Cursor value, expression, hint;
  if (!useHints)
    return success();
  if (failed(size.readUnion(variant, value)))
    return failure();
  if (variant != "as_expr")
    return success();
  if (failed(value.read({{"expr_str", expression}, {"hint", hint}})) ||
      failed(expression.read(text)))
    return failure();
  std::optional<StringRef> symbol = getSymbol(text);
  if (!symbol)
    return success();
  Cursor number;
  int64_t bound = 0;
  if (failed(hint.readUnion(variant, number)) || failed(number.read(bound)))
    return failure();
  auto [entry, inserted] = values.try_emplace(*symbol, bound);
  if (!inserted && entry->second != bound)
    return size.error() << "symbol " << quote(*symbol) << " is both "
                        << entry->second << " and " << bound;
  return bind(size, *symbol, bound);
}

std::optional<StringRef> Symbols::getSymbol(StringRef expression) const {
  if (!expression.consume_front("Symbol('"))
    return std::nullopt;
  auto [symbol, rest] = expression.split('\'');
  if (rest.contains('(') || symbol.empty())
    return std::nullopt;
  return getName(symbol);
}

std::optional<int64_t> Symbols::lookup(StringRef symbol) const {
  auto value = values.find(getName(symbol));
  if (value == values.end())
    return std::nullopt;
  return value->second;
}

LogicalResult Symbols::evaluate(const Cursor &expression, Known &value) {
  StringRef text;
  if (failed(expression.read(text)))
    return failure();
  auto [entry, inserted] = evaluated.try_emplace(text);
  if (inserted) {
    auto message = evaluateExpression(
        text, [&](StringRef symbol) { return lookup(symbol); }, entry->second);
    if (message)
      return expression.error() << *message;
  }
  value = entry->second;
  return success();
}

LogicalResult Symbols::readSize(const Cursor &size, int64_t &value,
                                int64_t &hint) {
  StringRef variant;
  Cursor content;
  if (failed(size.readUnion(variant, content)))
    return failure();
  if (variant == "as_int") {
    if (failed(content.read(value)))
      return failure();
    hint = value;
  } else if (variant == "as_expr") {
    Cursor expression, example, number;
    Known known;
    if (failed(content.read({{"expr_str", expression}, {"hint", example}})) ||
        failed(evaluate(expression, known)))
      return failure();
    if (known) {
      if (!known->isInteger())
        return size.error() << "expected an integer, found " << known->numerator
                            << "/" << known->denominator;
      value = hint = known->numerator;
    } else {
      if (example.isNull())
        return size.error() << "sizes that depend on data are not supported";
      if (failed(example.readUnion(variant, number)) ||
          failed(number.read(hint)))
        return failure();
      value = ShapedType::kDynamic;
    }
  } else {
    return size.expected("as_int or as_expr");
  }
  if (hint < 0)
    return size.error() << "expected a size that is not negative, found "
                        << hint;
  return success();
}

DictionaryAttr Symbols::getUnbound(MLIRContext *context) const {
  Builder builder(context);
  SmallVector<NamedAttribute> symbols;
  auto limit = [&](std::optional<int64_t> value) -> Attribute {
    return value ? Attribute(builder.getI64IntegerAttr(*value))
                 : builder.getUnitAttr();
  };
  for (const auto &[symbol, range] : ranges)
    if (!values.contains(symbol))
      symbols.push_back(builder.getNamedAttr(
          symbol, builder.getArrayAttr({limit(range.min), limit(range.max)})));
  return builder.getDictionaryAttr(symbols);
}
