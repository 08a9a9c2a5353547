//===- Prefetch.cpp - Launch gathers before they are needed ---------------===//
//
// FSDP1's choice of what is gathered early, and where, over the order that the
// step itself has. All moves are found first, and made then.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Gathers.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_PREFETCHPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
/// What the step says about one unit.
struct Use {
  Gather *forward = nullptr;  // also that of both phases
  Gather *backward = nullptr; // null if the forward's serves
  Operation *reduction = nullptr;
  Operation *lastInForward = nullptr;
  Operation *firstInBackward = nullptr;
};

/// One gather that is launched early.
struct Move {
  Gather *gather;
  Operation *before;
  StringRef during;
};

class Prefetcher {
public:
  Prefetcher(Block &block, IssueOrder &order) : order(order), gathers(block) {
    collect();
  }

  void prefetchForward(int64_t distance);
  void prefetchBackward(BackwardPrefetch when);
  void apply();

private:
  void collect();
  bool prefetch(Gather *gather, Operation *before, StringRef during);

  IssueOrder &order;
  Gathers gathers;
  llvm::MapVector<StringRef, Use> units;
  Operation *backwardBegin = nullptr; // after the loss
  SmallVector<Move> moves;
  llvm::DenseSet<Gather *> moved;
};
} // namespace

void Prefetcher::collect() {
  for (Gather &gather : gathers)
    (gather.getPhase() == aten::Phase::Forward
         ? units[gather.getUnit()].forward
         : units[gather.getUnit()].backward) = &gather;
  bool afterLoss = false;
  for (Operation *op : order.getOperations()) {
    if (auto launch = dyn_cast<LaunchOpInterface>(op);
        launch && launch.isReduction()) {
      if (FlatSymbolRefAttr unit = launch.getUnitAttr())
        units[unit.getValue()].reduction = op;
      else
        afterLoss = true;
    } else if (isa<aten::CallOp>(op)) {
      bool isForward = getGatherPhase(op) == aten::Phase::Forward;
      if (!isForward && afterLoss && !backwardBegin)
        backwardBegin = op;
      for (Value operand : op->getOperands())
        if (Gather *gather = gathers.lookup(operand)) {
          Use &use = units[gather->getUnit()];
          if (isForward)
            use.lastInForward = op;
          else if (!use.firstInBackward)
            use.firstInBackward = op;
        }
    }
  }
}

/// Launches `gather` in front of `before`, unless it is launched early already
/// or that would be too late.
bool Prefetcher::prefetch(Gather *gather, Operation *before, StringRef during) {
  if (!gather || !order.isBefore(before, gather->wait) ||
      !moved.insert(gather).second)
    return false;
  moves.push_back({gather, before, during});
  return true;
}

/// Where a unit is first used, the next ones are launched: the order is that of
/// first uses.
void Prefetcher::prefetchForward(int64_t distance) {
  SmallVector<Gather *> forward;
  for (Gather &gather : gathers)
    if (gather.getPhase() == aten::Phase::Forward)
      forward.push_back(&gather);
  for (auto [index, current] : llvm::enumerate(forward))
    for (Gather *next :
         ArrayRef(forward).drop_front(index + 1).take_front(distance))
      prefetch(next, getPlaceAfter(order, current->wait), current->getUnit());
}

/// The target of a unit is the one before it in the order in which modules end
/// in the forward: that of last uses.
void Prefetcher::prefetchBackward(BackwardPrefetch when) {
  SmallVector<std::pair<StringRef, Use>> ended;
  for (auto &[name, use] : units)
    if (use.lastInForward && use.firstInBackward)
      ended.push_back({name, use});
  llvm::sort(ended, [&](const auto &a, const auto &b) {
    Operation *left = a.second.lastInForward, *right = b.second.lastInForward;
    return left == right ? a.first < b.first : order.isBefore(left, right);
  });

  // Each unit has one place where its target is launched.
  struct Place {
    Operation *before;
    StringRef unit;
    Gather *target;
  };
  SmallVector<Place> places;
  for (auto [target, current] :
       llvm::zip(ArrayRef(ended).drop_back(ended.empty() ? 0 : 1),
                 ArrayRef(ended).drop_front(ended.empty() ? 0 : 1))) {
    auto &[name, use] = current;
    Gather *gather = use.backward ? use.backward : use.forward;
    Operation *before = nullptr;
    if (when == BackwardPrefetch::Pre) {
      before = use.backward ? getPlaceAfter(order, use.backward->wait)
                            : use.firstInBackward;
    } else {
      before = gather->reshard ? getPlaceAfter(order, gather->reshard)
                               : use.firstInBackward;
      if (use.reduction && order.isBefore(before, use.reduction))
        before = use.reduction;
    }
    places.push_back({before, name, target.second.backward});
  }
  llvm::sort(places, [&](const Place &a, const Place &b) {
    return a.before == b.before ? a.unit < b.unit
                                : order.isBefore(a.before, b.before);
  });
  // The first unit of the backward may be there from the forward: then its
  // target is launched where the backward begins.
  if (when == BackwardPrefetch::Pre && !places.empty() && backwardBegin &&
      !units[places.front().unit].backward &&
      order.isBefore(backwardBegin, places.front().before))
    places.front().before = backwardBegin;
  for (const Place &place : places)
    prefetch(place.target, place.before, place.unit);
}

void Prefetcher::apply() {
  DenseMap<Operation *, int64_t> callsBefore; // for remarks
  if (!moves.empty() && moves.front().before->getContext()->getRemarkEngine()) {
    int64_t calls = 0;
    for (Operation *op : order.getOperations()) {
      callsBefore[op] = calls;
      calls += isa<aten::CallOp>(op);
    }
  }
  for (const Move &move : moves) {
    order.moveBefore(move.gather->launch, move.before);
    bringCopies(order, move.gather->launch);
    remark::passed(move.gather->launch.getLoc(),
                   getRemark("fsdp-prefetch", "prefetch", move.gather->launch))
        << remark::metric("Unit", move.gather->getUnit())
        << remark::metric("During", move.during)
        << remark::metric("Calls", callsBefore.lookup(move.gather->wait) -
                                       callsBefore.lookup(move.before))
        << remark::metric("Bytes", move.gather->getBytes());
  }
}

namespace {
class PrefetchPass : public ProgramPass<impl::PrefetchPassBase<PrefetchPass>,
                                        Level::Scheduled> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    if (forwardPrefetch < 0)
      return program.emitError(
                 "expected to gather at least 0 units ahead, got ")
             << int64_t(forwardPrefetch);
    Block &block = program.getBody().front();
    auto order = IssueOrder::read(block);
    if (failed(order))
      return failure();
    Prefetcher prefetcher(block, *order);
    prefetcher.prefetchForward(forwardPrefetch);
    if (backwardPrefetch != BackwardPrefetch::None)
      prefetcher.prefetchBackward(backwardPrefetch);
    prefetcher.apply();
    order->write();
    return success();
  }
};
} // namespace

} // namespace fsdp
