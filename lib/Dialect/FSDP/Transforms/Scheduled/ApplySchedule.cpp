//===- ApplySchedule.cpp - Make the order that was decided ---------===//
//
// The one pass that moves what others have decided about.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_APPLYSCHEDULEPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class ApplySchedulePass
    : public ProgramPass<impl::ApplySchedulePassBase<ApplySchedulePass>,
                         Level::Scheduled> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    auto order = IssueOrder::read(program.getBody().front());
    if (failed(order))
      return failure();
    order->apply();
    return success();
  }
};
} // namespace

} // namespace fsdp
