//===- IssueOrder.cpp - Where launches and waits are to stand -------------===//
//
// A list beside the block. What may move names its place in it, all other
// operations keep their order around that.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/IssueOrder.h"

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/IR/Builders.h"

using namespace mlir;

namespace fsdp {

namespace {
/// The names of decisions, interned: every operation is asked for them.
struct Names {
  explicit Names(Block &block)
      : issue(StringAttr::get(block.getParentOp()->getContext(),
                              FSDPDialect::getIssueAttrName())),
        after(StringAttr::get(block.getParentOp()->getContext(),
                              FSDPDialect::getAfterAttrName())) {}

  static void remove(Operation *op, StringAttr name) {
    if (op->getDiscardableAttr(name))
      op->removeDiscardableAttr(name);
  }

  StringAttr issue, after;
};
} // namespace

static bool mayMove(Operation *op) {
  return isa<LaunchOpInterface, AsyncWaitOp>(op);
}

LogicalResult checkStraightLine(Block &block) {
  for (Operation &op : block)
    if (op.getNumRegions() != 0 || op.getNumSuccessors() != 0)
      return op.emitError("expected a step without control flow");
  return success();
}

FailureOr<IssueOrder> IssueOrder::read(Block &block) {
  IssueOrder order(block);
  if (failed(checkStraightLine(block)) || failed(order.readPlaces()))
    return failure();
  if (failed(order.readAfter()) || (!order.isOwn() && failed(order.check())))
    return failure();
  return order;
}

IssueOrder IssueOrder::getOwn(Block &block) {
  IssueOrder order(block);
  for (Operation &op : block)
    order.operations.push_back(&op);
  return order;
}

LogicalResult IssueOrder::readPlaces() {
  Names names(*block);
  SmallVector<Operation *, 0> slots(
      llvm::range_size(block->without_terminator()));
  SmallVector<Operation *, 0> others;
  for (Operation &op : block->without_terminator()) {
    auto place =
        dyn_cast_or_null<IntegerAttr>(op.getDiscardableAttr(names.issue));
    if (!place) {
      others.push_back(&op);
      continue;
    }
    if (!mayMove(&op))
      return op.emitError(
          "has a place to be issued at, but is no launch and no wait");
    if (place.getInt() >= int64_t(slots.size()))
      return op.emitError("is to be issued at place ")
             << place.getInt() << ", but the step has " << slots.size();
    Operation *&slot = slots[place.getInt()];
    if (slot) {
      InFlightDiagnostic diag = op.emitError("is to be issued at place ")
                                << place.getInt()
                                << ", which another operation has";
      diag.attachNote(slot->getLoc()) << "that operation";
      return diag;
    }
    slot = &op;
  }
  auto next = others.begin();
  for (Operation *op : slots)
    operations.push_back(op ? op : *next++);
  operations.push_back(block->getTerminator());
  return success();
}

LogicalResult IssueOrder::readAfter() {
  Names names(*block);
  SmallVector<Operation *, 0> byPlace;
  for (Operation *op : operations) {
    auto places = dyn_cast_or_null<DenseI64ArrayAttr>(
        op->getDiscardableAttr(names.after));
    if (!places)
      continue;
    auto launch = dyn_cast<LaunchOpInterface>(op);
    if (!launch || launch.isReduction())
      return op->emitError(
          "is to start after a reshard, but is no all-gather and no copy");
    if (byPlace.empty())
      byPlace.assign(operations.begin(), operations.end());
    for (int64_t place : places.asArrayRef()) {
      if (place < 0 || place >= int64_t(byPlace.size()) ||
          !isa<AsyncReshardOp>(byPlace[place]))
        return op->emitError("is to start after the operation at place ")
               << place << ", which is no reshard";
      addAfter(op, byPlace[place]);
    }
  }
  return success();
}

/// Between two numbers there is room for as many moves to one place.
static constexpr unsigned numMoves = 20;

void IssueOrder::number() const {
  places.reserve(operations.size());
  uint64_t number = 0;
  for (auto it = operations.begin(); it != operations.end(); ++it)
    places[*it] = {it, number += uint64_t(1) << numMoves};
}

IssueOrder::Place &IssueOrder::getPlace(Operation *op) const {
  if (places.empty())
    number();
  auto found = places.find(op);
  assert(found != places.end() && "not an operation of the block");
  return found->second;
}

bool IssueOrder::isBefore(Operation *a, Operation *b) const {
  return getPlace(a).number < getPlace(b).number;
}

Operation *IssueOrder::getNext(Operation *op) const {
  auto next = std::next(getPlace(op).it);
  return next == operations.end() ? nullptr : *next;
}

void IssueOrder::moveBefore(Operation *op, Operation *place) {
  assert(mayMove(op) && "all else keeps its order");
  if (op == place)
    return;
  Place &own = getPlace(op);
  const Place &next = getPlace(place);
  operations.splice(next.it, operations, own.it);
  uint64_t previous =
      own.it == operations.begin() ? 0 : getPlace(*std::prev(own.it)).number;
  own.number = previous + (next.number - previous) / 2;
  if (own.number == previous)
    number();
}

void IssueOrder::moveAfter(Operation *op, Operation *place) {
  if (op != place)
    moveBefore(op, getNext(place));
}

ArrayRef<Operation *> IssueOrder::getAfter(Operation *launch) const {
  auto found = after.find(launch);
  return found == after.end() ? ArrayRef<Operation *>() : found->second;
}

bool IssueOrder::isOwn() const {
  return after.empty() &&
         llvm::equal(operations, llvm::make_pointer_range(*block));
}

void IssueOrder::write() const {
  Builder builder(block->getParentOp()->getContext());
  Names names(*block);
  bool isDecided = !isOwn();
  for (auto [place, op] : llvm::enumerate(operations)) {
    if (!isDecided || !mayMove(op))
      Names::remove(op, names.issue);
    else
      op->setDiscardableAttr(names.issue, builder.getI64IntegerAttr(place));
    Names::remove(op, names.after);
  }
  if (after.empty())
    return;
  DenseMap<Operation *, int64_t> reshardPlaces;
  for (auto [place, op] : llvm::enumerate(operations))
    if (isa<AsyncReshardOp>(op))
      reshardPlaces[op] = place;
  for (const auto &[launch, reshards] : after)
    launch->setDiscardableAttr(
        names.after, builder.getDenseI64ArrayAttr(
                         llvm::map_to_vector(reshards, [&](Operation *reshard) {
                           return reshardPlaces.lookup(reshard);
                         })));
}

LogicalResult IssueOrder::check() const {
  auto reject = [&](Operation *user, Operation *producer) -> LogicalResult {
    if (producer->getBlock() != block || user->getBlock() != block ||
        isBefore(producer, user))
      return success();
    InFlightDiagnostic diag =
        user->emitError("is scheduled before what it needs");
    diag.attachNote(producer->getLoc()) << "made here";
    return diag;
  };
  // All others have kept their order.
  for (Operation *op : operations) {
    if (!mayMove(op))
      continue;
    SmallVector<Operation *> needed = llvm::to_vector(getAfter(op));
    for (Value operand : op->getOperands())
      if (Operation *producer = operand.getDefiningOp())
        needed.push_back(producer);
    for (Operation *producer : needed)
      if (failed(reject(op, producer)))
        return failure();
    for (Operation *user : op->getUsers())
      if (failed(reject(user, op)))
        return failure();
  }
  return success();
}

LogicalResult checkApplied(Block &block) {
  Names names(block);
  for (Operation &op : block)
    for (StringAttr name : {names.issue, names.after})
      if (op.getDiscardableAttr(name))
        return op.emitError("expected the schedule to be applied with "
                            "--fsdp-apply-schedule, found '")
               << name.getValue() << "'";
  return success();
}

void IssueOrder::apply() {
  Names names(*block);
  auto next = block->begin();
  for (Operation *op : operations) {
    if (op == &*next)
      ++next;
    else
      op->moveBefore(&*next);
    for (Operation *reshard : getAfter(op))
      cast<LaunchOpInterface>(op).addAfter(
          cast<AsyncReshardOp>(reshard).getFreed());
    Names::remove(op, names.issue);
    Names::remove(op, names.after);
  }
}

} // namespace fsdp
