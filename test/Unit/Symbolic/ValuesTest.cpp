//===- ValuesTest.cpp - Numbers that stand for values ---------------------===//

#include "fsdp/Symbolic/Values.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp::symbolic;

namespace {

/// Parts of a few vectors, and zeros, one after the other.
Content arbitraryVector(uint64_t &size) {
  Content content;
  size = 0;
  for (int i = *rc::gen::inRange(1, 6); i != 0; --i) {
    auto begin = *rc::gen::inRange<uint64_t>(0, 4);
    auto length = *rc::gen::inRange<uint64_t>(1, 5);
    auto base = *rc::gen::inRange<Number>(0, 3);
    Content piece = Values::zero(DType::F32, length);
    if (base) {
      piece = Content::vector(base, length, everywhere);
      piece.parts.front().index = begin;
    }
    Values::place(content, piece, size);
    size += length;
  }
  return content;
}

Values makeValues() { return Values(*Ranks::get({2, 3})); }

} // namespace

// Words beyond the room of a key are folded in, not lost.
TEST(Key, EveryWordCounts) {
  EXPECT_TRUE(rc::check([](std::vector<uint64_t> words) {
    words.resize(words.size() + 40);
    auto number = [&] {
      Key key("many");
      for (uint64_t word : words)
        key.add(word);
      return key.number();
    };
    Number before = number();
    RC_ASSERT(before == number());
    ++words[*rc::gen::inRange<size_t>(0, words.size())];
    RC_ASSERT(before != number());
  }));
  EXPECT_NE(Key("a").number(), Key("b").number());
  EXPECT_NE(Key("a", 1, 2).number(), Key("a", 2, 1).number());
}

// However a vector is cut, it is the same vector.
TEST(Values, CutsDoNotShow) {
  EXPECT_TRUE(rc::check([] {
    Values values;
    uint64_t size;
    Content content = arbitraryVector(size);
    auto cut = *rc::gen::inRange<uint64_t>(0, size + 1);
    Content again = values.slice(content, 0, cut);
    Values::place(again, values.slice(content, cut, size), cut);
    RC_ASSERT(values.getNumber(again) == values.getNumber(content));
    RC_ASSERT(values.isWhole(again, size));
    RC_ASSERT(!values.isWhole(again, size + 1));
  }));
}

// Integers are told apart that no double can tell apart.
TEST(Values, UniformIntegersAreExact) {
  int64_t large = (int64_t(1) << 53) + 1;
  EXPECT_NE(getUniformBits(large, DType::I64),
            getUniformBits(large - 1, DType::I64));
  EXPECT_EQ(getUniformBits(3.0, DType::I64),
            getUniformBits(int64_t(3), DType::I64));
  EXPECT_EQ(getUniformBits(int64_t(3), DType::F32),
            getUniformBits(3.0, DType::F32));
  EXPECT_EQ(getUniformBits(int64_t(7), DType::Bool),
            getUniformBits(1.0, DType::Bool));
}

// Sharded gradients are summed over one axis after the other.
TEST(Values, SumsAlongTwoAxesAreOneSum) {
  Values values = makeValues();
  Content x = Content::vector(7, 8), zero = Values::zero(DType::F32, 8);
  auto sum = [&](const Content &of, uint64_t axes, double pre, double post,
                 DType dtype = DType::F32) {
    return values.sum(of, axes, {pre, post}, dtype, 8);
  };
  auto number = [&](const Content &of) { return values.getNumber(of); };
  EXPECT_EQ(number(sum(sum(x, 1, 2, 1), 2, 1, 3)), number(sum(x, 3, 2, 3)));
  EXPECT_NE(number(sum(sum(x, 1, 2, 1), 2, 1, 2)), number(sum(x, 3, 2, 3)));
  // Twice along the same axis is something else, and so are other divisors,
  // axes and types, and what is divided or rounded between the sums.
  EXPECT_NE(number(sum(sum(x, 1, 2, 1), 1, 1, 3)), number(sum(x, 1, 2, 3)));
  EXPECT_NE(number(sum(x, 1, 1, 2)), number(sum(x, 2, 1, 2)));
  EXPECT_NE(number(sum(x, 1, 2, 1)), number(sum(x, 1, 1, 2)));
  EXPECT_NE(number(sum(sum(x, 1, 1, 2), 2, 1, 3)), number(sum(x, 3, 1, 6)));
  EXPECT_NE(number(sum(x, 1, 1, 2, DType::BF16)), number(sum(x, 1, 1, 2)));
  EXPECT_NE(number(sum(sum(x, 1, 1, 1, DType::BF16), 2, 1, 6)),
            number(sum(x, 3, 1, 6)));
  EXPECT_EQ(number(sum(zero, 1, 1, 2)), number(zero));
}

