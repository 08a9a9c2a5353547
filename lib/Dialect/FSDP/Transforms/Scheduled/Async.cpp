//===- Async.cpp - Turn collectives into launches and waits ---------------===//
//
// One walk finds first and last uses, another puts launches, waits and ends in.
// What is kept of a gathered unit is taken in front of its end.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Decisions.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_ASYNCPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// True if another launch alone takes the result, which may be in flight then:
/// a copy to the host and a further reduction that of a reduction, a gather
/// that of a copy.
static bool isTakenInFlight(Value value) {
  if (!value.hasOneUse())
    return false;
  Operation *user = *value.user_begin();
  return isa<CopyOp>(user) ||
         (isa<UnshardOp>(user) && value.getDefiningOp<CopyOp>()) ||
         (isa<AllReduceOp>(user) &&
          isa<ReduceScatterOp, AllReduceOp>(value.getDefiningOp()));
}

/// A piece is kept from where its unit is read for the last time, unless it is
/// needed before.
static void placePiece(PieceOp piece, Operation *&first, Operation *&last) {
  if (last && !last->hasTrait<OpTrait::IsTerminator>() &&
      llvm::all_of(piece->getUsers(), [&](Operation *user) {
        return last->isBeforeInBlock(user);
      }))
    piece->moveAfter(last);
  if (!first || piece->isBeforeInBlock(first))
    first = piece;
  if (!last || last->isBeforeInBlock(piece))
    last = piece;
}

LogicalResult makeAsync(func::FuncOp step) {
  Block &block = step.getBody().front();

  DenseMap<Value, Operation *> firstUse; // of a collective's result
  DenseMap<Value, Operation *> lastUse;  // of a gathered unit and its views
  DenseSet<Value> returned;
  for (Operation &op : block) {
    if (isa<PieceOp>(op))
      continue;
    for (Value operand : op.getOperands()) {
      // A gathered unit itself is returned for the next micro-batch.
      if (isa<func::ReturnOp>(op) && isa<GatheredType>(operand.getType())) {
        returned.insert(operand);
        continue;
      }
      Operation *producer = operand.getDefiningOp();
      if (producer && producer->hasTrait<LogicalOp>())
        firstUse.try_emplace(operand, &op);
      if (Value root = aten::getViewRoot(operand);
          isa<GatheredType>(root.getType()))
        lastUse[root] = &op;
    }
  }

  // Of units that end at one operation, the one that is gathered last is the
  // first to end: what is kept of it, and then its memory.
  OpBuilder builder(step.getContext());
  SmallVector<Operation *, 0> collectives;
  for (Operation &op : block)
    if (op.hasTrait<LogicalOp>())
      collectives.push_back(&op);
  for (Operation *op : collectives) {
    Value value = op->getResult(0);
    for (Operation *user : llvm::to_vector(value.getUsers()))
      if (auto piece = dyn_cast<PieceOp>(user))
        placePiece(piece, firstUse[value], lastUse[value]);
    builder.setInsertionPoint(op);
    Value future = createLaunch(builder, op).getFuture();
    if (isTakenInFlight(value)) {
      value.replaceAllUsesWith(future);
      op->erase();
      continue;
    }
    if (Operation *use = firstUse.lookup(value))
      builder.setInsertionPoint(use);
    Value awaited =
        AsyncWaitOp::create(builder, op->getLoc(), value.getType(), future);
    if (isa<GatheredType>(value.getType())) {
      Operation *last = lastUse.lookup(value);
      if (last && last->hasTrait<OpTrait::IsTerminator>())
        return op->emitError("the step returns memory of this gathered unit");
      builder.setInsertionPointAfter(last ? last : awaited.getDefiningOp());
      if (!returned.contains(value))
        AsyncReshardOp::create(builder, op->getLoc(), awaited);
    }
    value.replaceAllUsesWith(awaited);
    op->erase();
  }
  return success();
}

namespace {
class AsyncPass
    : public ProgramPass<impl::AsyncPassBase<AsyncPass>, Level::Logical> {
  using ProgramPass::ProgramPass;

  LogicalResult runOnProgram(func::FuncOp program) final {
    return makeAsync(program);
  }
};
} // namespace

} // namespace fsdp
