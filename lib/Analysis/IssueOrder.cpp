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

bool isLaunch(Operation *op) {
  auto streamed = dyn_cast<StreamedOpInterface>(op);
  return streamed && streamed.getStream() != Stream::Compute;
}

static bool mayMove(Operation *op) {
  return isLaunch(op) || isa<AsyncWaitOp>(op);
}

FailureOr<IssueOrder> IssueOrder::read(Block &block) {
  IssueOrder order(block);
  if (failed(order.readPlaces()))
    return failure();
  order.index();
  if (failed(order.readAfter()) || failed(order.check()))
    return failure();
  return order;
}

LogicalResult IssueOrder::readPlaces() {
  StringRef name = FSDPDialect::getIssueAttrName();
  SmallVector<Operation *, 0> slots(
      llvm::range_size(block->without_terminator()));
  SmallVector<Operation *, 0> others;
  for (Operation &op : block->without_terminator()) {
    auto place = op.getAttrOfType<IntegerAttr>(name);
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
  SmallVector<Operation *, 0> byPlace(operations.begin(), operations.end());
  for (Operation *op : byPlace) {
    auto places =
        op->getAttrOfType<DenseI64ArrayAttr>(FSDPDialect::getAfterAttrName());
    if (!places)
      continue;
    if (!isa<AsyncUnshardOp>(op))
      return op->emitError("is to start after a reshard, but is no all-gather");
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

void IssueOrder::index() {
  for (auto it = operations.begin(); it != operations.end(); ++it)
    places[*it] = it;
}

unsigned IssueOrder::getNumber(Operation *op) const {
  if (numbers.empty())
    for (auto [number, each] : llvm::enumerate(operations))
      numbers[each] = number;
  return numbers.lookup(op);
}

bool IssueOrder::isBefore(Operation *a, Operation *b) const {
  return getNumber(a) < getNumber(b);
}

Operation *IssueOrder::getNext(Operation *op) const {
  auto next = std::next(places.lookup(op));
  return next == operations.end() ? nullptr : *next;
}

void IssueOrder::moveBefore(Operation *op, Operation *place) {
  assert(mayMove(op) && "all else keeps its order");
  if (op == place)
    return;
  operations.splice(places.lookup(place), operations, places.lookup(op));
  numbers.clear();
}

void IssueOrder::moveAfter(Operation *op, Operation *place) {
  if (op != place)
    moveBefore(op, getNext(place));
}

ArrayRef<Operation *> IssueOrder::getAfter(Operation *launch) const {
  auto found = after.find(launch);
  return found == after.end() ? ArrayRef<Operation *>() : found->second;
}

void IssueOrder::write() const {
  Builder builder(block->getParentOp()->getContext());
  auto issue = builder.getStringAttr(FSDPDialect::getIssueAttrName());
  auto starts = builder.getStringAttr(FSDPDialect::getAfterAttrName());
  bool isOwn = after.empty() &&
               llvm::equal(operations, llvm::make_pointer_range(*block));
  for (auto [place, op] : llvm::enumerate(operations)) {
    if (isOwn || !mayMove(op))
      op->removeAttr(issue);
    else
      op->setAttr(issue, builder.getI64IntegerAttr(place));
    op->removeAttr(starts);
  }
  for (const auto &[launch, reshards] : after)
    launch->setAttr(starts, builder.getDenseI64ArrayAttr(llvm::map_to_vector(
                                reshards, [&](Operation *reshard) {
                                  return int64_t(getNumber(reshard));
                                })));
}

LogicalResult IssueOrder::check() const {
  for (Operation *op : operations) {
    SmallVector<Operation *> needed = llvm::to_vector(getAfter(op));
    for (Value operand : op->getOperands())
      if (Operation *producer = operand.getDefiningOp())
        needed.push_back(producer);
    for (Operation *producer : needed) {
      if (producer->getBlock() != block || isBefore(producer, op))
        continue;
      InFlightDiagnostic diag =
          op->emitError("is scheduled before what it needs");
      diag.attachNote(producer->getLoc()) << "made here";
      return diag;
    }
  }
  return success();
}

LogicalResult checkApplied(Block &block) {
  for (Operation &op : block)
    for (StringRef name :
         {FSDPDialect::getIssueAttrName(), FSDPDialect::getAfterAttrName()})
      if (op.hasAttr(name))
        return op.emitError("expected the schedule to be applied with "
                            "--fsdp-apply-schedule, found '")
               << name << "'";
  return success();
}

void IssueOrder::apply() {
  for (Operation *op : operations) {
    if (op != block->getTerminator())
      op->moveBefore(block->getTerminator());
    for (Operation *reshard : getAfter(op))
      cast<AsyncUnshardOp>(op).getAfterMutable().append(
          cast<AsyncReshardOp>(reshard).getFreed());
    op->removeAttr(FSDPDialect::getIssueAttrName());
    op->removeAttr(FSDPDialect::getAfterAttrName());
  }
}

} // namespace fsdp
