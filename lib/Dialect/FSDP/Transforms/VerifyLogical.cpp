//===- VerifyLogical.cpp - The border between aten and logical level ------===//
//
// What must hold once the step is sharded.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYLOGICALPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

static LogicalResult verify(func::FuncOp step) {
  for (unsigned i = 0, e = step.getNumArguments(); i < e; ++i)
    if (auto name = step.getArgAttr(i, aten::ATenDialect::getParamAttrName()))
      return step.emitError("parameter ") << name << " is not sharded";
  for (unsigned i = 0, e = step.getNumResults(); i < e; ++i)
    if (auto name =
            step.getResultAttr(i, aten::ATenDialect::getGradOfAttrName()))
      return step.emitError("the gradient of ") << name << " is not reduced";
  for (Operation &op : step.getOps())
    if (op.hasTrait<ScheduledOp>())
      return op.emitError("is of the scheduled level");
  return verifyGathers(step);
}

namespace {
class VerifyLogicalPass
    : public impl::VerifyLogicalPassBase<VerifyLogicalPass> {
  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step) || failed(verify(*step)))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
