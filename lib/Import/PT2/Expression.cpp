//===- Expression.cpp - The value of a sympy expression -------------------===//
//
// A recursive-descent parser of calls, `Name(argument, ..., key=value)`, that
// evaluates as it reads. Arithmetic is exact, on fractions of 64-bit integers.
//
//===----------------------------------------------------------------------===//

#include "Expression.h"

#include "llvm/ADT/StringExtras.h"

#include <limits>
#include <numeric>

using namespace mlir;
using namespace fsdp::pt2;

//===----------------------------------------------------------------------===//
// Fractions
//===----------------------------------------------------------------------===//

// Wide enough for sums of products of 64-bit integers.
using Wide = __int128;

/// The fraction in lowest terms, if its parts fit.
static Known makeRational(Wide numerator, Wide denominator) {
  if (denominator == 0)
    return std::nullopt;
  Wide a = numerator, b = denominator;
  while (b != 0)
    a = std::exchange(b, a % b);
  // `a` is the divisor, up to its sign; the denominator becomes positive.
  if ((a < 0) != (denominator < 0))
    a = -a;
  numerator /= a;
  denominator /= a;
  constexpr Wide max = std::numeric_limits<int64_t>::max();
  if (numerator > max || numerator < -max || denominator > max)
    return std::nullopt;
  return Rational{static_cast<int64_t>(numerator),
                  static_cast<int64_t>(denominator)};
}

static Known add(Rational a, Rational b) {
  return makeRational(Wide(a.numerator) * b.denominator +
                          Wide(b.numerator) * a.denominator,
                      Wide(a.denominator) * b.denominator);
}

static Known multiply(Rational a, Rational b) {
  return makeRational(Wide(a.numerator) * b.numerator,
                      Wide(a.denominator) * b.denominator);
}

static Known divide(Rational a, Rational b) {
  return makeRational(Wide(a.numerator) * b.denominator,
                      Wide(a.denominator) * b.numerator);
}

static Rational floorOf(Rational a) {
  int64_t quotient = a.numerator / a.denominator;
  if (a.numerator < 0 && a.numerator % a.denominator != 0)
    --quotient;
  return {quotient, 1};
}

static Rational negate(Rational a) { return {-a.numerator, a.denominator}; }

static Known modulo(Rational a, Rational b) {
  Known quotient = divide(a, b);
  if (!quotient)
    return std::nullopt;
  Known product = multiply(floorOf(*quotient), b);
  return product ? add(a, negate(*product)) : std::nullopt;
}

static int compare(Rational a, Rational b) {
  Wide left = Wide(a.numerator) * b.denominator;
  Wide right = Wide(b.numerator) * a.denominator;
  return (left > right) - (left < right);
}

static Known power(Rational base, Rational exponent) {
  if (!exponent.isInteger() || std::abs(exponent.numerator) > 64)
    return std::nullopt;
  Known result = Rational{1, 1};
  for (int64_t i = 0; result && i < std::abs(exponent.numerator); ++i)
    result = exponent.numerator > 0 ? multiply(*result, base)
                                    : divide(*result, base);
  return result;
}

//===----------------------------------------------------------------------===//
// Functions
//===----------------------------------------------------------------------===//

template <Known (*combine)(Rational, Rational)>
static Known fold(ArrayRef<Rational> arguments) {
  Known result = arguments.front();
  for (Rational argument : arguments.drop_front())
    if (result)
      result = combine(*result, argument);
  return result;
}

static Known maximum(Rational a, Rational b) {
  return compare(a, b) >= 0 ? a : b;
}
static Known minimum(Rational a, Rational b) {
  return compare(a, b) <= 0 ? a : b;
}
static Known floorDivide(Rational a, Rational b) {
  Known quotient = divide(a, b);
  return quotient ? Known(floorOf(*quotient)) : std::nullopt;
}
static Known ceilDivide(Rational a, Rational b) {
  Known quotient = floorDivide(negate(a), b);
  return quotient ? Known(negate(*quotient)) : std::nullopt;
}
static Known cleanDivide(Rational a, Rational b) {
  Known quotient = divide(a, b);
  return quotient && quotient->isInteger() ? quotient : std::nullopt;
}
static Known truth(bool value) { return Rational{value, 1}; }

using Args = ArrayRef<Rational>;

template <bool (*holds)(int)> static Known relation(Args a) {
  return truth(holds(compare(a[0], a[1])));
}
static bool isEqual(int order) { return order == 0; }
static bool isUnequal(int order) { return order != 0; }
static bool isLess(int order) { return order < 0; }
static bool isAtMost(int order) { return order <= 0; }
static bool isGreater(int order) { return order > 0; }
static bool isAtLeast(int order) { return order >= 0; }

static Known same(Args a) { return a[0]; }
static Known floorFunction(Args a) { return floorOf(a[0]); }
static Known ceilFunction(Args a) { return negate(floorOf(negate(a[0]))); }
static Known truncate(Args a) {
  return Rational{a[0].numerator / a[0].denominator, 1};
}
static Known absolute(Args a) {
  return Rational{std::abs(a[0].numerator), a[0].denominator};
}
static Known invert(Args a) { return truth(a[0].numerator == 0); }
static Known select(Args a) { return a[0].numerator ? a[1] : a[2]; }
static Known modularIndex(Args a) {
  Known quotient = floorDivide(a[0], a[1]);
  return quotient ? modulo(*quotient, a[2]) : std::nullopt;
}

namespace {
/// A function, and how many arguments it takes; a maximum of 0 is none.
struct Function {
  StringRef name;
  Known (*apply)(Args);
  unsigned min, max;
};
} // namespace

