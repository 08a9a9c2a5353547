//===- VerifyPlan.cpp - Prove that a plan does what its model means -------===//
//
// The proof stands on the plan file, so that the runtime can do it again.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Pipelines/Pipelines.h"

#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/PlanTarget.h"

namespace fsdp {
#define GEN_PASS_DEF_VERIFYPLAN
#include "fsdp/Pipelines/Passes.h.inc"

namespace {
struct VerifyPlan : impl::VerifyPlanBase<VerifyPlan> {
  void runOnOperation() override {
    mlir::FailureOr<planfile::PlanFile> file =
        exportPlan(getOperation(), "plan");
    if (failed(file))
      return signalPassFailure();
    if (symbolic::Proof proof = symbolic::verifyPlan(file->plan()); !proof) {
      getOperation()->emitError(proof.verdict == symbolic::Proof::CannotProve
                                    ? "cannot prove the plan: "
                                    : "")
          << proof.message;
      return signalPassFailure();
    }
    markAllAnalysesPreserved();
  }
};
} // namespace
} // namespace fsdp
