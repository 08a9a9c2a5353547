//===- Decisions.h - What passes decide, for others to decide ---*- C++ -*-===//
//
// How a decision is carried out, apart from the pass that makes it: strategies
// reshard as `--fsdp-reshard-policy` does, and prices are those of a copy of
// the step in which it was done.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_DECISIONS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_DECISIONS_H

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Archive/Profile.h"
#include "fsdp/Dialect/FSDP/Transforms/Options.h"
#include "fsdp/Planner/Hardware.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// True of the name of the root or of one of its element types: `root.bf16`.
bool isRoot(llvm::StringRef unit);

/// Has the backward of a step of the logical level gather each unit again that
/// has `reshard_after_forward`, and one gather serve both phases of any other.
/// Where there are axes to keep pieces over, the backward gathers these.
void applyReshard(mlir::func::FuncOp step, mlir::ArrayAttr kept = {});

/// Decides the same for each unit, but that the root (and the root's types)
/// stays gathered; and does it.
void setReshardAfterForward(mlir::func::FuncOp step, bool reshard,
                            mlir::ArrayAttr kept = {});

/// The repeated modules, or else those of units, of which the backward of a
/// step of the logical level reads something that may be computed again.
std::vector<std::string> findRecomputable(mlir::func::FuncOp step);

/// Has the backward compute again what it reads of that module.
void recompute(mlir::func::FuncOp step, llvm::StringRef module);

/// Turns the collectives of a step of the logical level into launches and
/// waits, as `--fsdp-async` does.
mlir::LogicalResult makeAsync(mlir::func::FuncOp step);

/// Decides when the backward waits for reductions, as
/// `--fsdp-place-reduce-waits` does. Returns those whose waits have moved.
llvm::SmallVector<mlir::Operation *> placeReduceWaits(IssueOrder &order,
                                                      ReduceWait when);

/// What durations come from.
struct CostModel {
  planner::Hardware hardware;
  std::optional<archive::Profile> profile; // measured, in place of predicted

  /// Reads a file of hardware, or one that is built in, and a profile unless
  /// its name is empty. Reports an error at `op`.
  static mlir::FailureOr<CostModel>
  load(mlir::Operation *op, llvm::StringRef hardware, llvm::StringRef profile);
  /// Writes `fsdp.cost` on what takes time, as `--fsdp-annotate-costs` does.
  /// The remark that sums it up is for who wants it.
  void annotate(mlir::func::FuncOp step, bool emitsRemark = false) const;
};

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_DECISIONS_H
