//===- Reduce.cpp - Sums over ranks ---------------------------------------===//
#include "Reduce.h"

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Support/Error.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace fsdp;
using planfile::DType;

namespace {

/// The sums of one chunk stay in the first-level cache.
constexpr std::size_t chunkElements = 2048;

template <typename Source, typename Sum>
void load(const Source *__restrict source, Sum *__restrict sum, std::size_t n,
          Sum pre, bool first) {
  if (first && pre == 1)
    for (std::size_t i = 0; i != n; ++i)
      sum[i] = static_cast<Sum>(source[i]);
  else if (first)
    for (std::size_t i = 0; i != n; ++i)
      sum[i] = static_cast<Sum>(source[i]) / pre;
  else if (pre == 1)
    for (std::size_t i = 0; i != n; ++i)
      sum[i] += static_cast<Sum>(source[i]);
  else
    for (std::size_t i = 0; i != n; ++i)
      sum[i] += static_cast<Sum>(source[i]) / pre;
}

/// The larger of both, NaN if one is.
template <typename Source, typename Sum>
void takeLarger(const Source *__restrict source, Sum *__restrict sum,
                std::size_t n, bool first) {
  for (std::size_t i = 0; i != n; ++i) {
    Sum value = static_cast<Sum>(source[i]);
    if (first || value > sum[i] || std::isnan(value))
      sum[i] = value;
  }
}

template <typename Target, typename Sum>
void store(const Sum *__restrict sum, Target *__restrict target,
           std::size_t n) {
  for (std::size_t i = 0; i != n; ++i)
    target[i] = static_cast<Target>(sum[i]);
}

/// Calls `visit` with a null pointer of the element type.
template <typename Visitor> void withType(DType type, Visitor visit) {
  switch (type) {
  case DType::F16:
    return visit(static_cast<c10::Half *>(nullptr));
  case DType::BF16:
    return visit(static_cast<c10::BFloat16 *>(nullptr));
  case DType::F32:
    return visit(static_cast<float *>(nullptr));
  case DType::F64:
    return visit(static_cast<double *>(nullptr));
  default:
    throw Error(std::string("a sum over ranks of ") + EnumNameDType(type) +
                " is not supported");
  }
}

template <typename Sum>
void reduceChunks(const Reduction &reduction,
                  std::span<const std::byte *const> sources, std::size_t begin,
                  std::byte *target, std::size_t count) {
  Sum sum[chunkElements];
  for (std::size_t done = 0; done < count; done += chunkElements) {
    std::size_t n = std::min(chunkElements, count - done);
    withType(reduction.sourceType, [&]<typename Source>(Source *) {
      for (std::size_t r = 0; r != sources.size(); ++r) {
        const auto *source =
            reinterpret_cast<const Source *>(sources[r]) + begin + done;
        if (reduction.kind == planfile::ReduceKind::Max)
          takeLarger(source, sum, n, r == 0);
        else
          load(source, sum, n, static_cast<Sum>(reduction.pre), r == 0);
      }
    });
    if (reduction.post != 1)
      for (std::size_t i = 0; i != n; ++i)
        sum[i] /= static_cast<Sum>(reduction.post);
    if (reduction.via == DType::BF16 || reduction.via == DType::F16)
      withType(reduction.via, [&]<typename Via>(Via *) {
        for (std::size_t i = 0; i != n; ++i)
          sum[i] =
              static_cast<Sum>(static_cast<Via>(static_cast<float>(sum[i])));
      });
    withType(reduction.targetType, [&]<typename Target>(Target *) {
      store(sum, reinterpret_cast<Target *>(target) + done, n);
    });
  }
}

} // namespace

bool fsdp::isReducible(DType type) {
  return type == DType::F16 || type == DType::BF16 || type == DType::F32 ||
         type == DType::F64;
}

void fsdp::reduce(const Reduction &reduction,
                  std::span<const std::byte *const> sources, std::size_t begin,
                  std::byte *target, std::size_t count) {
  if (reduction.kind == planfile::ReduceKind::First) {
    std::size_t item = planfile::getItemSize(reduction.targetType);
    std::memmove(target, sources.front() + begin * item, count * item);
    return;
  }
  if (reduction.via == DType::F64)
    reduceChunks<double>(reduction, sources, begin, target, count);
  else
    reduceChunks<float>(reduction, sources, begin, target, count);
}
