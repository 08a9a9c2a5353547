//===- InitAllPasses.h - Every pass, and the pipeline of all ----*- C++ -*-===//
//
// What a tool registers before it transforms a program.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_INITALLPASSES_H
#define FSDP_INITALLPASSES_H

#include "fsdp/Conversion/FSDPToPlan/FSDPToPlan.h"
#include "fsdp/Dialect/ATen/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/Plan/Transforms/Passes.h"
#include "fsdp/Pipelines/Pipelines.h"

#include "mlir/Transforms/Passes.h"

namespace fsdp {

inline void registerAllPasses() {
  aten::registerATenPasses();
  registerFSDPPasses();
  registerFSDPToPlanPasses();
  plan::registerPlanPasses();
  registerProofPasses();
  registerPipelines();
  mlir::registerTransformsPasses();
}

} // namespace fsdp

#endif // FSDP_INITALLPASSES_H
