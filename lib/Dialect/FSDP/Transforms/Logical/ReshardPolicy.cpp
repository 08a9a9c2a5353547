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
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_RESHARDPOLICYPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// Gives the backward a gather of its own, of each unit that is resharded.
static void splitGathers(func::FuncOp step) {
  BackwardCopies copies(step);
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

void eraseGather(UnshardOp gather) {
  Operation *source = gather.getShard().getDefiningOp();
  gather.erase();
  if (isa_and_nonnull<CopyOp, PieceOp>(source) && source->use_empty())
    source->erase();
}

/// Lets the gather of the forward serve the backward, of each unit that is not,
/// or of which the backward gathers something else than it should.
static void mergeGathers(func::FuncOp step) {
  SymbolTable symbols(step->getParentOfType<ModuleOp>());
  DenseMap<Attribute, UnshardOp> first;
  for (auto gather : llvm::make_early_inc_range(step.getOps<UnshardOp>())) {
    auto [entry, isNew] = first.try_emplace(gather.getUnitAttr(), gather);
    if (isNew)
      continue;
    auto unit = symbols.lookup<UnitOp>(gather.getUnit());
    bool isOfPiece = gather.getShard().getDefiningOp<PieceOp>();
    if (unit.getReshardAfterForward() &&
        isOfPiece == bool(unit.getPieceAxesAttr()))
      continue;
    gather.replaceAllUsesWith(entry->second.getFull());
    eraseGather(gather);
  }
}

void applyReshard(func::FuncOp step) {
  mergeGathers(step);
  splitGathers(step);
}

void setReshardAfterForward(func::FuncOp step, bool reshard,
                            ArrayAttr pieceAxes) {
  // The backward starts where the forward ends, with the root: freeing it in
  // between would only mean to gather it at once again.
  for (auto unit : step->getParentOfType<ModuleOp>().getOps<UnitOp>()) {
    unit.setReshardAfterForward(reshard && !unit.getRoot() &&
                                !unit.getKeptAfterBackward() &&
                                !unit.getShardAxes().empty());
    bool keepsPiece = unit.getReshardAfterForward() && pieceAxes &&
                      unit.mayKeepPieces(pieceAxes);
    unit.setPieceAxesAttr(keepsPiece ? pieceAxes : ArrayAttr());
  }
  applyReshard(step);
}

/// Splits an axis into groups of so many ranks, in the mesh and in whatever is
/// over it. Returns the axis of a group.
static StringAttr splitAxis(ArrayRef<func::FuncOp> programs, MeshOp mesh,
                            StringAttr shard, int64_t ranks) {
  Builder builder(mesh.getContext());
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
  return local;
}

/// The axes of the unit that is sharded most; null if none is.
static ArrayAttr findShardAxes(ModuleOp module, MeshOp mesh) {
  ArrayAttr found;
  for (auto unit : module.getOps<UnitOp>())
    if (ArrayAttr axes = unit.getShardAxes();
        !axes.empty() &&
        (!found || mesh.getGroupSize(axes) > mesh.getGroupSize(found)))
      found = axes;
  return found;
}

/// The innermost of the axes that have so many ranks together. Of the outermost
/// of them it may be a part, into which it is split. Null if there are none.
static ArrayAttr makeGroup(ArrayRef<func::FuncOp> programs, MeshOp mesh,
                           ArrayAttr axes, int64_t ranks) {
  SmallVector<Attribute> group;
  for (auto axis : llvm::reverse(axes.getAsRange<StringAttr>())) {
    if (ranks == 1)
      break;
    int64_t size = *mesh.getAxisSize(axis);
    if (ranks % size != 0 && size % ranks != 0)
      return nullptr;
    bool isPart = size > ranks;
    group.insert(group.begin(),
                 isPart ? splitAxis(programs, mesh, axis, ranks) : axis);
    ranks = isPart ? 1 : ranks / size;
  }
  return ArrayAttr::get(mesh.getContext(), group);
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
    ArrayAttr axes = findShardAxes(getOperation(), mesh);
    if (!axes)
      return reject() << "expected a unit that is sharded";

    if (reshardAfterForward.getValue().isAuto)
      return reject()
             << "expected reshard-after-forward to be true, false or a "
                "number of ranks, got auto";
    int64_t shards = mesh.getGroupSize(axes);
    int64_t ranks = reshardAfterForward.group.value_or(shards);
    if (shards == 1 && ranks > 1)
      return reject()
             << "expected parameters in several shards to keep some of "
                "them, got one";
    if (shards % ranks != 0)
      return reject() << "expected reshard-after-forward to be a number of "
                         "ranks that divides the "
                      << shards << " shards, got " << ranks;
    bool reshard = reshardAfterForward.group != 1;
    ArrayAttr kept; // the axes of small groups
    if (ranks > 1 && ranks < shards) {
      for (func::FuncOp program : programs)
        setReshardAfterForward(program, false);
      kept = makeGroup(programs, mesh, axes, ranks);
      if (!kept)
        return reject() << "expected reshard-after-forward to be the ranks of "
                           "the innermost of the axes "
                        << axes << ", or of equal parts of one, got " << ranks;
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
