//===- Box.h - A part of a tensor -------------------------------*- C++ -*-===//
#ifndef FSDP_ARCHIVE_BOX_H
#define FSDP_ARCHIVE_BOX_H

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::archive {

/// Elements [offsets, offsets + sizes) of a tensor, axis by axis.
struct Box {
  std::vector<int64_t> offsets, sizes;

  /// All of a tensor.
  static Box whole(const std::vector<int64_t> &shape) {
    return {std::vector<int64_t>(shape.size()), shape};
  }

  uint64_t numel() const {
    uint64_t count = 1;
    for (int64_t size : sizes)
      count *= static_cast<uint64_t>(size);
    return count;
  }

  bool operator==(const Box &other) const {
    return offsets == other.offsets && sizes == other.sizes;
  }
};

/// What two boxes of one tensor have in common; nothing if that is no element.
inline std::optional<Box> intersect(const Box &left, const Box &right) {
  Box common = left;
  for (size_t axis = 0; axis != left.sizes.size(); ++axis) {
    int64_t begin = std::max(left.offsets[axis], right.offsets[axis]);
    int64_t end = std::min(left.offsets[axis] + left.sizes[axis],
                           right.offsets[axis] + right.sizes[axis]);
    if (begin >= end)
      return std::nullopt;
    common.offsets[axis] = begin;
    common.sizes[axis] = end - begin;
  }
  return common;
}

/// Whether no two boxes of one tensor, all with as many axes, have an element
/// in common. Takes time n log n where planes separate them, as those of
/// shards.
bool areDisjoint(std::vector<const Box *> boxes);

/// Elements [begin, end) of a tensor as boxes, in order, each as large as can
/// be: at most 2 n - 1 of n axes. Elements are counted in storage order, which
/// is that of `order`: the axes from the slowest to the fastest.
std::vector<Box> cut(const std::vector<int64_t> &shape,
                     const std::vector<int64_t> &order, int64_t begin,
                     int64_t end);

/// The axes of a row-major tensor from the slowest to the fastest.
std::vector<int64_t> rowMajor(size_t axes);

/// Boxes of at most `most` elements each, in order, that make up a box.
inline std::vector<Box> split(const Box &box, uint64_t most) {
  uint64_t count = box.numel();
  size_t axis = 0;
  while (axis != box.sizes.size() && box.sizes[axis] <= 1)
    ++axis;
  if (count == 0)
    return {};
  if (count <= most || axis == box.sizes.size())
    return {box};
  uint64_t row = count / static_cast<uint64_t>(box.sizes[axis]);
  auto step = static_cast<int64_t>(std::max<uint64_t>(1, most / row));
  std::vector<Box> parts;
  for (int64_t at = 0; at < box.sizes[axis]; at += step) {
    Box part = box;
    part.offsets[axis] += at;
    part.sizes[axis] = std::min(step, box.sizes[axis] - at);
    for (Box &each : split(part, most))
      parts.push_back(std::move(each));
  }
  return parts;
}

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_BOX_H
