//===- Memory.h - One rank's buffers ----------------------------*- C++ -*-===//
//
// The arenas of a rank, and the plan's buffers as tensors over them. A tensor
// owns nothing and cannot be resized: a kernel that wants another size throws.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_MEMORY_H
#define FSDP_LIB_RUNTIME_EXECUTION_MEMORY_H

#include "fsdp/Runtime/Device/Device.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

namespace fsdp {

/// The bytes between the first and the last element of a buffer.
struct Range {
  planfile::Space space;
  std::uint64_t begin, end;

  bool overlaps(const Range &other) const {
    return space == other.space && begin < other.end && other.begin < end;
  }
};

class Memory {
public:
  /// After the device's arena; nothing of a plan is there.
  static constexpr std::uint64_t guardBytes = 4096;

  /// Allocates the arenas and writes what the plan embeds into them.
  Memory(const planfile::Plan &plan, Device &device);

  const at::Tensor &tensor(std::uint32_t buffer);
  std::byte *data(std::uint32_t buffer) const;
  Range range(std::uint32_t buffer) const;
  /// The buffer that owns the bytes.
  std::uint32_t root(std::uint32_t buffer) const;
  std::uint64_t elements(std::uint32_t buffer) const;
  planfile::DType type(std::uint32_t buffer) const;
  at::IntArrayRef sizes(std::uint32_t buffer) const;
  at::IntArrayRef strides(std::uint32_t buffer) const;
  /// Row-major without gaps.
  bool isContiguous(std::uint32_t buffer) const;
  /// Elements [begin, end) of a contiguous buffer.
  at::Tensor slice(std::uint32_t buffer, std::uint64_t begin,
                   std::uint64_t end) const;

  /// A number of the device that is in no arena.
  at::Tensor scalar(std::byte *place, planfile::DType type) const {
    return make(place, type, planfile::Space::Device, {}, {});
  }

  std::byte *arena(planfile::Space space) const {
    return arenas[static_cast<std::size_t>(space)].data;
  }
  std::uint64_t arenaBytes(planfile::Space space) const {
    return arenas[static_cast<std::size_t>(space)].bytes;
  }
  /// The part of the device's arena that lives inside one run.
  std::byte *transient() const;
  std::uint64_t transientBytes() const;

  /// Throws if a kernel has given a tensor another size or place.
  void checkUnchanged() const;
  void checkUnchanged(std::uint32_t index) const;

private:
  struct Arena {
    std::byte *data = nullptr;
    std::uint64_t bytes = 0;
  };
  const planfile::Buffer &buffer(std::uint32_t index) const;
  at::Tensor make(std::byte *data, planfile::DType type, planfile::Space space,
                  at::IntArrayRef sizes, at::IntArrayRef strides) const;

  const planfile::Plan &plan;
  c10::Device torchDevice;
  std::array<Arena, 3> arenas;
  std::vector<at::Tensor> tensors;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_MEMORY_H
