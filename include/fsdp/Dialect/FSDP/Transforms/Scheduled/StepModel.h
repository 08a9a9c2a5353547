//===- StepModel.h - A step as the planner sees it --------------*- C++ -*-===//
//
// The way from the logical level to the planner's model, and back with its
// decisions: the only two places that know both.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_STEPMODEL_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_STEPMODEL_H

#include "fsdp/Dialect/FSDP/Transforms/CostModel.h"
#include "fsdp/Planner/Decisions.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace fsdp {

/// The planner's model of all programs of a module. Units have the names of
/// `fsdp.unit`, modules their paths, programs their symbols.
struct BuiltModel {
  planner::StepModel model;
  /// By program and operation of the model: how many computations of the step
  /// it stands for, so many as `isComputation` counts.
  std::vector<std::vector<uint32_t>> sizes;
};

/// True of what the compute stream does in an order that nobody decides: all
/// but views, the ends of gathered units, and the launches and waits of units.
/// The terminator is one.
bool isComputation(mlir::Operation *op);

/// The axes over which units of a module may keep pieces, those that are
/// sharded over these and others: what some unit says. Null if none does.
mlir::ArrayAttr getPieceAxes(mlir::ModuleOp module);

/// Models the programs of a module, of the logical level and with nothing
/// recomputed by a pass. Changes nothing. Reports an error where there is
/// something that the planner does not know: offload of gradients that are
/// all-reduced once, units that stay gathered after the backward and are not of
/// its decision.
mlir::FailureOr<BuiltModel>
buildStepModel(llvm::ArrayRef<mlir::func::FuncOp> programs,
               const CostModel &costs);

/// Carries decisions out: the programs that `built` is the model of become
/// programs of the scheduled level, in the order that was decided.
mlir::LogicalResult applyDecisions(llvm::ArrayRef<mlir::func::FuncOp> programs,
                                   const BuiltModel &built,
                                   const planner::Decisions &decisions);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_STEPMODEL_H
