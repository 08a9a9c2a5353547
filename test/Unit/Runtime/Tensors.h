//===- Tensors.h - Between PyTorch's tensors and the session's --*- C++ -*-===//
#ifndef FSDP_TEST_UNIT_RUNTIME_TENSORS_H
#define FSDP_TEST_UNIT_RUNTIME_TENSORS_H

#include "Runtime/Support/DTypes.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <ATen/ATen.h>

#include <cstring>

namespace fsdp::test {

inline HostTensor toHost(const at::Tensor &tensor) {
  at::Tensor dense = tensor.contiguous();
  planfile::DType type = planfile::DType::F32;
  for (planfile::DType candidate : planfile::EnumValuesDType())
    if (scalarType(candidate) == dense.scalar_type())
      type = candidate;
  HostTensor host{type, dense.sizes().vec(),
                  std::vector<std::byte>(dense.nbytes())};
  if (!host.bytes.empty()) // memcpy takes no null, however little it copies
    std::memcpy(host.bytes.data(), dense.const_data_ptr(), dense.nbytes());
  return host;
}

inline at::Tensor toTorch(const HostTensor &host) {
  at::Tensor tensor = at::empty(host.sizes, scalarType(host.type));
  if (!host.bytes.empty())
    std::memcpy(tensor.mutable_data_ptr(), host.bytes.data(),
                host.bytes.size());
  return tensor;
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_RUNTIME_TENSORS_H
