//===- Layout.h - FSDP's flat parameters, as plain integers -----*- C++ -*-===//
//
// Where parameters lie in a flat parameter, which elements of them each rank
// has, and how gradients are divided: PyTorch's FSDP1 to the element, so that a
// checkpoint of the one reads in the other. No IR here.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_LAYOUT_H
#define FSDP_DIALECT_FSDP_IR_LAYOUT_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <optional>

namespace fsdp {

/// Where the parameters of a unit lie. All counts are in elements.
struct FlatLayout {
  /// The first element of each parameter.
  llvm::SmallVector<int64_t> offsets;
  /// Parameters and the padding between and after them.
  int64_t numel = 0;
  /// `numel`, rounded up to a multiple of the shards.
  int64_t padded = 0;
};

/// To how many elements parameters are aligned, from the size in bytes of an
/// element of the compute type: 16 bytes, or one element if that is larger.
int64_t getAlignment(int64_t itemSize);

/// The layout of `use_orig_params=True`: each parameter starts at a multiple of
/// `alignment`, and a pad at the end makes `numel` a multiple of `shards`.
FlatLayout getAlignedLayout(llvm::ArrayRef<int64_t> numels, int64_t alignment,
                            int64_t shards);

/// The layout of `use_orig_params=False`: one parameter after the other; only
/// shards are padded.
FlatLayout getPackedLayout(llvm::ArrayRef<int64_t> numels, int64_t shards);

/// A range of elements, the end not included.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// The elements of the flat parameter, padding at the end not counted, that a
/// rank has; empty for ranks after the end.
Range getShardRange(const FlatLayout &layout, int64_t shards, int64_t rank);

/// The part of a parameter that a rank has.
struct ShardRecord {
  /// Where the part starts in the rank's shard.
  int64_t offset = 0;
  /// Which elements of the parameter it is.
  Range elements;
};

/// The part of the parameter with these elements of the flat parameter that
/// `rank` has, if any.
std::optional<ShardRecord> getShardRecord(Range parameter,
                                          const FlatLayout &layout,
                                          int64_t shards, int64_t rank);

/// What a gradient is divided by before and after its reduction over `ranks`.
struct DivideFactors {
  double pre = 1, post = 1;
};

/// Both factors near the square root of `ranks`, so that neither the sum
/// overflows nor its terms underflow in a narrow type.
DivideFactors getDivideFactors(int64_t ranks);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_IR_LAYOUT_H
