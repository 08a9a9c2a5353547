//===- VerifyFutures.cpp - Check lives of futures and gathered units ------===//
//
// A forward walk with a state: what is outstanding, and what is done with.
// Regions are walked along RegionBranchOpInterface until their states no longer
// grow; in straight-line code, which a step is, the one state moves along and
// is never copied, so that the check is linear where a general data flow is
// not.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYFUTURESPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

/// What may hold at a point. A value in both sets is outstanding on one path to
/// the point and done with on another.
struct Outstanding {
  llvm::SetVector<Value> open;         // futures and gathered units
  DenseMap<Value, Operation *> closed; // also shards; and what ended each

  /// True if this grew.
  bool join(const Outstanding &other) {
    bool grew = open.set_union(other.open);
    for (auto [value, end] : other.closed)
      grew |= closed.try_emplace(value, end).second;
    return grew;
  }
  void close(Value value, Operation &end) {
    open.remove(value);
    closed.try_emplace(value, &end);
  }
};

bool isTracked(Value value) {
  return isa<FutureType, GatheredType>(value.getType());
}

/// What `op` writes over: an optimizer its states, a sum its first summand.
SmallVector<Value> getUpdatedShards(Operation &op) {
  SmallVector<Value> shards;
  if (auto accumulate = dyn_cast<AccumulateOp>(op))
    shards.push_back(accumulate.getSum());
  if (auto update = dyn_cast<UpdateOpInterface>(op))
    for (const UpdatedState &state : update.getStates())
      shards.push_back(state.before);
  return shards;
}

/// The shard that a launch reads, also by way of a copy in flight; or null.
Value getReadShard(Value future) {
  while (future && isa<FutureType>(future.getType())) {
    auto launch = future.getDefiningOp<LaunchOpInterface>();
    future = launch && !launch.isReduction() ? launch.getLaunched() : Value();
  }
  return future;
}

class FutureVerifier {
public:
  LogicalResult verify(func::FuncOp func) {
    Outstanding state;
    for (BlockArgument argument : func.getArguments())
      if (!func.getArgAttr(argument.getArgNumber(),
                           FSDPDialect::getStateAttrName()))
        define(argument, state); // states outlive the program
    if (failed(visit(func.getBody().front(), state)))
      return failure();
    for (Value value : state.open) {
      bool isFuture = isa<FutureType>(value.getType());
      InFlightDiagnostic diag =
          emitError(value.getLoc())
          << (isFuture ? "collective may never be waited for"
                       : "gathered unit may never be resharded");
      diag.attachNote(func.getBody().front().getTerminator()->getLoc())
          << "function returns here";
      return diag;
    }
    return success();
  }

private:
  /// A definition starts a new life, also that of an earlier loop iteration.
  void define(Value value, Outstanding &state) {
    if (!isTracked(value))
      return;
    state.closed.erase(value);
    state.open.insert(value);
  }

  /// Whose memory `value` is: itself, or the gathered units that it views.
  ArrayRef<Value> getOwners(Value value) {
    auto found = owners.find(value);
    return found == owners.end() ? ArrayRef<Value>()
                                 : found->second.getArrayRef();
  }
  void addOwners(Value value, Value from) {
    if (isTracked(value)) // takes over instead
      return;
    SmallVector<Value> list(getOwners(from));
    if (isa<GatheredType>(from.getType()))
      list.push_back(from);
    if (!list.empty())
      owners[value].insert(list.begin(), list.end());
  }

  LogicalResult checkAlive(Operation &op, Value value,
                           const Outstanding &state) {
    auto end = state.closed.find(value);
    if (end == state.closed.end())
      return success();
    bool isFuture = isa<FutureType>(value.getType());
    bool isShard = isa<ShardType, RankedTensorType>(value.getType());
    InFlightDiagnostic diag = op.emitError(
        isFuture  ? "collective may already have been waited for"
        : isShard ? "shard may already have been updated, in its place"
                  : "gathered unit may already have been resharded");
    diag.attachNote(end->second->getLoc()) << (isFuture  ? "waited for here"
                                               : isShard ? "updated here"
                                                         : "resharded here");
    return diag;
  }

