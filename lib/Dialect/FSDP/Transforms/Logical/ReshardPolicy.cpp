//===- ReshardPolicy.cpp - What stays gathered after the forward ----------===//
//
// One gather for both phases, or one for each: what the backward reads of a
// unit is made anew from a gather of its own, over all ranks or in small groups
// that keep the pieces.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/BackwardCopies.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_RESHARDPOLICYPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// Gives the backward a gather of its own, of each unit that is resharded.
static void splitGathers(func::FuncOp step, ArrayAttr kept) {
  BackwardCopies copies(step, kept);
  BackwardCopies::Operations parameters = copies.findParameters(
      [](UnitOp unit) { return unit.getReshardAfterForward(); });
  IRMapping mapping;
  for (OpOperand *use : copies.getUses(parameters))
    copies.replace(
        *use, aten::Phase::Backward,
        [&](Operation *op) { return parameters.contains(op); }, mapping);
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(step.getBody().front())))
    if (parameters.contains(&op) && op.use_empty())
      op.erase();
}

/// Lets the gather of the forward serve the backward, of each unit that is not.
static void mergeGathers(func::FuncOp step) {
  SymbolTable symbols(step->getParentOfType<ModuleOp>());
  DenseMap<Attribute, UnshardOp> first;
  for (auto gather : llvm::make_early_inc_range(step.getOps<UnshardOp>())) {
    if (symbols.lookup<UnitOp>(gather.getUnit()).getReshardAfterForward())
      continue;
    auto [entry, isNew] = first.try_emplace(gather.getUnitAttr(), gather);
    if (isNew)
      continue;
    gather.replaceAllUsesWith(entry->second.getFull());
    auto copy = gather.getShard().getDefiningOp<CopyOp>();
    gather.erase();
    if (copy && copy->use_empty())
      copy.erase();
  }
}

void applyReshard(func::FuncOp step, ArrayAttr kept) {
  splitGathers(step, kept);
  mergeGathers(step);
}

void setReshardAfterForward(func::FuncOp step, bool reshard, ArrayAttr kept) {
  // The backward starts where the forward ends, with the root: freeing it in
  // between would only mean to gather it at once again.
  for (auto unit : step->getParentOfType<ModuleOp>().getOps<UnitOp>())
    unit.setReshardAfterForward(reshard && !unit.getRoot() &&
                                !unit.getKeptAfterBackward() &&
                                !unit.getShardAxes().empty());
  applyReshard(step, kept);
}

