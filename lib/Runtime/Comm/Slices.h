//===- Slices.h - Who sums what of an all_reduce ----------------*- C++ -*-===//
#ifndef FSDP_LIB_RUNTIME_COMM_SLICES_H
#define FSDP_LIB_RUNTIME_COMM_SLICES_H

#include <algorithm>
#include <cstddef>

namespace fsdp {

struct Slices {
  unsigned members;

  /// Where the elements begin that `member` sums, of `count`; those of the last
  /// one end at `begin(members, count)`.
  std::size_t begin(unsigned member, std::size_t count) const {
    return std::min(member * most(count), count);
  }
  /// The most elements that a member sums.
  std::size_t most(std::size_t count) const {
    constexpr std::size_t multiple =
        64; // keeps members off others' cache lines
    std::size_t each = (count + members - 1) / members;
    return (each + multiple - 1) / multiple * multiple;
  }
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_SLICES_H
