//===- Measures.h - Is something measured of all gradients? -----*- C++ -*-===//
//
// What scales gradients depends on all of them: each element counts once.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_ANALYSIS_MEASURES_H
#define FSDP_LIB_ANALYSIS_MEASURES_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "llvm/ADT/StringSet.h"

namespace fsdp {

/// Elements [begin, end) of a unit, whose gradient `op` takes.
struct UnitInterval {
  int64_t begin, end;
  mlir::Operation *op;
  mlir::Value gradient;
};

/// Checks that each trainable element of the unit is in one interval, and sorts
/// them. `what` is what is done to elements: "updated". Empty intervals are
/// right.
mlir::LogicalResult
verifyCovered(UnitOp unit, llvm::SmallVectorImpl<UnitInterval> &intervals,
              llvm::StringRef what);

/// The gradients that a program updates, and what is measured of them.
class MeasuredGradients {
public:
  /// `areEqual`: whether two values of the program have the same content.
  MeasuredGradients(
      mlir::func::FuncOp program,
      llvm::function_ref<bool(mlir::Value, mlir::Value)> areEqual);

  /// Checks that `measures`, of one kind, are those of all gradients that are
  /// updated: each element once, reduced over the axes along which its unit is
  /// sharded and over no others. `user` is what takes them.
  mlir::LogicalResult verify(mlir::Operation *user, MeasureKind kind,
                             mlir::ValueRange measures);

private:
  mlir::LogicalResult readNorm(mlir::Value norm);
  mlir::LogicalResult readMeasure(MeasureOp measure,
                                  const llvm::StringSet<> &reducedOver);
  llvm::StringSet<> getAxes(UnitOp unit, llvm::ArrayRef<llvm::StringRef> axes);

  mlir::ModuleOp module;
  mlir::SymbolTable symbols;
  llvm::function_ref<bool(mlir::Value, mlir::Value)> areEqual;
  mlir::Operation *user = nullptr;
  MeasureKind kind = MeasureKind::SquaredNorm;
  /// By unit: a gradient that is updated, and what is measured of it.
  llvm::DenseMap<mlir::Attribute, mlir::Value> gradients;
  llvm::DenseMap<mlir::Attribute, llvm::SmallVector<UnitInterval>> measured;
};

} // namespace fsdp

#endif // FSDP_LIB_ANALYSIS_MEASURES_H
