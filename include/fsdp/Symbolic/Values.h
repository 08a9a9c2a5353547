//===- Values.h - Numbers that stand for values -----------------*- C++ -*-===//
//
// Equal numbers are equal values. A number is the hash of what made the value:
// an operator, its constants, the numbers of its operands. It needs no table,
// so what the compiler writes into a plan the runtime can compute again.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_SYMBOLIC_VALUES_H
#define FSDP_SYMBOLIC_VALUES_H

#include "fsdp/Schema/plan_generated.h"
#include "fsdp/Symbolic/IndexMap.h"

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fsdp::symbolic {

using planfile::DType;
using planfile::Space;
using planfile::Stream;

using Number = uint64_t;

/// Puts together what makes a number: words, and one name.
class Key {
public:
  explicit Key(std::string_view name);
  template <typename... Words>
  Key(std::string_view name, Words... words) : Key(name) {
    (add(static_cast<uint64_t>(words)), ...);
  }
  Key &add(uint64_t word) {
    if (count == words.size())
      fold();
    words[count++] = word;
    return *this;
  }
  Key &add(const IndexMap &map);
  Number number() const;

private:
  void fold();
  std::array<uint64_t, 32> words;
  size_t count = 0;
};

Number hashText(std::string_view text);
Number hashDouble(double value);

/// The elements of a tensor by running index: those of the vector `base` at
/// the places that `map` gives. All elements of a `isUniform` base are equal.
struct Content {
  Number base = 0;
  bool isUniform = false;
  IndexMap map;

  Number number() const;
};

/// Some elements of a vector, one behind the other.
struct Piece {
  uint64_t size;
  Content content;
};
using Pieces = std::vector<Piece>;

/// Adds a piece; one that continues the last one becomes part of it.
void append(Pieces &pieces, Piece piece);

/// The vector that the pieces make, and its elements [begin, end).
Content join(const Pieces &pieces);
Pieces slice(const Pieces &pieces, uint64_t begin, uint64_t end);

/// What is known of values beyond their numbers.
class Values {
public:
  static Content uniform(double value, DType dtype);
  static Content zero(DType dtype) { return uniform(0, dtype); }
  static bool isZero(const Pieces &pieces);

  /// A vector with a name of its own.
  static Content vector(Number base, uint64_t size) {
    return {base, false, IndexMap::range(0, size)};
  }

  /// A rank's piece of `whole`, which is cut along `axes` (as bits).
  Content shard(Pieces whole, uint64_t axes, uint64_t size);
  struct Shard {
    Pieces whole;
    uint64_t axes, size;
  };
  /// The shard that the content is, wholly and in order.
  const Shard *findShard(const Content &content) const;

  /// Matrices of so many rows side by side: what is there, row by row.
  struct Matrix {
    uint64_t columns;
    Pieces elements; // row by row
  };
  Pieces beside(uint64_t rows, const std::vector<Matrix> &matrices);
  struct Row {
    uint64_t rows, columns = 0; // of all
    std::vector<Matrix> matrices = {};
  };
  /// What stands side by side in the content, if it is that, wholly and in
  /// order; and what the content is one matrix of, with its elements.
  const Row *findRow(const Content &content) const;
  const Pieces *findMatrix(const Content &content) const;

  /// From now on a cast of `from` to `dtype` is `to`.
  void defineCast(Number from, DType dtype, Number to) {
    casts[Key("cast", from, dtype).number()] = to;
  }
  Content cast(const Content &content, DType to);

  /// The sum over the ranks along `axes`, divided, summed in `via`.
  struct Sum {
    Number of;
    uint64_t axes;
    double divisor;
    DType via, dtype;
  };
  Content sum(const Content &content, uint64_t axes, double divisor, DType via,
              DType dtype);

private:
  template <typename Change>
  Content change(const Content &content, const Change &change);

  std::unordered_map<Number, Shard> shards;
  std::unordered_map<Number, Row> sides;
  std::unordered_map<Number, Number> casts;
  std::unordered_map<Number, Sum> sums;
};

} // namespace fsdp::symbolic

#endif // FSDP_SYMBOLIC_VALUES_H
