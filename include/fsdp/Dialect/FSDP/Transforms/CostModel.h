//===- CostModel.h - How long operations take -------------------*- C++ -*-===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_COSTMODEL_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_COSTMODEL_H

#include "fsdp/Archive/Profile.h"
#include "fsdp/Planner/Hardware.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// What durations come from.
struct CostModel {
  planner::Hardware hardware;
  std::optional<archive::Profile> profile; // measured, in place of predicted

  /// Reads a file of hardware, or one that is built in, and a profile unless
  /// its name is empty. Numbers of the file are multiplied as `whatIf` says.
  /// Reports an error at `op`.
  static mlir::FailureOr<CostModel> load(mlir::Operation *op,
                                         llvm::StringRef hardware,
                                         llvm::StringRef profile,
                                         llvm::StringRef whatIf = "");
  /// Writes `fsdp.cost` on what takes time, as `--fsdp-annotate-costs` does.
  /// The remark that sums it up is for who wants it. Fails if there are copies
  /// to the host and the machine has no memory there.
  mlir::LogicalResult annotate(mlir::func::FuncOp step,
                               bool emitsRemark = false) const;
};

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_COSTMODEL_H
