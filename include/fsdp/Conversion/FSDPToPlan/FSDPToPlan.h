//===- FSDPToPlan.h - Lowering of the scheduled level -----------*- C++ -*-===//
//
// The pass that turns a scheduled step into a plan: values become buffers, and
// what happens to them becomes commands.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_CONVERSION_FSDPTOPLAN_FSDPTOPLAN_H
#define FSDP_CONVERSION_FSDPTOPLAN_FSDPTOPLAN_H

#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h" // how a strategy is read

#include "mlir/Pass/Pass.h"

#include <memory>

namespace fsdp {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Conversion/FSDPToPlan/Passes.h.inc"

} // namespace fsdp

#endif // FSDP_CONVERSION_FSDPTOPLAN_FSDPTOPLAN_H