static const Function functions[] = {
    {"Integer", same, 1, 1},
    {"Add", fold<add>, 1, 0},
    {"Mul", fold<multiply>, 1, 0},
    {"Max", fold<maximum>, 1, 0},
    {"Min", fold<minimum>, 1, 0},
    {"And", fold<minimum>, 1, 0},
    {"Or", fold<maximum>, 1, 0},
    {"Not", invert, 1, 1},
    {"Pow", fold<power>, 2, 2},
    {"PowByNatural", fold<power>, 2, 2},
    {"Mod", fold<modulo>, 2, 2},
    {"PythonMod", fold<modulo>, 2, 2},
    {"FloorDiv", fold<floorDivide>, 2, 2},
    {"CeilDiv", fold<ceilDivide>, 2, 2},
    {"CleanDiv", fold<cleanDivide>, 2, 2},
    {"Rational", fold<divide>, 2, 2},
    {"IntTrueDiv", fold<divide>, 2, 2},
    {"FloatTrueDiv", fold<divide>, 2, 2},
    {"ModularIndexing", modularIndex, 3, 3},
    {"Identity", same, 1, 1},
    {"ToFloat", same, 1, 1},
    {"floor", floorFunction, 1, 1},
    {"FloorToInt", floorFunction, 1, 1},
    {"ceiling", ceilFunction, 1, 1},
    {"CeilToInt", ceilFunction, 1, 1},
    {"TruncToInt", truncate, 1, 1},
    {"Abs", absolute, 1, 1},
    {"Where", select, 3, 3},
    {"Equality", relation<isEqual>, 2, 2},
    {"Unequality", relation<isUnequal>, 2, 2},
    {"StrictLessThan", relation<isLess>, 2, 2},
    {"LessThan", relation<isAtMost>, 2, 2},
    {"StrictGreaterThan", relation<isGreater>, 2, 2},
    {"GreaterThan", relation<isAtLeast>, 2, 2},
};

//===----------------------------------------------------------------------===//
// Parser
//===----------------------------------------------------------------------===//

namespace {
class Parser {
public:
  Parser(StringRef text, function_ref<std::optional<int64_t>(StringRef)> lookup)
      : text(text), lookup(lookup) {}

  std::optional<std::string> run(Known &value) {
    if (parse(value, 0) && !text.empty())
      fail("unexpected text at " + quote(text.take_front(20)));
    if (message.empty())
      return std::nullopt;
    return message;
  }

private:
  bool parse(Known &value, unsigned depth);
  bool parseSymbol(Known &value);
  bool parseCall(StringRef name, Known &value, unsigned depth);
  bool fail(const Twine &what) {
    message = what.str();
    return false;
  }
  StringRef takeIdentifier() {
    StringRef name =
        text.take_while([](char c) { return llvm::isAlnum(c) || c == '_'; });
    text = text.drop_front(name.size());
    return name;
  }

  StringRef text;
  function_ref<std::optional<int64_t>(StringRef)> lookup;
  std::string message;
};
} // namespace

bool Parser::parse(Known &value, unsigned depth) {
  if (depth > 100)
    return fail("too deep");
  int64_t number;
  if (!text.empty() && (llvm::isDigit(text.front()) || text.front() == '-')) {
    if (text.consumeInteger(10, number) || number == INT64_MIN)
      return fail("expected an integer");
    value = Rational{number, 1};
    return true;
  }
  StringRef name = takeIdentifier();
  if (name == "true" || name == "false") {
    value = truth(name == "true");
    return true;
  }
  if (name.empty() || !text.consume_front("("))
    return fail("expected a call at " +
                quote(name.empty() ? text.take_front(20) : name));
  return name == "Symbol" ? parseSymbol(value) : parseCall(name, value, depth);
}

bool Parser::parseSymbol(Known &value) {
  if (!text.consume_front("'"))
    return fail("expected the name of a symbol");
  StringRef symbol = takeIdentifier();
  if (symbol.empty() || !text.consume_front("'"))
    return fail("expected the name of a symbol");
  // Assumptions: `positive=True`.
  while (text.consume_front(", ")) {
    StringRef key = takeIdentifier();
    if (key.empty() || !text.consume_front("=") || takeIdentifier().empty())
      return fail("expected an assumption about symbol '" + symbol + "'");
  }
  if (!text.consume_front(")"))
    return fail("expected ')' after symbol '" + symbol + "'");
  value = std::nullopt;
  if (std::optional<int64_t> bound = lookup(symbol))
    value = Rational{*bound, 1};
  return true;
}

bool Parser::parseCall(StringRef name, Known &value, unsigned depth) {
  const Function *function = llvm::find_if(
      functions, [&](const Function &entry) { return entry.name == name; });
  if (function == std::end(functions))
    return fail("function '" + name + "' is not supported");
  SmallVector<Rational> arguments;
  unsigned count = 0;
  bool isKnown = true;
  if (!text.consume_front(")")) {
    do {
      Known argument;
      if (!parse(argument, depth + 1))
        return false;
      ++count;
      isKnown &= argument.has_value();
      arguments.push_back(argument.value_or(Rational()));
    } while (text.consume_front(", "));
    if (!text.consume_front(")"))
      return fail("expected ')' at " + quote(text.take_front(20)));
  }
  if (count < function->min || (function->max && count > function->max))
    return fail("wrong number of arguments of '" + name + "'");
  value = std::nullopt;
  if (!isKnown)
    return true;
  value = function->apply(arguments);
  if (!value)
    return fail("'" + name + "' has no value");
  return true;
}

std::optional<std::string> fsdp::pt2::evaluateExpression(
    StringRef text, function_ref<std::optional<int64_t>(StringRef)> lookup,
    Known &value) {
  return Parser(text, lookup).run(value);
}
