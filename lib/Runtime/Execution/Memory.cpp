//===- Memory.cpp - One rank's buffers ------------------------------------===//
#include "Memory.h"

#include "../Comm/Mesh.h"
#include "../Support/DTypes.h"
#include "fsdp/Runtime/Support/Error.h"

#include <c10/core/TensorImpl.h>

using namespace fsdp;
using planfile::Space;

/// Bytes from the first element to after the last one.
static std::uint64_t extent(at::IntArrayRef sizes, at::IntArrayRef strides,
                            std::size_t item) {
  std::uint64_t last = 0;
  for (std::size_t i = 0; i != sizes.size(); ++i) {
    if (sizes[i] == 0)
      return 0;
    last += static_cast<std::uint64_t>((sizes[i] - 1) * strides[i]);
  }
  return (last + 1) * item;
}

Memory::Memory(const planfile::Plan &plan, Device &device)
    : plan(plan), torchDevice(device.torchDevice()),
      tensors(plan.buffers()->size()) {
  arenas[0].bytes = plan.device_bytes();
  arenas[1].bytes = plan.host_bytes();
  arenas[2].bytes = plan.pinned_bytes();
  for (std::size_t space = 0; space != arenas.size(); ++space)
    if (arenas[space].bytes)
      arenas[space].data =
          device.allocate(static_cast<Space>(space),
                          arenas[space].bytes + (space == 0 ? guardBytes : 0));

  for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i) {
    Range r = range(i);
    if (r.end > arenaBytes(r.space))
      throw Error("buffer " + std::to_string(i) + " ends at byte " +
                  std::to_string(r.end) + " of an arena of " +
                  std::to_string(arenaBytes(r.space)));
    const auto *bytes = buffer(i).bytes();
    if (!bytes || bytes->size() == 0)
      continue;
    if (bytes->size() != r.end - r.begin || !isContiguous(i))
      throw Error("buffer " + std::to_string(i) + " embeds " +
                  std::to_string(bytes->size()) + " bytes, but has " +
                  std::to_string(r.end - r.begin));
    device.copy(planfile::Stream::Compute, data(i), bytes->data(),
                bytes->size());
  }
}

const planfile::Buffer &Memory::buffer(std::uint32_t index) const {
  return *plan.buffers()->Get(index);
}

std::byte *Memory::data(std::uint32_t index) const {
  return arena(buffer(index).space()) + buffer(index).offset();
}

Range Memory::range(std::uint32_t index) const {
  const planfile::Buffer &b = buffer(index);
  return {b.space(), b.offset(),
          b.offset() +
              extent(sizes(index), strides(index), itemSize(b.dtype()))};
}

std::uint32_t Memory::root(std::uint32_t index) const {
  std::uint32_t root = buffer(index).root();
  return root == none ? index : root;
}

std::uint64_t Memory::elements(std::uint32_t index) const {
  return static_cast<std::uint64_t>(c10::multiply_integers(sizes(index)));
}

planfile::DType Memory::type(std::uint32_t index) const {
  return buffer(index).dtype();
}

static at::IntArrayRef shapeOf(const planfile::Plan &plan,
                               std::uint32_t index) {
  if (index == none)
    return {};
  const auto *values = plan.shapes()->Get(index)->values();
  return {values->data(), values->size()};
}

at::IntArrayRef Memory::sizes(std::uint32_t index) const {
  return shapeOf(plan, buffer(index).sizes());
}

at::IntArrayRef Memory::strides(std::uint32_t index) const {
  return shapeOf(plan, buffer(index).strides());
}

bool Memory::isContiguous(std::uint32_t index) const {
  at::IntArrayRef size = sizes(index), stride = strides(index);
  std::int64_t expected = 1;
  for (std::size_t i = size.size(); i-- > 0; expected *= size[i])
    if (size[i] != 1 && stride[i] != expected)
      return elements(index) == 0;
  return true;
}

at::Tensor Memory::make(std::byte *data, planfile::DType type, Space space,
                        at::IntArrayRef sizes, at::IntArrayRef strides) const {
  c10::Device device = space == Space::Device ? torchDevice : c10::kCPU;
  std::size_t bytes = extent(sizes, strides, itemSize(type));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       c10::DataPtr(data, device), /*allocator=*/nullptr,
                       /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(device.is_cpu() ? c10::DispatchKey::CPU
                                          : c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(scalarType(type)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

const at::Tensor &Memory::tensor(std::uint32_t index) {
  at::Tensor &tensor = tensors[index];
  if (!tensor.defined())
    tensor = make(data(index), type(index), buffer(index).space(), sizes(index),
                  strides(index));
  return tensor;
}

at::Tensor Memory::slice(std::uint32_t index, std::uint64_t begin,
                         std::uint64_t end) const {
  std::int64_t size = static_cast<std::int64_t>(end - begin), stride = 1;
  return make(data(index) + begin * itemSize(type(index)), type(index),
              buffer(index).space(), size, stride);
}

std::byte *Memory::transient() const {
  return arena(Space::Device) +
         std::min(plan.persistent_bytes(), arenaBytes(Space::Device));
}

std::uint64_t Memory::transientBytes() const {
  std::uint64_t bytes = arenaBytes(Space::Device);
  return bytes - std::min(plan.persistent_bytes(), bytes);
}

void Memory::checkUnchanged() const {
  for (std::uint32_t i = 0; i != tensors.size(); ++i)
    checkUnchanged(i);
}

void Memory::checkUnchanged(std::uint32_t index) const {
  const at::Tensor &tensor = tensors[index];
  if (tensor.defined() &&
      (tensor.sizes() != sizes(index) || tensor.strides() != strides(index)))
    throw Error("a kernel has resized buffer " + std::to_string(index) +
                    ": the plan's sizes are wrong",
                Failure::RankFailed);
}
