//===- StepToProgram.h - A function becomes a program -----------*- C++ -*-===//
//
// The part of the lowering that goes through one function: every value gets a
// buffer, every operation its commands. The tables are shared by all functions.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_CONVERSION_FSDPTOPLAN_STEPTOPROGRAM_H
#define FSDP_LIB_CONVERSION_FSDPTOPLAN_STEPTOPROGRAM_H

#include "fsdp/Dialect/Plan/IR/Plan.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

namespace fsdp::detail {

/// The tables of the plan while it is made. What several functions name (a
/// state, a model buffer, a result of `@init`) is one buffer.
class Tables {
public:
  /// Entries are made in front of `before`.
  Tables(MeshOp mesh, mlir::Operation *before)
      : mesh(mesh), symbols(mesh->getParentOp()), builder(before) {}

  /// A new buffer for a tensor of this type.
  plan::BufferOp addBuffer(mlir::Location loc, plan::BufferRole role,
                           mlir::RankedTensorType type);

  /// A window on the bytes of `base`, `offset` bytes after its first element.
  mlir::Value addView(mlir::Location loc, mlir::Value base, int64_t offset,
                      mlir::RankedTensorType type);

  UnitOp getUnit(mlir::FlatSymbolRefAttr unit) const {
    return symbols.lookup<UnitOp>(unit.getAttr());
  }

  /// Where the parameters of a unit lie.
  LayoutAttr getLayout(mlir::FlatSymbolRefAttr unit) const {
    return getUnit(unit).getLayout();
  }

  /// The shard, gradient or other state of a unit, made at its first mention.
  plan::BufferOp getState(mlir::Location loc, StateAttr state, mlir::Type type);

  /// The buffer that is called `name` among those of the kind `kind`: null
  /// until somebody sets it.
  mlir::Value &getNamed(llvm::StringRef kind, mlir::Attribute name) {
    return named[{builder.getStringAttr(kind), name}];
  }

  /// The communicator over these axes of the mesh on this stream, or null if a
  /// group has one rank.
  mlir::FlatSymbolRefAttr getCommunicator(llvm::ArrayRef<llvm::StringRef> axes,
                                          Stream stream);

  /// Results of `@init`, in order.
  llvm::SmallVector<mlir::Value> initResults;

private:
  MeshOp mesh;
  mlir::SymbolTable symbols;
  mlir::OpBuilder builder;
  llvm::DenseMap<std::pair<mlir::Attribute, mlir::Attribute>, mlir::Value>
      named;
  llvm::DenseMap<std::pair<mlir::Attribute, Stream>, mlir::FlatSymbolRefAttr>
      communicators;
};

/// Lowers the body of `func` into `program`.
mlir::LogicalResult lowerFunction(mlir::func::FuncOp func, Tables &tables,
                                  plan::ProgramOp program);

/// The tensor that a value of this type is in memory; null if it is none.
mlir::RankedTensorType getMemoryType(mlir::Type type);

} // namespace fsdp::detail

#endif // FSDP_LIB_CONVERSION_FSDPTOPLAN_STEPTOPROGRAM_H