  /// What an update writes over, nobody reads any more.
  LogicalResult update(Operation &op, ValueRange shards, Outstanding &state) {
    if (shards.empty())
      return success();
    for (Value future : state.open) {
      Value shard = getReadShard(future);
      if (!shard || !llvm::is_contained(shards, shard))
        continue;
      bool isCopied = future.getDefiningOp<LaunchOpInterface>().isCopy();
      InFlightDiagnostic diag =
          op.emitError("shard is updated while it may still be ")
          << (isCopied ? "copied" : "gathered") << ": expected the "
          << (isCopied ? "copy" : "gather") << " to be waited for before";
      diag.attachNote(future.getLoc()) << "launched here";
      return diag;
    }
    for (Value shard : shards)
      state.close(shard, op);
    return success();
  }

  LogicalResult checkOperands(Operation &op, const Outstanding &state) {
    for (Value operand : op.getOperands()) {
      if ((isTracked(operand) ||
           isa<ShardType, RankedTensorType>(operand.getType())) &&
          failed(checkAlive(op, operand, state)))
        return failure();
      for (Value owner : getOwners(operand))
        if (failed(checkAlive(op, owner, state)))
          return failure();
    }
    return success();
  }

  LogicalResult visit(Block &block, Outstanding &state) {
    for (Operation &op : block) {
      if (failed(checkOperands(op, state)))
        return failure();
      // A future moves on to whoever takes it; a gathered unit ends by reshard.
      for (Value operand : op.getOperands())
        if (isa<FutureType>(operand.getType()) ||
            (isa<GatheredType>(operand.getType()) &&
             (isa<AsyncReshardOp>(op) || op.hasTrait<OpTrait::IsTerminator>() ||
              op.getNumRegions())))
          state.close(operand, op);
      if (failed(update(op, getUpdatedShards(op), state)))
        return failure();
      if (auto branch = dyn_cast<RegionBranchOpInterface>(op)) {
        if (failed(visit(branch, state)))
          return failure();
      } else if (op.getNumRegions()) {
        return op.emitError("expected control flow that can be followed");
      }
      if (Value source = aten::getViewSource(&op))
        for (Value result : op.getResults())
          addOwners(result, source);
      for (Value result : op.getResults())
        define(result, state);
    }
    return success();
  }

  /// Walks the regions of `op` until nothing new arrives at any of them;
  /// `state` becomes what holds after it.
  LogicalResult visit(RegionBranchOpInterface op, Outstanding &state) {
    DenseMap<Region *, Outstanding> entries;
    Outstanding exit;
    bool reachesExit = false, changed = true;
    // Passes `from` on to a successor, whose arguments or results start lives.
    auto arrive = [&](const RegionSuccessor &successor, OperandRange operands,
                      const Outstanding &from) {
      Outstanding there = from;
      for (auto [operand, input] :
           llvm::zip(operands, successor.getSuccessorInputs())) {
        define(input, there);
        addOwners(input, operand);
      }
      if (successor.isParent()) {
        reachesExit = true;
        changed |= exit.join(there);
      } else {
        auto [entry, isNew] = entries.try_emplace(successor.getSuccessor());
        changed |= entry->second.join(there) || isNew;
      }
    };
    SmallVector<RegionSuccessor> successors;
    op.getSuccessorRegions(RegionBranchPoint::parent(), successors);
    for (RegionSuccessor &successor : successors)
      arrive(successor, op.getEntrySuccessorOperands(successor), state);
    while (changed) {
      changed = false;
      for (Region &region : op->getRegions()) {
        if (region.empty() || !entries.contains(&region))
          continue;
        if (!region.hasOneBlock())
          return op.emitError("expected one block per region");
        Outstanding inside = entries[&region];
        Block &block = region.front();
        if (failed(visit(block, inside)))
          return failure();
        auto terminator =
            dyn_cast<RegionBranchTerminatorOpInterface>(block.getTerminator());
        if (!terminator)
          return op.emitError("expected control flow that can be followed");
        SmallVector<RegionSuccessor> next;
        op.getSuccessorRegions(terminator, next);
        for (RegionSuccessor &successor : next)
          arrive(successor, terminator.getSuccessorOperands(successor), inside);
      }
    }
    if (reachesExit)
      state = std::move(exit);
    return success();
  }

  DenseMap<Value, llvm::SetVector<Value>> owners;
};

class VerifyFuturesPass
    : public impl::VerifyFuturesPassBase<VerifyFuturesPass> {
  void runOnOperation() final {
    for (auto func : getOperation().getOps<func::FuncOp>())
      if (!func.isDeclaration() && !isSource(func) &&
          failed(FutureVerifier().verify(func)))
        return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
