//===- Values.h - Numbers that stand for values -----------------*- C++ -*-===//
//
// Equal numbers are equal values. A number is the hash of what made the value:
// an operator, its constants, the numbers of its operands. It needs no table,
// so what the compiler writes into a plan the runtime can compute again.
//
// What the numbers can not follow becomes a value of its own, with a reason: it
// is equal to nothing else, but that does not show that it is wrong.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_SYMBOLIC_VALUES_H
#define FSDP_SYMBOLIC_VALUES_H

#include "fsdp/Schema/plan_generated.h"
#include "fsdp/Symbolic/Content.h"

#include <map>
#include <string>
#include <string_view>

namespace fsdp::symbolic {

using planfile::DType;
using planfile::ReduceKind;
using planfile::Space;
using planfile::Stream;

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
  Number number() const;

private:
  void fold();
  std::array<uint64_t, 32> words;
  size_t count = 0;
};

Number hashText(std::string_view text);
Number hashDouble(double value);

/// Along all axes all ranks have the same.
inline constexpr uint64_t everywhere = ~uint64_t(0);

/// What is known of values beyond their numbers.
class Values {
public:
  explicit Values(const Ranks &ranks = {}) : ranks(ranks), numbering(ranks) {}

  Number getNumber(const Content &content) const { return numbering(content); }

  /// Equal elements: `bits` are those of an integer, or of a double.
  static Content uniform(uint64_t bits, DType dtype, uint64_t size);
  static Content zero(DType dtype, uint64_t size) {
    return uniform(0, dtype, size);
  }
  static bool isZero(const Content &content);
  /// Axes along which all ranks have the same content.
  static uint64_t getSame(const Content &content);

  /// The elements to which `layout` leads, by running index.
  Content select(const Part &layout, const Content &content);
  /// Elements [begin, end), from position 0 on; and the other way round.
  Content slice(const Content &content, uint64_t begin, uint64_t end);
  static void place(Content &target, const Content &content, uint64_t at);
  /// Whether a content has `numel` positions on every rank.
  bool isWhole(const Content &content, uint64_t numel) const;

  /// A content as a vector with a name, which can be cut in one part, whatever
  /// it is made of, but not what ranks have cut already; and what is in such
  /// vectors, where no rank cuts them.
  Content pack(const Content &content, uint64_t size);
  Content unpack(Content content);

  /// Of a vector that is cut along `axes`, the piece of each rank, of `size`
  /// elements; and the vector that such pieces make.
  Content scatter(const Content &whole, uint64_t axes, uint64_t size);
  Content gather(const Content &piece, uint64_t axes, uint64_t size);

  /// From now on a cast of `from` to `dtype` is `to`.
  void defineCast(Number from, DType dtype, Number to) {
    casts[Key("cast", from, dtype).number()] = to;
  }
  Content cast(const Content &content, DType to);
  /// The bytes of elements of `from` as elements of `to`, where each element
  /// has its own; nothing otherwise.
  std::optional<Content> reinterpret(const Content &content, DType from,
                                     DType to);

  /// What a sum over ranks is divided by: each summand, and the sum.
  struct Divisors {
    double pre = 1, post = 1;
  };
  /// The sum over the ranks along `axes`, divided, of elements of `dtype`; or
  /// the largest of them, or that of the first rank.
  Content sum(const Content &content, uint64_t axes, Divisors divisors,
              DType dtype, uint64_t size, ReduceKind kind = ReduceKind::Sum);

  /// A vector that nothing is known of, for want of `reason`, for example:
  static constexpr std::string_view fewPieces =
      "a layout that can be followed in few pieces";
  Content unknown(Number base, uint64_t size, std::string_view reason);

  //===--------------------------------------------------------------------===//
  // Words
  //===--------------------------------------------------------------------===//

  /// Who makes values now, in words; what is made is remembered while
  /// `isRecording`.
  std::string maker;
  bool isRecording = false;

  /// What made a vector.
  void note(Number base, std::string_view words,
            std::vector<Number> operands = {});
  void note(Number base, std::string_view words, const Content &content);
  /// What a content is, in words.
  std::string describe(const Content &content) const;
  /// What numbers can not follow in a content: who needs what; empty if there
  /// is nothing such.
  std::string findUnknown(const Content &content) const;

private:
  struct Sum {
    Number of;
    uint64_t axes;
    Divisors divisors;
    DType dtype;
    ReduceKind kind;
  };
  struct Origin {
    std::string words;
    std::vector<Number> operands;
  };
  /// Whether the number is that of a vector of zeros, of any type.
  static bool isZeroNumber(Number number);
  void describe(Number base, unsigned depth, std::string &text) const;
  std::string describe(const Sum &total) const;
  /// Changes every element alike; null: that is not possible.
  template <typename Change>
  std::optional<Content> change(const Content &content, const Change &change);

  Ranks ranks;
  Numbering numbering;
  struct Pack {
    Content content;
    uint64_t size;
  };
  std::unordered_map<Number, Pack> packs;
  std::unordered_map<Number, Number> casts;
  std::unordered_map<Number, Sum> sums;
  /// Bits of wider or other elements: whose, how many of them make one.
  struct Bits {
    Number of;
    DType dtype;
    uint64_t ratio;
  };
  std::unordered_map<Number, Bits> bits;
  std::unordered_map<Number, Origin> origins;
  std::unordered_map<Number, std::string> unknowns;
};

/// Equal elements of an element type, as the bits that `uniform` takes.
uint64_t getUniformBits(int64_t value, DType dtype);
uint64_t getUniformBits(double value, DType dtype);

/// Slices of one content, such as a flat parameter of thousands of parts: each
/// looks at those alone that are near it.
class Slices {
public:
  Slices(Values &values, const Content &whole);
  /// As `Values::slice`.
  Content operator()(uint64_t begin, uint64_t end) const;

private:
  struct Entry {
    uint64_t begin;    // of the positions of the part
    uint64_t furthest; // end of the positions of this part and those before
    size_t part;
  };
  Values &values;
  const Content &whole;
  std::vector<Entry> entries; // by their first positions
};

} // namespace fsdp::symbolic

#endif // FSDP_SYMBOLIC_VALUES_H
