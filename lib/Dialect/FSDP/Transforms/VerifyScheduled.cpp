//===- VerifyScheduled.cpp - The border between logical and scheduled -----===//
//
// What must hold once each collective has its place.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYSCHEDULEDPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class VerifyScheduledPass
    : public impl::VerifyScheduledPassBase<VerifyScheduledPass> {
  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step))
      return signalPassFailure();
    for (Operation &op : step->getOps())
      if (op.hasTrait<LogicalOp>()) {
        op.emitError("is of the logical level");
        return signalPassFailure();
      }
    if (failed(verifyGathers(*step)))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
