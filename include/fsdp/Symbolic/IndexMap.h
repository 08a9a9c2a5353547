//===- IndexMap.h - Layouts as functions of an index ------------*- C++ -*-===//
//
// A tensor read in row-major order is a function from a running index to a
// place in memory. Such functions are kept in one normal form and composed:
// what is written in one layout and read in another is the same elements, if
// the composition says so. That is how copies, views and folded buffers come
// to have equal numbers.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_SYMBOLIC_INDEXMAP_H
#define FSDP_SYMBOLIC_INDEXMAP_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace fsdp::symbolic {

/// i -> offset + the sum of digit * stride, where the digits are those of i in
/// the mixed radix of the sizes, the first mode being the fastest. Normal: no
/// mode of size 1, and none that continues the one before it.
class IndexMap {
public:
  struct Mode {
    uint64_t size, stride;
  };
  /// More modes than that have no map.
  static constexpr size_t maxModes = 8;

  IndexMap() = default;
  /// i -> offset + i, for i < size.
  static IndexMap range(uint64_t offset, uint64_t size);
  /// Sizes and strides of a tensor, outermost first.
  static std::optional<IndexMap> get(size_t rank, const int64_t *sizes,
                                     const int64_t *strides);

  uint64_t getOffset() const { return offset; }
  IndexMap shifted(uint64_t by) const {
    IndexMap result = *this;
    result.offset += by;
    return result;
  }
  const Mode *begin() const { return modes.data(); }
  const Mode *end() const { return modes.data() + count; }
  bool operator==(const IndexMap &other) const;

  /// Adds a slower mode; false if there is no room.
  bool append(uint64_t size, uint64_t stride);

private:
  uint64_t offset = 0;
  uint32_t count = 0;
  std::array<Mode, maxModes> modes{};
};

/// From places to running indices: the inverse of a map whose places are all
/// different and nest. Also defined by the map itself, where `ofIndices`: then
/// it goes from running indices to places.
class PlaceMap {
public:
  /// The inverse of `map`; nothing if it has none of this form.
  static std::optional<PlaceMap> invert(const IndexMap &map);
  static PlaceMap ofIndices(const IndexMap &map);

  /// This after `first`: nothing if that is no IndexMap, or leads to places
  /// where this is not defined.
  std::optional<IndexMap> operator()(const IndexMap &first) const;

private:
  /// A digit of the argument: below `limit` where the map is defined.
  struct Digit {
    uint64_t radix, limit, stride;
  };
  uint64_t start = 0, offset = 0; // of the arguments, of the results
  uint32_t count = 0;
  std::array<Digit, 2 * IndexMap::maxModes> digits{};
};

} // namespace fsdp::symbolic

#endif // FSDP_SYMBOLIC_INDEXMAP_H
