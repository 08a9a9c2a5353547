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
} // namespace fsdp::plan
