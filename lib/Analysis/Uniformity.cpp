//===- Uniformity.cpp - What may differ from rank to rank -----------------===//
//
// A forward propagation along values, repeated until nothing is added: loops
// carry values back.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Uniformity.h"

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SmallPtrSet.h"

using namespace mlir;

namespace fsdp {

/// The argument is the same on all ranks: the caller's or the compiler's.
static bool isUniform(func::FuncOp func, unsigned argument) {
  return func.getArgAttr(argument, FSDPDialect::getHyperAttrName()) ||
         func.getArgAttr(argument, FSDPDialect::getResultAttrName()) ||
         func.getArgAttr(argument, aten::ATenDialect::getConstantAttrName());
}

/// True of a parameter's shard, or a piece, or a copy of one.
static bool isCopyOfShard(Value value) {
  value = skipCopies(value);
  return isa<BlockArgument>(value) || value.getDefiningOp<PieceOp>();
}

/// True if all ranks have the same flat parameter: not if it is ignored.
static bool isOfAllRanks(CollectiveOpInterface op,
                         SymbolTableCollection &symbols) {
  auto unit = symbols.lookupNearestSymbolFrom<UnitOp>(op, op.getUnitAttr());
  auto mesh =
      unit ? symbols.lookupNearestSymbolFrom<MeshOp>(unit, unit.getMeshAttr())
           : MeshOp();
  return mesh && mesh.getGroupSize(unit.getShardAxes()) *
                         mesh.getGroupSize(unit.getReplicateAxes()) ==
                     mesh.getNumRanks();
}

/// True if the collective leaves the same on all ranks.
static bool makesUniform(CollectiveOpInterface op) {
  SymbolTableCollection symbols;
  // Replicas have the same shards of parameters, and groups the same pieces.
  if (op.isGather())
    return isCopyOfShard(op->getOperand(0)) && isOfAllRanks(op, symbols);
  if (op.getKind() == CollectiveKind::ReduceScatter)
    return false;
  RankGroup group = getRankGroup(op, symbols);
  return group.mesh && group.getNumRanks() == group.mesh.getNumRanks();
}

bool Uniformity::mark(Value value, Value source) {
  return source && sources.try_emplace(value, source).second;
}

Value Uniformity::getOperandSource(ValueRange values) const {
  for (Value value : values)
    if (Value source = sources.lookup(value))
      return source;
  return {};
}

/// True if anything was added.
bool Uniformity::visitBranch(Operation *op) {
  auto branch = dyn_cast<RegionBranchOpInterface>(op);
  bool changed = false;
  llvm::SmallPtrSet<OpOperand *, 4> forwarded;
  // What is not handed to a successor decides which one it is.
  auto follow = [&](OperandRange operands, ValueRange inputs) {
    for (OpOperand &operand :
         operands.getBase()
             ? MutableArrayRef<OpOperand>(operands.getBase(), operands.size())
             : MutableArrayRef<OpOperand>())
      forwarded.insert(&operand);
    for (auto [operand, input] : llvm::zip(operands, inputs))
      changed |= mark(input, sources.lookup(operand));
  };
  SmallVector<RegionSuccessor> successors;
  SmallVector<Operation *> deciders{op};
  if (branch) {
    branch.getSuccessorRegions(RegionBranchPoint::parent(), successors);
    for (RegionSuccessor &successor : successors)
      follow(branch.getEntrySuccessorOperands(successor),
             successor.getSuccessorInputs());
  }
  for (Region &region : op->getRegions())
    for (Block &block : region) {
      changed |= visit(block);
      auto terminator =
          block.empty()
              ? RegionBranchTerminatorOpInterface()
              : dyn_cast<RegionBranchTerminatorOpInterface>(block.back());
      if (!branch || !terminator)
        continue;
      deciders.push_back(terminator);
      successors.clear();
      branch.getSuccessorRegions(terminator, successors);
      for (RegionSuccessor &successor : successors)
        follow(terminator.getSuccessorOperands(successor),
               successor.getSuccessorInputs());
    }

  Value source;
  for (Operation *decider : deciders)
    for (OpOperand &operand : decider->getOpOperands())
      if (Value found = sources.lookup(operand.get());
          found && !source && !forwarded.contains(&operand))
        source = found;
  if (!source)
    return changed;
  changed |= controls.try_emplace(op, source).second;
  for (Value result : op->getResults())
    changed |= mark(result, source);
  for (Region &region : op->getRegions())
    for (Block &block : region)
      for (BlockArgument argument : block.getArguments())
        changed |= mark(argument, source);
  return changed;
}

bool Uniformity::visit(Block &block) {
  bool changed = false;
  for (Operation &op : block) {
    if (op.getNumRegions()) {
      changed |= visitBranch(&op);
      continue;
    }
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    if (collective && makesUniform(collective))
      continue;
    Value source = getOperandSource(op.getOperands());
    if (isa<PieceOp>(op)) // each rank has another
      source = op.getResult(0);
    bool isKnown =
        collective || op.hasTrait<ScheduledOp>() || isMemoryEffectFree(&op);
    for (Value result : op.getResults())
      changed |= mark(result, source || isKnown ? source : result);
  }
  return changed;
}

Uniformity::Uniformity(func::FuncOp func) {
  for (BlockArgument argument : func.getArguments())
    if (!isUniform(func, argument.getArgNumber()))
      mark(argument, argument);
  while (visit(func.getBody().front()))
    ;
}

} // namespace fsdp