// All ranks have it, as a sum; zeros are zeros wherever they are from.
TEST(Values, WhatTheFirstRankHasIsTheSameEverywhere) {
  Values values = makeValues();
  Content x = Content::vector(7, 8), zero = Values::zero(DType::I64, 8);
  auto first = [&](const Content &of, uint64_t axes) {
    return values.sum(of, axes, {}, DType::F32, 8, ReduceKind::First);
  };
  auto number = [&](const Content &of) { return values.getNumber(of); };
  EXPECT_NE(number(first(x, 1)), number(x));
  EXPECT_NE(number(first(x, 1)), number(values.sum(x, 1, {}, DType::F32, 8)));
  EXPECT_NE(number(first(x, 1)), number(first(x, 2)));
  EXPECT_EQ(number(first(first(x, 1), 2)), number(first(x, 3)));
  EXPECT_EQ(Values::getSame(first(x, 1)), 1u);
  EXPECT_EQ(number(first(zero, 1)), number(zero));
}

// What was cut makes the whole again, among the ranks that have sharded it, and
// what is done to each element may be done before or after.
TEST(Values, GathersWhatWasScattered) {
  EXPECT_TRUE(rc::check([] {
    Values values = makeValues();
    uint64_t size;
    Content whole = arbitraryVector(size);
    auto axes = *rc::gen::inRange<uint64_t>(1, 4);
    uint64_t ranks = (axes & 1 ? 2 : 1) * (axes & 2 ? 3 : 1);
    uint64_t piece = (size + ranks - 1) / ranks;
    Values::place(whole, Values::zero(DType::F32, piece * ranks - size), size);
    Content cut = values.scatter(whole, axes, piece);
    RC_ASSERT(values.isWhole(cut, piece));
    RC_ASSERT(values.getNumber(values.gather(cut, axes, piece)) ==
              values.getNumber(whole));
    Content cast = values.scatter(values.cast(whole, DType::BF16), axes, piece);
    RC_ASSERT(values.getNumber(values.cast(cut, DType::BF16)) ==
              values.getNumber(cast));
  }));
}

// A piece of what each rank has for itself is not that of a common whole; nor
// can pieces be summed along the axes that cut them.
TEST(Values, PiecesOfDifferentWholesAreUnknown) {
  Values values = makeValues();
  values.maker = "someone";
  Content own = Content::vector(7, 6);
  Content piece = values.scatter(own, 2, 2);
  EXPECT_TRUE(values.findUnknown(piece).empty());
  Content gathered = values.gather(piece, 2, 2);
  EXPECT_NE(values.getNumber(gathered), values.getNumber(own));
  EXPECT_FALSE(values.findUnknown(gathered).empty());
  Content sum = values.sum(piece, 2, {1, 3}, DType::F32, 2);
  EXPECT_FALSE(values.findUnknown(sum).empty());
  // The piece of the sum is what a reduce-scatter leaves.
  Content reduced =
      values.scatter(values.sum(own, 2, {1, 3}, DType::F32, 6), 2, 2);
  EXPECT_NE(values.getNumber(sum), values.getNumber(reduced));
}

// Two units cut beside each other are the pieces of both.
TEST(Values, APieceOfTwoIsTwoPieces) {
  Values values = makeValues();
  Content first = Content::vector(7, 6, everywhere),
          second = Content::vector(8, 3, everywhere), both;
  Values::place(both, values.scatter(first, 2, 2), 0);
  Values::place(both, values.scatter(second, 2, 1), 2);
  Content rows = values.gather(both, 2, 3);
  // Rows of three, of which the first two are the first one's.
  int64_t sizes[] = {3, 2}, strides[] = {3, 1};
  std::optional<Part> part = Part::layout(2, sizes, strides);
  EXPECT_EQ(values.getNumber(values.select(*part, rows)),
            values.getNumber(first));
}

TEST(Values, DefinedCastsAreWhatTheyAreDefinedAs) {
  Values values;
  values.defineCast(7, DType::BF16, 9);
  auto number = [&](const Content &of) { return values.getNumber(of); };
  EXPECT_EQ(number(values.cast(Content::vector(7, 4), DType::BF16)),
            number(Content::vector(9, 4)));
  EXPECT_NE(number(values.cast(Content::vector(7, 4), DType::F16)),
            number(Content::vector(9, 4)));
}

// A complex number is its two parts, in any order of reading.
TEST(Values, BytesAreElementsOfAnotherType) {
  Values values;
  Content complex = Content::vector(7, 4);
  auto floats = values.reinterpret(complex, DType::C64, DType::F32);
  ASSERT_TRUE(floats);
  EXPECT_TRUE(values.isWhole(*floats, 8));
  auto again = values.reinterpret(*floats, DType::F32, DType::C64);
  ASSERT_TRUE(again);
  EXPECT_EQ(values.getNumber(*again), values.getNumber(complex));
  // One half of a number is none.
  EXPECT_FALSE(
      values.reinterpret(values.slice(*floats, 1, 3), DType::F32, DType::C64));
}
