//===- VerifyScheduled.cpp - The border between logical and scheduled -----===//
//
// What must hold once each collective has its place.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYSCHEDULEDPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class VerifyScheduledPass
    : public ProgramPass<impl::VerifyScheduledPassBase<VerifyScheduledPass>,
                         Level::Logical, Level::Scheduled> {
  LogicalResult runOnProgram(func::FuncOp program) final {
    markAllAnalysesPreserved();
    for (Operation &op : program.getOps())
      if (op.hasTrait<LogicalOp>())
        return op.emitError("is of the logical level");
    if (failed(checkApplied(program.getBody().front())))
      return failure();
    return verifyGathers(program);
  }
};
} // namespace

} // namespace fsdp
