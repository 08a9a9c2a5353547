//===- Limits.h - How large tensors may be ----------------------*- C++ -*-===//
//
// No tensor of a real program is so large, and below these limits the bytes of
// a whole program can be added up without an overflow.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_ATEN_IR_LIMITS_H
#define FSDP_DIALECT_ATEN_IR_LIMITS_H

#include "mlir/IR/BuiltinTypes.h"

namespace fsdp::aten {

/// The most elements that a tensor may have, or reach with its strides.
inline constexpr int64_t mostElements = int64_t(1) << 40;

/// True if a tensor has or reaches more. Sizes and strides that are not known
/// count as 1.
bool isTooLarge(mlir::RankedTensorType type);

} // namespace fsdp::aten

#endif // FSDP_DIALECT_ATEN_IR_LIMITS_H
