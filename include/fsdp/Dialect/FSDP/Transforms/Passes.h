//===- Passes.h - Passes of the fsdp dialect --------------------*- C++ -*-===//
//
// The passes that shard and schedule a step, and the pipeline that runs them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace fsdp {

/// What is sharded, and for how long parameters stay gathered.
enum class Strategy { FullShard, ShardGradOp, NoShard };

/// What updates the shards.
enum class Optimizer { AdamW, SGD, None };

/// When the gathers of the backward are launched.
enum class Prefetch { Pre, None };

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
