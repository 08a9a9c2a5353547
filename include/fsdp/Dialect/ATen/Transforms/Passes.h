//===- Passes.h - Passes of the ATen dialect --------------------*- C++ -*-===//
//
// The passes that change what a step computes with, before it is sharded.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_ATEN_TRANSFORMS_PASSES_H
#define FSDP_DIALECT_ATEN_TRANSFORMS_PASSES_H

#include "fsdp/Dialect/ATen/IR/ATen.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace fsdp::aten {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Dialect/ATen/Transforms/Passes.h.inc"

} // namespace fsdp::aten

#endif // FSDP_DIALECT_ATEN_TRANSFORMS_PASSES_H
