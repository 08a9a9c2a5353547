//===- VerifyEquivalence.cpp - Check the step against its source ----------===//
//
// Values, reductions and updates by number; phases of gathers by their uses.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Equivalence.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYEQUIVALENCEPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class VerifyEquivalencePass
    : public ProgramPass<impl::VerifyEquivalencePassBase<VerifyEquivalencePass>,
                         Level::Logical, Level::Scheduled> {
  LogicalResult runOnProgram(func::FuncOp step) final {
    func::FuncOp source = getSource(step);
    if (!source || !source.getBody().hasOneBlock())
      return step.emitError("expected a function with 'fsdp.source = @")
             << step.getSymName() << "', which this one shards; found none";
    if (failed(verifyGathers(step)))
      return failure();
    markAllAnalysesPreserved();
    return verifyEquivalence(step, source, getInit(getOperation()));
  }
};
} // namespace

} // namespace fsdp
