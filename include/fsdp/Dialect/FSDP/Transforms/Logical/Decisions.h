//===- Decisions.h - Decisions at the logical level -------------*- C++ -*-===//
//
// What passes decide, as functions: others try a decision and undo it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_DECISIONS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_DECISIONS_H

#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h"
#include "fsdp/Planner/StepModel.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// Has the backward of a step of the logical level gather each unit again that
/// has `reshard_after_forward`, from what its `piece_axes` say, and one gather
/// serve both phases of any other.
void applyReshard(mlir::func::FuncOp step);

/// Decides the same for each unit, but that the root (and the root's types)
/// stays gathered, and that pieces are kept over the axes where a unit is
/// sharded over these and others; and does it.
void setReshardAfterForward(mlir::func::FuncOp step, bool reshard,
                            mlir::ArrayAttr pieceAxes = {});

/// Has units that are `kept_after_backward` stay gathered between
/// micro-batches: the program of the first one returns them, and those of the
/// others take them in place of gathers. Programs without a part stay as they
/// are. Expects the logical level, where one gather serves both phases of these
/// units.
void keepGathered(mlir::func::FuncOp step);

/// With the copy from the host that it alone takes.
void eraseGather(UnshardOp gather);

/// A module of which something may be computed again.
struct Recomputable {
  std::string path;
  bool hasCheap = false; ///< What is cheap may be, alone.
};

/// The repeated modules, or else those of units, of which the backward of a
/// step of the logical level reads something that may be computed again.
std::vector<Recomputable> findRecomputable(mlir::func::FuncOp step);

/// What is computed again for a module, in place of what the forward left.
struct Recomputed {
  mlir::Operation *original, *copy;
  unsigned module; ///< Its place in the list.
};

/// How much of a module is computed again.
struct RecomputedModule {
  std::string path;
  planner::Recompute recompute;
};

/// Has the backward compute again what it reads of these modules, one after the
/// other. What is computed again of one does not depend on the others. Returns
/// the calls that were added.
std::vector<Recomputed> recompute(mlir::func::FuncOp step,
                                  llvm::ArrayRef<RecomputedModule> modules);

/// Gives units of a model of the aten level that follow each other one name
/// while there is room, and `types`, by parameter, are the same.
void mergeUnits(mlir::func::FuncOp model, const Bucket &limit,
                const llvm::DenseMap<mlir::Attribute, mlir::Attribute> &types);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_DECISIONS_H
