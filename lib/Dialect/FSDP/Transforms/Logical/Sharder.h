//===- Sharder.h - One program over shards ----------------------*- C++ -*-===//
//
// What `--fsdp-shard` does to each program once the units are decided.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_SHARDER_H
#define FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_SHARDER_H

#include "fsdp/Dialect/FSDP/Transforms/Logical/ShardUnits.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

#include "llvm/ADT/DenseSet.h"

namespace fsdp {

/// What a program does with a unit.
struct UnitUse {
  mlir::Value shard;  // the new argument; null if it has none
  mlir::Type compute; // the element type of its parameters
  mlir::Value gather; // for both phases
  llvm::SmallVector<mlir::Value>
      gradients;        // by place once seen; none if nothing trains
  unsigned missing = 0; // how many have not been seen
  mlir::Value reduced;  // the shard of the gradient
};

/// Shards one program; it is cloned first, as its source.
class Sharder {
public:
  Sharder(mlir::func::FuncOp step, const ShardUnits &table, MeshOp mesh,
          bool keepOutput, SyncBuffers syncBuffers)
      : step(step), table(table), mesh(mesh), keepOutput(keepOutput),
        syncBuffers(syncBuffers), block(step.getBody().front()),
        builder(step.getContext()), units(table.units.size()),
        arguments(table.parameters.size()), gradients(table.parameters.size()) {
  }

  mlir::LogicalResult run();

private:
  // Preparation: nothing is changed.
  mlir::LogicalResult collectParameters();
  mlir::LogicalResult collectResults();
  mlir::LogicalResult checkGradients();

  // The new function.
  llvm::SmallVector<mlir::Value> dropResults();
  void rewriteBody();
  void reduceRest();
  void returnResults(llvm::ArrayRef<mlir::Value> others);
  void rewriteSignature();
  void keepSource();

  // Parameters.
  bool isFromParameters(mlir::Value value) const;
  bool isChain(mlir::Operation &op) const;
  mlir::Value getGather(unsigned unit, aten::Phase phase);
  mlir::Value materialize(mlir::Value value, aten::Phase phase);
  mlir::Value resolve(mlir::Value value, aten::Phase phase) {
    return isFromParameters(value) ? materialize(value, phase) : value;
  }
  mlir::Value copyOut(mlir::Value value);

  // Gradients and the loss.
  void visitResults(mlir::Operation &op);
  void addGradient(unsigned parameter, mlir::Value value);
  void reduceGradient(unsigned unit);
  mlir::Value reduceOverMesh(mlir::Value value, ReductionRole role,
                             bool isFirst);
  mlir::Value syncBuffer(mlir::Value value);

  mlir::Location getLoc(llvm::StringRef name) {
    return mlir::NameLoc::get(builder.getStringAttr(name), step.getLoc());
  }

  mlir::func::FuncOp step;
  const ShardUnits &table;
  MeshOp mesh;
  bool keepOutput;
  SyncBuffers syncBuffers;
  mlir::Block &block;
  mlir::OpBuilder builder;

  llvm::SmallVector<UnitUse> units; // as in the table
  // Of parameters, of the aten level; null where the program has none.
  llvm::SmallVector<mlir::Value> arguments, gradients;
  llvm::DenseMap<mlir::Value, unsigned> byArgument;

  /// The parameters whose gradient a value is, as indices.
  llvm::DenseMap<mlir::Value, llvm::SmallVector<unsigned, 1>> gradientOf;
  unsigned lossIndex = 0;
  mlir::Value loss, meanLoss;
  /// What the program makes of buffers, and what all ranks have of it.
  llvm::DenseMap<mlir::Value, mlir::Value> synchronised;
  llvm::SmallVector<unsigned> kept; // indices of results: state, outputs

  /// Operations on parameters alone, and what they have become in each phase.
  llvm::DenseSet<mlir::Operation *> chains;
  llvm::DenseMap<std::pair<mlir::Value, unsigned>, mlir::Value> materialized;
};

} // namespace fsdp

#endif // FSDP_LIB_DIALECT_FSDP_TRANSFORMS_LOGICAL_SHARDER_H
