//===- Reduce.h - Sums over ranks -------------------------------*- C++ -*-===//
//
// target[i] = (source_0[i] / pre + source_1[i] / pre + ...) / post, added in
// this order, so that the bits depend on nothing else. Sums of floating point
// are kept in f32 (f64 if `via` is f64), and rounded to `via` and then to the
// target's type once, at the end. The largest source may take the place of
// the sum, NaN if one is, or the first one, of any type. The target may be one
// of the sources.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_DEVICE_REDUCE_H
#define FSDP_LIB_RUNTIME_DEVICE_REDUCE_H

#include "fsdp/Schema/plan_generated.h"

#include <cstddef>
#include <span>

namespace fsdp {

struct Reduction {
  planfile::DType sourceType, targetType, via;
  double pre = 1, post = 1;
  planfile::ReduceKind kind = planfile::ReduceKind::Sum;
};

/// F16, BF16, F32 and F64 can be summed, and compared.
bool isReducible(planfile::DType type);

/// `count` elements, starting at element `begin` of each source.
void reduce(const Reduction &reduction,
            std::span<const std::byte *const> sources, std::size_t begin,
            std::byte *target, std::size_t count);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_DEVICE_REDUCE_H
