//===- ApplySchedule.cpp - Issue launches where the schedule says ---------===//
//
// Launches take the places that they name, all others keep their order.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/StepProblem.h"
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
    return apply(program.getBody().front());
  }

  static LogicalResult apply(Block &block) {
    StringRef name = FSDPDialect::getIssueAttrName();
    SmallVector<Operation *> order(
        llvm::range_size(block.without_terminator()));
    SmallVector<Operation *> others;
    for (Operation &op : block.without_terminator()) {
      auto place = op.getAttrOfType<IntegerAttr>(name);
      if (!place) {
        others.push_back(&op);
        continue;
      }
      if (!isLaunch(&op))
        return op.emitError("has a place to be issued at, but is no launch");
      if (place.getInt() >= int64_t(order.size()))
        return op.emitError("is to be issued at place ")
               << place.getInt() << ", but the step has " << order.size();
      Operation *&slot = order[place.getInt()];
      if (slot) {
        InFlightDiagnostic diag = op.emitError("is to be issued at place ")
                                  << place.getInt()
                                  << ", which another launch has";
        diag.attachNote(slot->getLoc()) << "that launch";
        return diag;
      }
      slot = &op;
    }
    if (others.size() == order.size())
      return success();

    DenseMap<Operation *, size_t> places;
    auto next = others.begin();
    for (auto [place, op] : llvm::enumerate(order)) {
      if (!op)
        op = *next++;
      places[op] = place;
    }
    for (auto [place, op] : llvm::enumerate(order)) {
      for (Value operand : op->getOperands())
        if (Operation *producer = operand.getDefiningOp();
            producer && places.lookup(producer) >= place) {
          InFlightDiagnostic diag =
              op->emitError("is scheduled before what it needs");
          diag.attachNote(producer->getLoc()) << "made here";
          return diag;
        }
    }
    for (Operation *op : order) {
      op->moveBefore(block.getTerminator());
      op->removeAttr(name);
    }
    return success();
  }
};
} // namespace

} // namespace fsdp
