//===- LimitInFlight.cpp - Bound the gathered units that are alive --------===//
//
// Gathers are admitted one after the other, in the order in which they are
// waited for: then those alive at a wait are those in use there, and the limit
// fails only where no schedule could meet it.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/StreamOrder.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Gathers.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_LIMITINFLIGHTPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
/// Gathered units and their bytes.
struct Amount {
  int64_t units = 0;
  int64_t bytes = 0;

  Amount operator+(const Amount &other) const {
    return {units + other.units, bytes + other.bytes};
  }
  Amount operator-(const Amount &other) const {
    return {units - other.units, bytes - other.bytes};
  }
};

/// The gathers of one call: a bucket, or one alone.
struct Call {
  SmallVector<Gather *> gathers; // in the order of their waits
  Amount amount;                 // of those that count

  AsyncWaitOp getWait() const { return gathers.front()->wait; }
  /// The launches, in the order in which they stand.
  SmallVector<LaunchOpInterface> getLaunches(const IssueOrder &order) const {
    auto launches = llvm::map_to_vector(
        gathers, [](Gather *gather) { return gather->launch; });
    llvm::sort(launches, [&](LaunchOpInterface a, LaunchOpInterface b) {
      return order.isBefore(a, b);
    });
    return launches;
  }
};

class Limiter {
public:
  Limiter(Block &block, IssueOrder &order, int64_t units, int64_t bytes);

  LogicalResult checkFeasible(bool mayRaise);
  /// Raises the limit of units to what holds each call and the one before it:
  /// one is in use while the other is launched.
  void raiseToCalls();
  void apply();

private:
  void raise(Gather &gather, int64_t units, StringRef reason);
  bool fits(const Amount &amount) const {
    return (limit.units == 0 || amount.units <= limit.units) &&
           (limit.bytes == 0 || amount.bytes <= limit.bytes);
  }
  Operation *place(const Call &call, const Amount &admitted,
                   Operation *previous);

  IssueOrder &order;
  Gathers gathers;
  Amount limit; // 0: none
  /// What counts, in the order of first waits.
  SmallVector<Call> calls;
  /// The gathers that count, in the order of their ends, and what has ended
  /// with the first `i` of them.
  SmallVector<Gather *> ends;
  SmallVector<Amount> ended;
  /// How many ends the latest gather, and the latest copy, is known to come
  /// after.
  unsigned lastAwaited = 0, lastAwaitedByCopy = 0;
};
} // namespace

/// What is gathered in one phase and read in another stays for as long as the
/// strategy says: no order of launches could give its memory back earlier, and
/// a limit that counted it would wait for something that is not going to happen
/// in time.
static llvm::DenseSet<Gather *> findKept(Block &block, Gathers &gathers) {
  llvm::DenseSet<Gather *> kept;
  for (Gather &gather : gathers)
    if (!gather.reshard) // nor is what is there for the next micro-batch
      kept.insert(&gather);
  for (Operation &op : block)
    if (isa<aten::CallOp>(op))
      for (Value operand : op.getOperands())
        if (Gather *gather = gathers.lookup(operand))
          if (gather->getPhase() != getGatherPhase(&op))
            kept.insert(gather);
  return kept;
}

Limiter::Limiter(Block &block, IssueOrder &order, int64_t units, int64_t bytes)
    : order(order), gathers(block), limit{units, bytes} {
  llvm::DenseSet<Gather *> kept = findKept(block, gathers);
  DenseMap<Attribute, unsigned> buckets;
  for (Gather &gather : gathers) {
    Attribute bucket = getBucket(gather.launch);
    unsigned index = calls.size();
    if (bucket)
      index = buckets.try_emplace(bucket, index).first->second;
    if (index == calls.size())
      calls.push_back({});
    calls[index].gathers.push_back(&gather);
    if (kept.contains(&gather))
      continue;
    calls[index].amount = calls[index].amount + Amount{1, gather.getBytes()};
    ends.push_back(&gather);
  }
  llvm::erase_if(calls, [](const Call &call) { return !call.amount.units; });
  llvm::sort(ends, [&](Gather *a, Gather *b) {
    return order.isBefore(a->reshard, b->reshard);
  });
  ended.push_back({});
  for (Gather *gather : ends)
    ended.push_back(ended.back() + Amount{1, gather->getBytes()});
}

void Limiter::raise(Gather &gather, int64_t units, StringRef reason) {
  remark::passed(gather.launch.getLoc(),
                 getRemark("fsdp-limit-in-flight", "raised", gather.launch))
      << remark::metric("Unit", gather.getUnit())
      << remark::metric("From", limit.units) << remark::metric("To", units)
      << remark::reason("{0}", reason);
  limit.units = units;
}

