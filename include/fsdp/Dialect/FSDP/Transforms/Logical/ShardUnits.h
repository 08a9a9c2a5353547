//===- ShardUnits.h - The units of all programs -----------------*- C++ -*-===//
//
// Programs are over the same parameters, so they share their units: what
// `--fsdp-shard` collects of all programs before it shards each.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_SHARDUNITS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_SHARDUNITS_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringMap.h"

namespace fsdp {

/// What is decided about a unit: the axes of the mesh over which it is sharded
/// and replicated, whether it is freed after the forward, whether it is kept
/// for the next micro-batch after the backward, and element types;
/// null ones are those of the parameters.
struct UnitDecision {
  llvm::SmallVector<llvm::StringRef> shardAxes, replicateAxes;
  bool reshard = false, keep = false;
  mlir::Type storage, reduce;
};

/// The units of the programs of a module of the aten level.
class ShardUnits {
public:
  /// A parameter of the aten level; its types are those of the first program.
  struct Parameter {
    mlir::StringAttr name;
    mlir::RankedTensorType type;
    mlir::Type storage, reduce; // element types
    mlir::ArrayAttr aliases;    // null if there are none
    mlir::Location loc;
    unsigned unit, place;     // place: index in the unit's layout
    bool isTrainable = false; // has a gradient in some program
  };
  struct Unit {
    llvm::StringRef name;
    std::string symbol; // the name, or another if that is taken
    llvm::SmallVector<unsigned> parameters; // in order of the layout
    bool isIgnored = false;                 // each rank has its own
    bool isRoot = false;                    // of what is in no other unit
    UnitOp op;                              // once they are created
  };

  /// Adds the parameters of a program. What it shares with those before must
  /// have the same sizes and strides.
  mlir::LogicalResult add(mlir::func::FuncOp program);

  /// Decides the names of the symbols, once `module` has its mesh.
  void nameSymbols(mlir::ModuleOp module);

  /// Makes the symbols, in front of `first`, each as it is decided: one
  /// decision for each unit, whose null types are those that its parameters
  /// ask for.
  mlir::LogicalResult create(mlir::func::FuncOp first, MeshOp mesh,
                             llvm::ArrayRef<UnitDecision> decisions);

  /// The index of the parameter; nothing if there is none of that name.
  std::optional<unsigned> find(llvm::StringRef name) const;

  llvm::SmallVector<Parameter> parameters;
  llvm::SmallVector<Unit> units;

private:
  mlir::LogicalResult addParameter(mlir::func::FuncOp program,
                                   mlir::BlockArgument argument);
  mlir::FailureOr<LayoutAttr> getLayout(mlir::func::FuncOp first,
                                        const Unit &unit, int64_t shards) const;

  llvm::StringMap<unsigned> byName;
  llvm::StringMap<unsigned> unitByName;
};

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_LOGICAL_SHARDUNITS_H
