//===- ContentTest.cpp - What a tensor holds, element by element ----------===//
//
// Parts against functions that are spelled out.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Values.h"

#include <gtest/gtest.h>
#include <map>
#include <rapidcheck.h>

using namespace fsdp::symbolic;

namespace {

/// Of each position: how often which element is there.
using Function = std::map<uint64_t, std::map<std::pair<Number, uint64_t>, int>>;

void spell(const Part &part, size_t mode, uint64_t position, uint64_t index,
           Function &function) {
  if (mode == part.count) {
    auto &elements = function[position];
    int &count = elements[{part.base, index}];
    count += part.sign;
    if (count == 0)
      elements.erase({part.base, index});
    if (elements.empty())
      function.erase(position);
    return;
  }
  auto [size, weight, stride] = part.modes[mode];
  for (uint64_t digit = 0; digit != size; ++digit)
    spell(part, mode + 1, position + digit * weight, index + digit * stride,
          function);
}

Function spell(const Content &content) {
  Function function;
  for (const Part &part : content.parts)
    spell(part, 0, part.position, part.index, function);
  return function;
}

/// A box of up to four modes; `isLayout`: of all positions from 0 on.
Part arbitraryPart(bool isLayout) {
  Part part;
  uint64_t weight = 1;
  for (int i = *rc::gen::inRange(0, 4); i != 0; --i) {
    auto size = *rc::gen::inRange<uint64_t>(1, 5);
    auto stride = *rc::gen::inRange<uint64_t>(0, 13);
    part.add({size, weight, stride});
    weight *= size;
    if (!isLayout)
      weight += *rc::gen::inRange<uint64_t>(0, 4);
  }
  part.index = *rc::gen::inRange<uint64_t>(0, 9);
  if (!isLayout) {
    part.position = *rc::gen::inRange<uint64_t>(0, 9);
    // As names of vectors are: no small sum of them is another one's.
    part.base = hashText(*rc::gen::inRange(0, 2) ? "first" : "second");
    part.sign = *rc::gen::inRange(0, 4) ? 1 : -1;
  }
  return part;
}

} // namespace

// A composition leads where the one leads after the other.
TEST(Content, ComposesAsFunctionsDo) {
  size_t numFound = 0;
  auto trial = [&] {
    Part first = arbitraryPart(true), second = arbitraryPart(false);
    Content found;
    RC_ASSERT(compose(first, second, 0, found));
    Function expected;
    Function places = spell(Content{{first}}), boxes = spell(Content{{second}});
    for (auto &[position, to] : places)
      for (auto &[place, ignored] : to)
        if (auto box = boxes.find(place.second); box != boxes.end())
          expected[position] = box->second;
    RC_ASSERT(spell(found) == expected);
    numFound += expected.size();
  };
  // A second check would repeat the first: one seed serves the whole process.
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i != 20; ++i)
      trial();
  }));
  EXPECT_GT(numFound, 100u);
}

// Whatever the layout, what goes there and back is where it was.
TEST(Content, InvertsWhatHasOnePlaceForEach) {
  EXPECT_TRUE(rc::check([] {
    Part layout = arbitraryPart(true);
    std::optional<Part> inverse = layout.invert();
    Function places = spell(Content{{layout}});
    std::map<uint64_t, int> count;
    for (auto &[position, to] : places)
      ++count[to.begin()->first.second];
    bool isUnique = std::all_of(count.begin(), count.end(),
                                [](auto &entry) { return entry.second == 1; });
    RC_ASSERT(isUnique || !inverse);
    if (!inverse)
      return;
    Content again;
    RC_ASSERT(compose(layout, *inverse, 0, again));
    for (auto &[position, to] : spell(again))
      RC_ASSERT(to.begin()->first.second == position);
  }));
}

// However a function is made of parts, its number is its own.
TEST(Content, NumbersAreThoseOfFunctions) {
  Numbering numbering;
  size_t numEqual = 0;
  std::map<Number, Function> known;
  auto trial = [&] {
    Content content;
    for (int i = *rc::gen::inRange(0, 4); i != 0; --i)
      content.parts.push_back(arbitraryPart(false));
    Function function = spell(content);
    Number number = numbering(content);
    auto [entry, isNew] = known.try_emplace(number, function);
    RC_ASSERT(entry->second == function);
    // The same, element by element.
    Content elements;
    for (auto &[position, to] : function)
      for (auto &[element, count] : to)
        for (int i = 0; i != std::abs(count); ++i) {
          Part part = Part::range(1, element.second);
          part.base = element.first;
          part.position = position;
          part.sign = count > 0 ? 1 : -1;
          elements.parts.push_back(part);
        }
    RC_ASSERT(numbering(elements) == number);
    numEqual += elements.parts.size() > content.parts.size();
  };
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i != 20; ++i)
      trial();
  }));
  EXPECT_GT(numEqual, 10u);
}

TEST(Content, WhatIsTakenAwayIsGone) {
  Content content = Content::vector(7, 6);
  Content lost = content;
  lost.parts.front().sign = -1;
  content.add(lost);
  EXPECT_TRUE(content.parts.empty());
}

// What all ranks have alike is the same whether the ranks are named or not.
TEST(Content, RanksThatDoNotDifferDoNotShow) {
  std::optional<Ranks> ranks = Ranks::get({2, 3});
  ASSERT_TRUE(ranks);
  Numbering numbering(*ranks);
  Content all = Content::vector(7, 6), named = all, other = all;
  named.parts.front().axes = 2;
  named.parts.front().add({3, ranks->getWeight(1), 0});
  EXPECT_EQ(numbering(all), numbering(named));
  other.parts.front().axes = 2;
  other.parts.front().add({3, ranks->getWeight(1), 6});
  EXPECT_NE(numbering(all), numbering(other));
}

TEST(Ranks, TooManyAreNone) {
  EXPECT_TRUE(Ranks::get({1, 10000}));
  EXPECT_FALSE(Ranks::get({1 << 20, 1 << 20}));
}
