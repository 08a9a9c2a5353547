//===- Layout.cpp - FSDP's flat parameters, as plain integers -------------===//
//
// The arithmetic of FlatParamHandle.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/Layout.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace fsdp {

int64_t getAlignment(int64_t itemSize) {
  return std::max<int64_t>(16 / itemSize, 1);
}

FlatLayout getAlignedLayout(llvm::ArrayRef<int64_t> numels, int64_t alignment,
                            int64_t shards) {
  FlatLayout layout;
  for (int64_t numel : numels) {
    int64_t offset = llvm::alignTo(layout.numel, alignment);
    layout.offsets.push_back(offset);
    layout.numel = offset + numel;
  }
  layout.numel = llvm::alignTo(layout.numel, shards);
  layout.padded = layout.numel;
  return layout;
}

FlatLayout getPackedLayout(llvm::ArrayRef<int64_t> numels, int64_t shards) {
  FlatLayout layout;
  for (int64_t numel : numels) {
    layout.offsets.push_back(layout.numel);
    layout.numel += numel;
  }
  layout.padded = llvm::alignTo(layout.numel, shards);
  return layout;
}

Range getShardRange(const FlatLayout &layout, int64_t shards, int64_t rank) {
  int64_t size = layout.padded / shards;
  int64_t begin = std::min(rank * size, layout.numel);
  return {begin, std::min((rank + 1) * size, layout.numel)};
}

std::optional<ShardRecord> getShardRecord(Range parameter,
                                          const FlatLayout &layout,
                                          int64_t shards, int64_t rank) {
  Range shard = getShardRange(layout, shards, rank);
  int64_t begin = std::max(parameter.begin, shard.begin);
  int64_t end = std::min(parameter.end, shard.end);
  if (begin >= end)
    return std::nullopt;
  return ShardRecord{begin - shard.begin,
                     {begin - parameter.begin, end - parameter.begin}};
}

DivideFactors getDivideFactors(int64_t ranks) {
  int64_t pre = 1;
  while (ranks % pre == 0 && ranks / pre > pre)
    pre *= 2;
  return {static_cast<double>(pre), static_cast<double>(ranks) / pre};
}

} // namespace fsdp
