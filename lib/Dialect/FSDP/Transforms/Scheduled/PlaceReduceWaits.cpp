//===- PlaceReduceWaits.cpp - Say when the backward waits -----------------===//
//
// A reduction is launched as soon as the last gradient of its unit is there;
// this is about the other end.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Decisions.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_PLACEREDUCEWAITSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// The unit whose gradient `op` reduces; empty for anything else, as the loss.
static StringRef getReducedUnit(Operation &op) {
  auto launch = dyn_cast<LaunchOpInterface>(op);
  return launch && launch.isReduction() && launch.getUnitAttr()
             ? launch.getUnitAttr().getValue()
             : "";
}

/// The first operation after all that the backward computes and reduces, and
/// after what is waited for there already.
static Operation *getEndOfBackward(const IssueOrder &order) {
  for (Operation *op : llvm::reverse(order.getOperations())) {
    if (getReducedUnit(*op).empty() &&
        (!isa<aten::CallOp>(op) || getGatherPhase(op) == aten::Phase::Forward))
      continue;
    Operation *end = order.getNext(op);
    while (isa<AsyncWaitOp>(end))
      end = order.getNext(end);
    return end;
  }
  return order.getOperations().back();
}

/// The waits for a reduction, or for its copy to the host.
static void findWaits(Operation *launch, SmallVectorImpl<Operation *> &waits) {
  for (Operation *user : launch->getUsers())
    if (isa<AsyncWaitOp>(user))
      waits.push_back(user);
    else if (isCopy(user))
      findWaits(user, waits);
}

SmallVector<Operation *> placeReduceWaits(IssueOrder &order, ReduceWait when) {
  if (when == ReduceWait::Use)
    return {};
  // From the end, where each reduction sees what comes next.
  Operation *place = getEndOfBackward(order);
  struct Move {
    Operation *launch, *wait, *before;
  };
  SmallVector<Move> moves;
  bool isLast = false; // the next flat gradient completes a call
  for (Operation *op : llvm::reverse(order.getOperations())) {
    if (isa<FlattenGradsOp>(op) && std::exchange(isLast, false))
      place = op;
    if (getReducedUnit(*op).empty())
      continue;
    isLast = when == ReduceWait::Next;
    SmallVector<Operation *> waits;
    findWaits(op, waits);
    for (Operation *wait : waits)
      if (order.isBefore(place, wait) &&
          order.isBefore(wait->getOperand(0).getDefiningOp(), place))
        moves.push_back({op, wait, place});
  }
  SmallVector<Operation *> launches;
  for (const Move &move : llvm::reverse(moves)) {
    order.moveBefore(move.wait, move.before);
    launches.push_back(move.launch);
  }
  return launches;
}

namespace {
class PlaceReduceWaitsPass
    : public ProgramPass<impl::PlaceReduceWaitsPassBase<PlaceReduceWaitsPass>,
                         Level::Scheduled> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    auto order = IssueOrder::read(program.getBody().front());
    if (failed(order))
      return failure();
    for (Operation *launch : placeReduceWaits(*order, reduceWait))
      remark::passed(launch->getLoc(),
                     getRemark("fsdp-place-reduce-waits", "reduce", launch))
          << remark::metric("Unit", getReducedUnit(*launch))
          << remark::metric("Wait", reduceWait == ReduceWait::Next
                                        ? "in front of the next reduction"
                                        : "at the end of the backward");
    order->write();
    return success();
  }
};
} // namespace

} // namespace fsdp
