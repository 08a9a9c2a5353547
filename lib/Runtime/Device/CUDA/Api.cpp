//===- Api.cpp - All that is asked of CUDA --------------------------------===//
#include "Api.h"

#include "../../Support/DTypes.h"
#include "fsdp/Runtime/Support/Error.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

using namespace fsdp;
using planfile::DType;

void CudaApi::check(cudaError_t result, const char *call, unsigned rank) const {
  if (result != cudaSuccess)
    throw Error("rank " + std::to_string(rank) + ": " + call + ": " +
                getErrorString(result));
}

CudaEvent fsdp::makeEvent(const CudaApi &api, unsigned rank, unsigned flags) {
  cudaEvent_t event = nullptr;
  api.check(api.eventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags",
            rank);
  return CudaEvent(event, CudaCloser{&api});
}

void fsdp::addInOrder(const Sum &sum, c10::Device device) {
  c10::InferenceMode inference;
  const Reduction &how = sum.reduction;
  auto tensor = [&](const void *data, c10::ScalarType type, std::size_t n) {
    // No kernel writes a source: ATen has no tensors of constant memory.
    return at::for_blob(const_cast<void *>(data),
                        {static_cast<std::int64_t>(n)})
        .options(at::TensorOptions(device).dtype(type))
        .target_device(device)
        .make_tensor();
  };
  if (how.kind == planfile::ReduceKind::First) {
    c10::ScalarType type = scalarType(how.targetType);
    tensor(sum.target, type, sum.count)
        .copy_(tensor(sum.sources[0] + sum.begin * itemSize(how.targetType),
                      type, sum.count));
    return;
  }
  // One kernel, which computes in f32 or f64 and rounds once.
  if (sum.sources.size() == 1 && how.pre == 1 &&
      how.sourceType == how.targetType && how.via == how.targetType &&
      sum.sources[0] + sum.begin * itemSize(how.sourceType) == sum.target) {
    if (how.post != 1)
      tensor(sum.target, scalarType(how.targetType), sum.count).div_(how.post);
    return;
  }
  bool isWide = how.via == DType::F64;
  bool rounds = !isWide && how.via != DType::F32 && how.via != how.targetType;
  std::byte *roundedPlace = sum.scratch + sum.chunk * sizeof(double);
  std::size_t sourceItem = itemSize(how.sourceType);
  std::size_t targetItem = itemSize(how.targetType);

  for (std::size_t done = 0; done < sum.count; done += sum.chunk) {
    std::size_t n = std::min(sum.chunk, sum.count - done);
    at::Tensor total =
        tensor(sum.scratch, isWide ? at::kDouble : at::kFloat, n);
    for (std::size_t r = 0; r != sum.sources.size(); ++r) {
      at::Tensor source =
          tensor(sum.sources[r] + (sum.begin + done) * sourceItem,
                 scalarType(how.sourceType), n);
      if (r == 0) {
        total.copy_(source);
        if (how.pre != 1)
          total.div_(how.pre);
      } else if (how.kind == planfile::ReduceKind::Max) {
        at::maximum_out(total, total, source);
      } else {
        // Exact: FSDP's divisors before the sum are powers of two.
        total.add_(source, 1 / how.pre);
      }
    }
    if (how.post != 1)
      total.div_(how.post);
    at::Tensor target =
        tensor(sum.target + done * targetItem, scalarType(how.targetType), n);
    if (rounds) {
      at::Tensor rounded = tensor(roundedPlace, scalarType(how.via), n);
      rounded.copy_(total);
      total = rounded;
    }
    target.copy_(total);
  }
}
