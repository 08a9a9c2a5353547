//===- Verify.cpp - Prove that a plan does what its model means -----------===//
//
// The proof stands on the plan file, so that the runtime can do it again.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/PlanTarget.h"

namespace fsdp::plan {
#define GEN_PASS_DEF_VERIFY
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"

namespace {
struct Verify : impl::VerifyBase<Verify> {
  void runOnOperation() override {
    mlir::FailureOr<planfile::PlanFile> file =
        exportPlan(getOperation(), "plan");
    if (failed(file))
      return signalPassFailure();
    if (std::string problem = symbolic::verifyPlan(file->plan());
        !problem.empty()) {
      getOperation()->emitError(problem);
      return signalPassFailure();
    }
    markAllAnalysesPreserved();
  }
};
} // namespace
} // namespace fsdp::plan