void Limiter::raiseToCalls() {
  for (size_t i = 1; i < calls.size(); ++i)
    if (int64_t units = calls[i - 1].amount.units + calls[i].amount.units;
        limit.units && units > limit.units)
      raise(*calls[i].gathers.front(), units,
            "one call is in use while the next is launched");
}

/// Compares the limit with what is in use at each first wait, and may raise
/// that of units to it.
LogicalResult Limiter::checkFeasible(bool mayRaise) {
  Amount admitted, least;
  Gather *tooMuch = nullptr;
  unsigned numEnded = 0;
  for (const Call &call : calls) {
    while (numEnded != ends.size() &&
           order.isBefore(ends[numEnded]->reshard, call.getWait()))
      ++numEnded;
    admitted = admitted + call.amount;
    Amount used = admitted - ended[numEnded];
    if (!tooMuch && !fits(used))
      tooMuch = call.gathers.front();
    least.units = std::max(least.units, used.units);
    least.bytes = std::max(least.bytes, used.bytes);
  }
  if (!tooMuch)
    return success();
  bool isUnits = limit.units && limit.units < least.units;
  int64_t needed = isUnits ? least.units : least.bytes;
  int64_t given = isUnits ? limit.units : limit.bytes;
  if (!isUnits || !mayRaise)
    return tooMuch->launch.emitError("expected room for ")
           << needed
           << (isUnits ? " gathered units" : " bytes of gathered units")
           << ", which the step needs at once, got a limit of " << given;
  raise(*tooMuch, needed, "the step needs them at once");
  return checkFeasible(mayRaise);
}

/// Moves the call after the first end that leaves room for it, and makes it
/// depend on as many ends as it needs. Returns its last launch.
Operation *Limiter::place(const Call &call, const Amount &admitted,
                          Operation *previous) {
  unsigned needed = 0;
  while (!fits(admitted + call.amount - ended[needed]))
    ++needed;
  SmallVector<LaunchOpInterface> launches = call.getLaunches(order);
  Operation *behind = previous;
  if (needed)
    if (Operation *end = ends[needed - 1]->reshard;
        !behind || order.isBefore(behind, end))
      behind = end;
  bool isLate = behind && order.isBefore(launches.front(), behind);
  if (isLate) {
    for (LaunchOpInterface launch : llvm::reverse(launches))
      order.moveAfter(launch, behind);
    bringCopies(order, launches);
  }
  LaunchOpInterface firstCopy;
  for (LaunchOpInterface launch : launches)
    if (LaunchOpInterface copy = launch.getCopyInFlight();
        copy && (!firstCopy || order.isBefore(copy, firstCopy)))
      firstCopy = copy;
  // A stream runs in order: what an earlier launch has waited for is done.
  if (firstCopy && needed > lastAwaitedByCopy) {
    lastAwaitedByCopy = needed;
    order.addAfter(firstCopy, ends[needed - 1]->reshard);
  }
  if (needed <= lastAwaited)
    return launches.back();
  lastAwaited = needed;
  Gather *end = ends[needed - 1];
  order.addAfter(launches.front(), end->reshard);
  remark::passed(launches.front().getLoc(),
                 getRemark("fsdp-limit-in-flight", "limit", launches.front()))
      << remark::metric("Unit", launches.front().getUnitAttr().getValue())
      << remark::metric("After", end->getUnit())
      << remark::metric("Moved", isLate ? "yes" : "no")
      << remark::metric("Bytes", call.amount.bytes);
  return launches.back();
}

void Limiter::apply() {
  // The host runs ahead: the limit, and not a place, holds what is launched.
  for (Gather &gather : gathers) {
    gather.launch.setAhead(true);
    if (LaunchOpInterface copy = gather.launch.getCopyInFlight())
      copy.setAhead(true);
  }
  Amount admitted;
  Operation *previous = nullptr;
  for (const Call &call : calls) {
    previous = place(call, admitted, previous);
    admitted = admitted + call.amount;
  }
}

namespace {
class LimitInFlightPass
    : public ProgramPass<impl::LimitInFlightPassBase<LimitInFlightPass>,
                         Level::Scheduled> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    int64_t units = limitAllGathers.units;
    if (units == 0 && bytes == 0)
      return success();
    Block &block = program.getBody().front();
    auto order = IssueOrder::read(block);
    if (failed(order))
      return failure();
    Limiter limiter(block, *order, units, bytes);
    if (limitAllGathers.isDefault)
      limiter.raiseToCalls();
    if (failed(limiter.checkFeasible(limitAllGathers.isDefault)))
      return failure();
    limiter.apply();
    order->write();
    return success();
  }
};
} // namespace

} // namespace fsdp