/// Splits the innermost axis over which units are sharded into groups of so
/// many ranks, in the mesh and in whatever is over it. Returns the axes of a
/// group.
static ArrayAttr splitShardAxis(ArrayRef<func::FuncOp> programs, MeshOp mesh,
                                ArrayAttr shardAxes, int64_t ranks) {
  Builder builder(mesh.getContext());
  auto shard = cast<StringAttr>(shardAxes.getValue().back());
  std::string name = "local";
  while (mesh.getAxisSize(name))
    name += '_';
  StringAttr local = builder.getStringAttr(name);
  SmallVector<Attribute> axes;
  for (auto axis : mesh.getAxes().getAsRange<AxisAttr>()) {
    if (axis.getName() != shard) {
      axes.push_back(axis);
      continue;
    }
    axes.push_back(
        AxisAttr::get(mesh.getContext(), shard, axis.getSize() / ranks));
    axes.push_back(AxisAttr::get(mesh.getContext(), local, ranks));
  }
  mesh.setAxesAttr(builder.getArrayAttr(axes));
  auto widen = [&](ArrayAttr old) {
    SmallVector<Attribute> names;
    for (Attribute name : old) {
      names.push_back(name);
      if (name == shard)
        names.push_back(local);
    }
    return builder.getArrayAttr(names);
  };
  for (auto unit : mesh->getParentOfType<ModuleOp>().getOps<UnitOp>()) {
    unit.setShardAxesAttr(widen(unit.getShardAxes()));
    unit.setReplicateAxesAttr(widen(unit.getReplicateAxes()));
  }
  for (func::FuncOp program : programs)
    for (Operation &op : program.getOps())
      TypeSwitch<Operation *>(&op)
          .Case<UnshardOp, ReduceScatterOp, AllReduceOp>(
              [&](auto op) { op.setAxesAttr(widen(op.getAxes())); });
  return builder.getArrayAttr(local);
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
class ReshardPolicyPass
    : public impl::ReshardPolicyPassBase<ReshardPolicyPass> {
  using ReshardPolicyPassBase::ReshardPolicyPassBase;

  void runOnOperation() final {
    auto programs = getPrograms(getOperation());
    if (failed(programs) || failed(apply(*programs)))
      return signalPassFailure();
  }

  LogicalResult apply(ArrayRef<func::FuncOp> programs) {
    func::FuncOp first = programs.front();
    auto reject = [&] { return emitError(first.getLoc()); };
    for (func::FuncOp program : programs)
      if (failed(checkLevel(program, Level::Logical)))
        return failure();
    auto meshes = getOperation().getOps<MeshOp>();
    if (!llvm::hasSingleElement(meshes))
      return reject() << "expected a step that is sharded over one mesh";
    MeshOp mesh = *meshes.begin();
    for (func::FuncOp program : programs)
      if (!program.getOps<PieceOp>().empty())
        return reject() << "expected a step without a policy of small groups, "
                           "found one that keeps pieces";
    auto units = getOperation().getOps<UnitOp>();
    if (units.empty())
      return reject() << "expected a step with units";
    // Parameters that are ignored are in units of their own, which stay whole.
    llvm::SmallSetVector<ArrayAttr, 2> found;
    for (UnitOp unit : units)
      if (!unit.getShardAxes().empty())
        found.insert(unit.getShardAxes());
    if (found.size() != 1)
      return reject() << "expected units that are sharded over the same axes";
    ArrayAttr axes = found.front();

    int64_t shards = mesh.getGroupSize(axes);
    int64_t ranks = reshardAfterForward.group.value_or(shards);
    if (shards == 1 && ranks > 1)
      return reject()
             << "expected parameters in several shards to keep some of "
                "them, got one";
    if (shards % ranks != 0 ||
        (ranks < shards &&
         *mesh.getAxisSize(cast<StringAttr>(axes.getValue().back())) % ranks))
      return reject() << "expected reshard-after-forward to be a number of "
                         "ranks that divides the "
                      << shards << " shards, got " << ranks;
    bool reshard = reshardAfterForward.group != 1;
    ArrayAttr kept; // the axes of small groups
    if (ranks > 1 && ranks < shards) {
      for (func::FuncOp program : programs)
        setReshardAfterForward(program, false);
      kept = splitShardAxis(programs, mesh, axes, ranks);
    }
    for (func::FuncOp program : programs) {
      setReshardAfterForward(program, reshard, kept);
      emitRemarks(program, reshard);
    }
    return success();
  }

  void emitRemarks(func::FuncOp step, bool reshard) {
    DenseMap<Attribute, int64_t> gathered; // bytes, by unit
    for (auto gather : step.getOps<UnshardOp>())
      gathered[gather.getUnitAttr()] =
          getMemoryBytes(gather.getFull().getType());
    DenseMap<Attribute, PieceOp> pieces; // by unit
    for (auto piece : step.getOps<PieceOp>())
      pieces[piece.getUnitAttr()] = piece;
    for (auto unit : getOperation().getOps<UnitOp>()) {
      int64_t bytes = gathered.lookup(FlatSymbolRefAttr::get(unit));
      bool isFreed = unit.getReshardAfterForward();
      PieceOp piece = pieces.lookup(FlatSymbolRefAttr::get(unit));
      auto remark = remark::passed(
          step.getLoc(), getRemark("fsdp-reshard-policy", "reshard", step));
      remark << remark::metric("Unit", unit.getSymName())
             << remark::metric(isFreed ? "BytesGatheredAgain" : "BytesKept",
                               bytes);
      if (piece)
        remark << remark::metric("BytesKept",
                                 getMemoryBytes(piece.getPiece().getType()))
               << remark::metric("Ranks",
                                 piece.getPiece().getType().getShards());
      remark << remark::reason(
          piece     ? "a piece is kept, and gathered again in a small group"
          : isFreed ? "freed after the forward"
          : reshard ? "the backward starts with it"
                    : "gathered once for both phases");
    }
  }
};
} // namespace

} // namespace fsdp
