//===- Plan.h - The plan dialect --------------------------------*- C++ -*-===//
//
// The dialect of what is launched and where every byte lies, one to one with
// the plan file, and what passes ask about its buffers.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_PLAN_IR_PLAN_H
#define FSDP_DIALECT_PLAN_IR_PLAN_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/RegionKindInterface.h"

#include "fsdp/Dialect/Plan/IR/PlanDialect.h.inc"
#include "fsdp/Dialect/Plan/IR/PlanEnums.h.inc"

#define GET_TYPEDEF_CLASSES
#include "fsdp/Dialect/Plan/IR/PlanTypes.h.inc"

#define GET_ATTRDEF_CLASSES
#include "fsdp/Dialect/Plan/IR/PlanAttributes.h.inc"

#include "fsdp/Dialect/Plan/IR/PlanInterfaces.h.inc"

#define GET_OP_CLASSES
#include "fsdp/Dialect/Plan/IR/PlanOps.h.inc"

namespace fsdp::plan {

/// Sizes, strides and element type of a buffer or view.
mlir::RankedTensorType getTensorType(mlir::Value buffer);

/// The buffer that owns the bytes of a buffer or view.
BufferOp getRoot(mlir::Value buffer);

/// Where a buffer or view starts in its root, in bytes.
int64_t getRootOffset(mlir::Value buffer);

/// Bytes from the first to the last element of a tensor.
int64_t getExtent(mlir::RankedTensorType type);

using aten::isGapless;

/// The same tensor without an offset of its own.
mlir::RankedTensorType dropOffset(mlir::RankedTensorType type);

} // namespace fsdp::plan

#endif // FSDP_DIALECT_PLAN_IR_PLAN_H
