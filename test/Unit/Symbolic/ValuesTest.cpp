//===- ValuesTest.cpp - Numbers that stand for values ---------------------===//

#include "fsdp/Symbolic/Values.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp::symbolic;

namespace {

/// The elements of some pieces, one by one.
std::vector<std::pair<Number, uint64_t>> spell(const Pieces &pieces) {
  std::vector<std::pair<Number, uint64_t>> elements;
  for (const Piece &piece : pieces)
    for (uint64_t i = 0; i != piece.size; ++i)
      elements.emplace_back(
          piece.content.base,
          piece.content.isUniform ? 0 : piece.content.map.getOffset() + i);
  return elements;
}

/// Parts of a few vectors, and zeros.
Pieces arbitraryPieces() {
  Pieces pieces;
  for (int i = *rc::gen::inRange(1, 6); i != 0; --i) {
    auto begin = *rc::gen::inRange<uint64_t>(0, 4);
    auto size = *rc::gen::inRange<uint64_t>(0, 5);
    auto base = *rc::gen::inRange<Number>(0, 3);
    Content content = base ? Content{base, false, IndexMap::range(begin, size)}
                           : Values::zero(DType::F32);
    append(pieces, {size, content});
  }
  return pieces;
}

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

TEST(Pieces, SliceTakesTheElements) {
  EXPECT_TRUE(rc::check([] {
    Pieces pieces = arbitraryPieces();
    auto all = spell(pieces);
    auto begin = *rc::gen::inRange<uint64_t>(0, all.size() + 1);
    auto end = *rc::gen::inRange<uint64_t>(begin, all.size() + 1);
    RC_ASSERT(
        spell(slice(pieces, begin, end)) ==
        decltype(all)(all.begin() + long(begin), all.begin() + long(end)));
  }));
}

// However a vector is cut, it is the same vector.
TEST(Pieces, CutsDoNotShow) {
  EXPECT_TRUE(rc::check([] {
    Pieces pieces = arbitraryPieces();
    uint64_t size = spell(pieces).size();
    auto cut = *rc::gen::inRange<uint64_t>(0, size + 1);
    Pieces again = slice(pieces, 0, cut);
    for (const Piece &piece : slice(pieces, cut, size))
      append(again, piece);
    RC_ASSERT(join(again).number() == join(pieces).number());
  }));
}

TEST(Pieces, OtherElementsHaveAnotherNumber) {
  EXPECT_TRUE(rc::check([] {
    Pieces left = arbitraryPieces(), right = arbitraryPieces();
    if (left.empty() || right.empty() || spell(left) == spell(right))
      return;
    // A uniform vector has no length; its window has.
    if (left.size() == 1 && right.size() == 1 && left[0].content.isUniform &&
        right[0].content.isUniform)
      return;
    RC_ASSERT(join(left).number() != join(right).number());
  }));
}

// Sharded gradients are summed over one axis after the other.
TEST(Values, SumsAlongTwoAxesAreOneSum) {
  Values values;
  Content x = Values::vector(7, 8);
  auto sum = [&](Content of, uint64_t axes, double divisor) {
    return values.sum(of, axes, divisor, DType::F32, DType::F32);
  };
  EXPECT_EQ(sum(sum(x, 1, 2), 2, 3).number(), sum(x, 3, 6).number());
  EXPECT_NE(sum(sum(x, 1, 2), 2, 2).number(), sum(x, 3, 6).number());
  // Twice along the same axis is something else, and so are other divisors,
  // axes and types.
  EXPECT_NE(sum(sum(x, 1, 2), 1, 3).number(), sum(x, 1, 6).number());
  EXPECT_NE(sum(x, 1, 2).number(), sum(x, 2, 2).number());
  EXPECT_NE(values.sum(x, 1, 2, DType::BF16, DType::F32).number(),
            sum(x, 1, 2).number());
  EXPECT_EQ(sum(Values::zero(DType::F32), 1, 2).number(),
            Values::zero(DType::F32).number());
}

// A cast changes every element of what is cut, wherever it is cut.
TEST(Values, ACastOfAShardIsTheShardOfTheCast) {
  Values values;
  Pieces whole = {{6, Values::vector(7, 6)}, {2, Values::zero(DType::F32)}};
  Pieces cast = {{6, values.cast(Values::vector(7, 6), DType::BF16)},
                 {2, Values::zero(DType::BF16)}};
  Content shard = values.shard(whole, 1, 4);
  EXPECT_EQ(values.cast(shard, DType::BF16).number(),
            values.shard(cast, 1, 4).number());
  ASSERT_TRUE(values.findShard(shard));
  EXPECT_EQ(spell(values.findShard(shard)->whole), spell(whole));
  // A part of a shard is none.
  Content part = shard;
  part.map = IndexMap::range(1, 3);
  EXPECT_FALSE(values.findShard(part));
}

TEST(Values, DefinedCastsAreWhatTheyAreDefinedAs) {
  Values values;
  values.defineCast(7, DType::BF16, 9);
  EXPECT_EQ(values.cast(Values::vector(7, 4), DType::BF16).number(),
            Values::vector(9, 4).number());
  EXPECT_NE(values.cast(Values::vector(7, 4), DType::F16).number(),
            Values::vector(9, 4).number());
}
