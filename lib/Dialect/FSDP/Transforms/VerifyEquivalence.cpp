//===- VerifyEquivalence.cpp - Check the step against its source ----------===//
//
// Values, reductions and updates by number; phases of gathers by their uses.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Equivalence.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYEQUIVALENCEPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class VerifyEquivalencePass
    : public impl::VerifyEquivalencePassBase<VerifyEquivalencePass> {
  LogicalResult verify(func::FuncOp step) {
    ModuleOp module = getOperation();
    auto source = module.lookupSymbol<func::FuncOp>("step.source");
    if (!source || !source.getBody().hasOneBlock())
      return step.emitError("expected a function '@step.source', which this "
                            "one shards, found none");
    if (failed(verifyGathers(step)))
      return failure();
    return verifyEquivalence(step, source,
                             module.lookupSymbol<func::FuncOp>("init"));
  }

  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step) || failed(verify(*step)))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
