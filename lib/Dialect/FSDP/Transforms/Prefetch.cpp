//===- Prefetch.cpp - Launch the gathers of the backward early ------------===//
//
// FSDP's BACKWARD_PRE, over the order that the step itself has.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_PREFETCHPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class PrefetchPass : public impl::PrefetchPassBase<PrefetchPass> {
  using PrefetchPassBase::PrefetchPassBase;

  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step))
      return signalPassFailure();
    if (backward == Prefetch::Pre)
      prefetch(step->getBody().front());
  }

  /// The phase of the gather that is waited for, if it is one.
  static std::optional<aten::Phase> getPhase(AsyncWaitOp wait) {
    auto gather = wait.getFuture().getDefiningOp<AsyncUnshardOp>();
    return gather ? std::optional(getGatherPhase(gather.getPhase()))
                  : std::nullopt;
  }

  void prefetch(Block &block) {
    // The waits for gathers of the backward, in order. The first of these may
    // be launched where the backward starts, if that is the root's: if a unit
    // is still gathered from the forward then.
    GatheredViews views(block);
    SmallVector<AsyncWaitOp> waits;
    Operation *start = nullptr;
    bool afterLoss = false, rootIsGathered = false;
    for (Operation &op : block) {
      if (auto wait = dyn_cast<AsyncWaitOp>(op)) {
        if (getPhase(wait) == aten::Phase::Backward)
          waits.push_back(wait);
      } else if (auto reduction = dyn_cast<AsyncAllReduceOp>(op)) {
        afterLoss |= reduction.getMesh().has_value();
      } else if (isa<aten::CallOp>(op) &&
                 getGatherPhase(&op) == aten::Phase::Backward) {
        if (!start && afterLoss)
          start = &op;
        rootIsGathered |= llvm::any_of(op.getOperands(), [&](Value operand) {
          Value full = views.lookup(operand);
          auto wait = full ? full.getDefiningOp<AsyncWaitOp>() : AsyncWaitOp();
          return wait && getPhase(wait) == aten::Phase::Forward;
        });
      }
    }
    if (!rootIsGathered)
      start = nullptr;
    for (auto [index, wait] : llvm::enumerate(waits)) {
      Operation *gather = wait.getFuture().getDefiningOp();
      if (index > 0)
        gather->moveAfter(waits[index - 1]);
      else if (start)
        gather->moveBefore(start);
      else
        continue;
      remark::passed(gather->getLoc(), remark::RemarkOpts::name("prefetch")
                                           .category("fsdp-prefetch")
                                           .function("step"))
          << remark::metric("Unit", cast<AsyncUnshardOp>(gather).getUnit())
          << remark::metric("During", index > 0
                                          ? waits[index - 1]
                                                .getFuture()
                                                .getDefiningOp<AsyncUnshardOp>()
                                                .getUnit()
                                          : StringRef("the root"));
    }
  }
};
} // namespace

} // namespace fsdp
