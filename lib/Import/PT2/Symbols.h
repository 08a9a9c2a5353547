//===- Symbols.h - Symbolic sizes -------------------------------*- C++ -*-===//
//
// Archives write symbolic sizes as sympy expressions: `Add(Symbol('s70', ...),
// Integer(1))`. This evaluates them where the user has bound the symbols to
// integers, and only reads them where not.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_IMPORT_PT2_SYMBOLS_H
#define FSDP_LIB_IMPORT_PT2_SYMBOLS_H

#include "JSON.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"

#include <optional>

namespace fsdp::pt2 {

/// A fraction in lowest terms; truth values are 0 and 1.
struct Rational {
  int64_t numerator = 0, denominator = 1;
  bool isInteger() const { return denominator == 1; }
};

/// A value that is known, or depends on symbols without a value.
using Known = std::optional<Rational>;

class Symbols {
public:
  /// Reads the name that the model's author has given a symbol; from then on
  /// it is the symbol's name everywhere.
  mlir::LogicalResult readName(llvm::StringRef name, const Cursor &symbol);

  /// Reads `bind`: "", "hint", or "batch=16,s72=2".
  mlir::LogicalResult parseBindings(const Document &document,
                                    llvm::StringRef bind);

  /// Reads the ranges of all symbols, and checks the bindings against them.
  mlir::LogicalResult readRanges(const Cursor &ranges);

  /// Notes the example value of `size`, one of an input's, if it is a symbol
  /// that is to be bound to it.
  mlir::LogicalResult takeHint(const Cursor &size);

  /// The value of an expression. Reports what is no expression, or has no
  /// value (a division by zero, an overflow).
  mlir::LogicalResult evaluate(const Cursor &expression, Known &value);

  /// A size: an integer, or an expression and the value it had in the example.
  /// If it can't be known, `value` is dynamic and `hint` the example's value.
  mlir::LogicalResult readSize(const Cursor &size, int64_t &value,
                               int64_t &hint);

  /// The ranges of the symbols that have no value: `{s70 = [2, 64]}`.
  mlir::DictionaryAttr getUnbound(mlir::MLIRContext *context) const;

  /// The name if `expression` is nothing but a symbol.
  std::optional<llvm::StringRef> getSymbol(llvm::StringRef expression) const;

  /// The value of a symbol, if it has one.
  std::optional<int64_t> lookup(llvm::StringRef symbol) const;

private:
  struct Range {
    std::optional<int64_t> min, max;
  };
  mlir::LogicalResult bind(const Cursor &where, llvm::StringRef symbol,
                           int64_t value);

  llvm::StringRef getName(llvm::StringRef symbol) const;

  bool useHints = false;
  /// The names of those symbols that the author has named.
  llvm::StringMap<llvm::StringRef> names;
  llvm::MapVector<llvm::StringRef, Range> ranges;
  llvm::StringMap<int64_t> values;
  /// Expressions repeat.
  llvm::StringMap<Known> evaluated;
};

} // namespace fsdp::pt2

#endif // FSDP_LIB_IMPORT_PT2_SYMBOLS_H
