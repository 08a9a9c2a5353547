//===- Content.h - What a tensor holds, element by element ------*- C++ -*-===//
//
// A content is a function: from a running index, and the rank that asks, to an
// element of some vector. It is a sum of parts, each a box of positions that
// steps through one vector; a part may also be taken away again. Layouts are
// such functions too, from running indices to places, so whatever copies,
// views, gathers and cuts do is a composition.
//
// One function has many sums, but one number: that of a polynomial with a term
// for each element, whose value at a point is found part by part.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_SYMBOLIC_CONTENT_H
#define FSDP_SYMBOLIC_CONTENT_H

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace fsdp::symbolic {

using Number = uint64_t;

/// The axes of a mesh that have more than one rank. A position is that of an
/// element in its low bits, and the ranks along each axis above them.
class Ranks {
public:
  /// Tensors have fewer elements than two to this power.
  static constexpr unsigned elementBits = 40;
  static constexpr uint64_t elements = (uint64_t(1) << elementBits) - 1;
  /// The bits of a position that say the rank.
  static constexpr uint64_t ofRanks = ~elements;

  Ranks() = default;
  /// Sizes of the axes, outermost first; nothing if there are too many ranks.
  static std::optional<Ranks> get(const std::vector<uint64_t> &sizes);

  uint64_t getSize(unsigned axis) const { return sizes[axis]; }
  /// How far apart the positions of neighbouring ranks are.
  uint64_t getWeight(unsigned axis) const {
    return uint64_t(1) << shifts[axis];
  }
  /// The bits of the positions along `axes`.
  uint64_t getBits(uint64_t axes) const;
  unsigned getNumAxes() const { return unsigned(sizes.size()); }

private:
  std::vector<uint64_t> sizes;
  std::vector<unsigned> shifts; // of each axis, and after the last one
};

/// A box of positions, and where it steps in a vector: position + the sum of
/// digit * weight holds element index + the sum of digit * stride.
struct Part {
  struct Mode {
    uint64_t size, weight, stride;
  };
  static constexpr size_t maxModes = 10;

  Number base = 0;   // of the vector
  uint64_t same = 0; // axes along which all ranks have this vector
  uint64_t axes = 0; // axes of which only some ranks have the part
  uint64_t position = 0, index = 0;
  int32_t sign = 1; // -1: taken away
  uint32_t count = 0;
  std::array<Mode, maxModes> modes;

  Part() {} // the modes are set as they are added
  Part(const Part &other) { *this = other; }
  Part &operator=(const Part &other) {
    std::tie(base, same, axes, position, index, sign, count) =
        std::tie(other.base, other.same, other.axes, other.position,
                 other.index, other.sign, other.count);
    std::copy(other.begin(), other.end(), modes.begin());
    return *this;
  }
  /// Positions [0, size), with the elements from `index` on.
  static Part range(uint64_t size, uint64_t index = 0);
  /// Running indices to places, of a tensor with these sizes and strides.
  static std::optional<Part> layout(size_t rank, const int64_t *sizes,
                                    const int64_t *strides);
  /// Places to running indices, if no place is that of two elements.
  std::optional<Part> invert() const;

  const Mode *begin() const { return modes.data(); }
  const Mode *end() const { return modes.data() + count; }
  bool isRange() const {
    return count == 0 ||
           (count == 1 && modes[0].weight == 1 && modes[0].stride == 1);
  }
  uint64_t getNumel() const;
  /// Whether the other one has the same positions and elements.
  bool isAt(const Part &other) const;
  /// Adds a mode in its place; false if there is no room.
  bool add(Mode mode);
};

struct Content {
  std::vector<Part> parts;

  /// A vector of its own, in its order; `same` as in a part.
  static Content vector(Number base, uint64_t size, uint64_t same = 0);
  /// Adds the parts of another one; what is taken away cancels.
  void add(const Content &other);
};

/// Adds to `result` what `first` leads to, through the places of `second`:
/// positions of `first` with elements of `second`. The bits `passing` of the
/// positions of `second` are those of the result. False if that takes too many
/// parts.
bool compose(const Part &first, const Part &second, uint64_t passing,
             Content &result);

/// Finds numbers of contents, and remembers those of shapes.
class Numbering {
public:
  explicit Numbering(const Ranks &ranks = {});
  /// Equal for equal functions, whatever parts they are made of.
  Number operator()(const Content &content) const;

private:
  uint64_t getShape(const Part &part) const;
  Ranks ranks;
  std::vector<uint64_t> shares; // of each axis: one over its sum of positions
  mutable std::unordered_map<uint64_t, uint64_t> shapes;
};

} // namespace fsdp::symbolic

#endif // FSDP_SYMBOLIC_CONTENT_H
