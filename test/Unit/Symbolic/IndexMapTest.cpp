//===- IndexMapTest.cpp - Layouts as functions of an index ----------------===//
//
// Against layouts that are counted out, element by element.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/IndexMap.h"

#include <gtest/gtest.h>
#include <numeric>
#include <rapidcheck.h>
#include <vector>

using namespace fsdp::symbolic;

namespace {

using Places = std::vector<uint64_t>;

uint64_t numelOf(const IndexMap &map) {
  uint64_t numel = 1;
  for (auto [size, stride] : map)
    numel *= size;
  return numel;
}

/// What the map says of each running index below `numel`, which may be more
/// than it has modes for: it has none of size 1.
Places evaluate(const IndexMap &map) {
  Places places(numelOf(map), map.getOffset());
  for (uint64_t i = 0; i != places.size(); ++i) {
    uint64_t rest = i;
    for (auto [size, stride] : map) {
      places[i] += rest % size * stride;
      rest /= size;
    }
  }
  return places;
}

struct Tensor {
  std::vector<int64_t> sizes, strides;
  uint64_t offset = 0;

  std::optional<IndexMap> map() const {
    auto result = IndexMap::get(sizes.size(), sizes.data(), strides.data());
    if (result)
      result = result->shifted(offset);
    return result;
  }
  /// Row-major, as the definition has it.
  Places count() const {
    Places places = {offset};
    for (size_t dim = 0; dim != sizes.size(); ++dim) {
      Places next;
      for (uint64_t place : places)
        for (int64_t i = 0; i != sizes[dim]; ++i)
          next.push_back(place + uint64_t(i * strides[dim]));
      places = std::move(next);
    }
    return places;
  }
};

/// Dense up to gaps, in any order of its dimensions.
Tensor arbitraryTensor() {
  Tensor tensor;
  auto rank = *rc::gen::inRange<size_t>(0, 5);
  tensor.sizes.resize(rank);
  tensor.strides.resize(rank);
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = rank; i > 1; --i)
    std::swap(order[i - 1], order[*rc::gen::inRange<size_t>(0, i)]);
  int64_t stride = *rc::gen::element(1, 1, 1, 2, 3);
  for (size_t dim : order) {
    tensor.sizes[dim] = *rc::gen::inRange<int64_t>(1, 5);
    tensor.strides[dim] = stride;
    stride *= tensor.sizes[dim] * *rc::gen::element<int64_t>(1, 1, 1, 2);
  }
  tensor.offset = *rc::gen::inRange<uint64_t>(0, 4);
  return tensor;
}

} // namespace

TEST(IndexMap, SaysWhereEachElementLies) {
  EXPECT_TRUE(rc::check([] {
    Tensor tensor = arbitraryTensor();
    RC_ASSERT(evaluate(*tensor.map()) == tensor.count());
  }));
}

// One normal form: equal functions are equal maps.
TEST(IndexMap, SameElementsAreTheSameMap) {
  Tensor plain = {{24}, {1}}, split = {{2, 3, 4}, {12, 4, 1}},
         ones = {{1, 24, 1}, {7, 1, 9}};
  EXPECT_TRUE(*plain.map() == *split.map());
  EXPECT_TRUE(*plain.map() == *ones.map());
  Tensor transposed = {{4, 6}, {1, 4}};
  EXPECT_FALSE(*plain.map() == *transposed.map());
}

TEST(IndexMap, HasNoMoreModesThanThereIsRoomFor) {
  std::vector<int64_t> sizes(IndexMap::maxModes + 1, 2), strides;
  for (size_t i = 0; i != sizes.size(); ++i)
    strides.push_back(int64_t(1) << (2 * i)); // nothing continues anything
  EXPECT_FALSE(IndexMap::get(sizes.size(), sizes.data(), strides.data()));
  EXPECT_TRUE(IndexMap::get(sizes.size() - 1, sizes.data(), strides.data()));
}

// Whatever is read through another layout: the elements are those that were
// written there, or nothing is said.
TEST(PlaceMap, FindsWhatWasWrittenThere) {
  int defined = 0;
  EXPECT_TRUE(rc::check([&] {
    Tensor written = arbitraryTensor(), read = arbitraryTensor();
    auto inverse = PlaceMap::invert(*written.map());
    if (!inverse)
      return;
    auto found = (*inverse)(*read.map());
    if (!found)
      return;
    ++defined;
    Places places = written.count(), wanted = read.count();
    Places indices = evaluate(*found);
    RC_ASSERT(indices.size() == wanted.size());
    for (size_t i = 0; i != wanted.size(); ++i) {
      RC_ASSERT(indices[i] < places.size());
      RC_ASSERT(places[indices[i]] == wanted[i]);
    }
  }));
  EXPECT_GT(defined, 10);
}

// What is read as it was written is there in its order.
TEST(PlaceMap, InverseOfItselfIsTheIdentity) {
  EXPECT_TRUE(rc::check([] {
    Tensor tensor = arbitraryTensor();
    auto inverse = PlaceMap::invert(*tensor.map());
    RC_ASSERT(bool(inverse)); // dimensions nest
    auto found = (*inverse)(*tensor.map());
    RC_ASSERT(bool(found));
    RC_ASSERT(*found == IndexMap::range(0, tensor.count().size()));
  }));
}

TEST(PlaceMap, ComposesIndices) {
  int defined = 0;
  EXPECT_TRUE(rc::check([&] {
    Tensor outer = arbitraryTensor(), inner = arbitraryTensor();
    auto found = PlaceMap::ofIndices(*outer.map())(*inner.map());
    if (!found)
      return;
    ++defined;
    Places places = outer.count(), indices = inner.count();
    Places composed = evaluate(*found);
    RC_ASSERT(composed.size() == indices.size());
    for (size_t i = 0; i != indices.size(); ++i) {
      RC_ASSERT(indices[i] < places.size());
      RC_ASSERT(composed[i] == places[indices[i]]);
    }
  }));
  EXPECT_GT(defined, 10);
}

// A map of which two indices lie in one place has no inverse.
TEST(PlaceMap, BroadcastsHaveNoInverse) {
  Tensor broadcast = {{2, 3}, {0, 1}};
  EXPECT_FALSE(PlaceMap::invert(*broadcast.map()));
}
