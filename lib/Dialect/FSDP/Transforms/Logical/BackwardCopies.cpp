//===- BackwardCopies.cpp - What the backward computes anew ---------------===//
//
// A copy stands in front of its first use; the gather that it needs comes there
// too, if it was later.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/BackwardCopies.h"

#include "fsdp/Operators/OpFacts.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace fsdp {

bool isBackward(Operation *op) {
  return isa<FlattenGradsOp>(op) ||
         (isa<aten::CallOp>(op) && getGatherPhase(op) == aten::Phase::Backward);
}

BackwardCopies::BackwardCopies(func::FuncOp step)
    : block(step.getBody().front()), symbols(step->getParentOfType<ModuleOp>()),
      builder(step.getContext()) {
  for (Operation &op : block) {
    positions[&op] = positions.size();
    auto gather = dyn_cast<UnshardOp>(op);
    if (gather && getGatherPhase(gather.getPhase()) == aten::Phase::Backward)
      gathers.try_emplace(gather.getUnitAttr(), gather);
  }
}

BackwardCopies::Operations
BackwardCopies::findParameters(llvm::function_ref<bool(UnitOp)> isWanted) {
  Operations parameters;
  for (Operation &op : block) {
    if (auto view = dyn_cast<ViewOp>(op)) {
      auto gather = view.getFull().getDefiningOp<UnshardOp>();
      auto unit = symbols.lookup<UnitOp>(view.getUnit());
      if (gather && unit && isWanted(unit) &&
          getGatherPhase(gather.getPhase()) == aten::Phase::Forward)
        parameters.insert(&op);
      continue;
    }
    auto call = dyn_cast<aten::CallOp>(op);
    if (!call || call.getInputs().empty() || !call.getFacts())
      continue;
    bool isChain = aten::getViewSource(call) ||
                   call.getFacts()->equivalent == operators::Equivalent::Copy;
    if (isChain && llvm::all_of(call.getInputs(), [&](Value input) {
          return parameters.contains(input.getDefiningOp());
        }))
      parameters.insert(&op);
  }
  return parameters;
}

BackwardCopies::Uses BackwardCopies::getUses(const Operations &ops) const {
  Uses uses;
  for (Operation *op : ops)
    for (OpOperand &use : op->getUses())
      if (Operation *user = use.getOwner();
          isBackward(user) && !ops.contains(user) && positions.contains(user))
        uses.push_back(&use);
  llvm::sort(uses, [&](OpOperand *a, OpOperand *b) {
    return std::pair(positions.lookup(a->getOwner()), a->getOperandNumber()) <
           std::pair(positions.lookup(b->getOwner()), b->getOperandNumber());
  });
  return uses;
}

SmallVector<Operation *>
BackwardCopies::getNeeded(Value value,
                          llvm::function_ref<bool(Operation *)> isCopied,
                          llvm::function_ref<bool(Value)> isKnown) const {
  llvm::SetVector<Operation *> needed;
  SmallVector<Operation *> worklist = {value.getDefiningOp()};
  while (!worklist.empty()) {
    Operation *op = worklist.pop_back_val();
    if (!op || !isCopied(op) || isKnown(op->getResult(0)) || !needed.insert(op))
      continue;
    if (!isa<ViewOp>(op)) // which gets another gather
      for (Value operand : op->getOperands())
        worklist.push_back(operand.getDefiningOp());
  }
  SmallVector<Operation *> ordered(needed.begin(), needed.end());
  llvm::sort(ordered, [&](Operation *a, Operation *b) {
    return positions.lookup(a) < positions.lookup(b);
  });
  return ordered;
}

/// What the backward gathers, and over which axes: a piece of what the forward
/// has gathered, if the unit says so; where it is taken is for a schedule to
/// say.
std::pair<ArrayAttr, Value> BackwardCopies::getKept(UnshardOp gather) {
  auto unit = symbols.lookup<UnitOp>(gather.getUnit());
  auto mesh = symbols.lookup<MeshOp>(unit.getMesh());
  ArrayAttr axes = unit.getPieceAxesAttr();
  if (!axes) {
    Value shard = gather.getShard();
    if (auto copy = shard.getDefiningOp<CopyOp>())
      shard =
          CopyOp::create(builder, copy.getLoc(), copy.getType(), copy.getUnit(),
                         aten::Phase::Backward, copy.getSource());
    return {gather.getAxes(), shard};
  }
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointAfter(gather);
  Type piece = unit.getPieceType(mesh.getGroupSize(axes),
                                 gather.getFull().getType().getElementType());
  return {axes, PieceOp::create(builder, gather.getLoc(), piece,
                                gather.getUnit(), axes, gather.getFull())};
}

/// The unit as gathered for the backward, in front of `user` if not before.
Value BackwardCopies::getFull(ViewOp view, Operation *user) {
  auto before = view.getFull().getDefiningOp<UnshardOp>();
  UnshardOp &gather = gathers[view.getUnitAttr()];
  if (gather && positions.lookup(gather) <= positions.lookup(user))
    return gather.getFull();
  if (gather) {
    gather->moveBefore(user);
    if (auto copy = gather.getShard().getDefiningOp<CopyOp>())
      copy->moveBefore(gather);
  } else {
    auto [axes, shard] = getKept(before);
    gather =
        UnshardOp::create(builder, before.getLoc(), before.getType(),
                          before.getUnit(), aten::Phase::Backward, axes, shard);
  }
  positions[gather] = positions.lookup(user);
  return gather.getFull();
}

void BackwardCopies::replace(OpOperand &use, aten::Phase phase,
                             llvm::function_ref<bool(Operation *)> isCopied,
                             IRMapping &copies) {
  Operation *user = use.getOwner();
  builder.setInsertionPoint(user);
  for (Operation *op : getNeeded(use.get(), isCopied, [&](Value value) {
         return copies.contains(value);
       })) {
    if (auto view = dyn_cast<ViewOp>(op)) {
      Value full = getFull(view, user);
      copies.map(view.getTensor(),
                 ViewOp::create(builder, view.getLoc(),
                                view.getTensor().getType(), full,
                                view.getUnitAttr(), view.getParameterAttr())
                     .getTensor());
      continue;
    }
    auto copy = cast<aten::CallOp>(builder.clone(*op, copies));
    if (phase == aten::Phase::Recompute || !isBackward(op))
      copy.setPhase(phase);
  }
  use.set(copies.lookup(use.get()));
}

} // namespace fsdp
