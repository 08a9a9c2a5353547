//===- Step.h - The function of a training step -----------------*- C++ -*-===//
//
// What passes share in finding the step, changing its signature, and following
// gathered parameters through it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_STEP_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_STEP_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/DenseMap.h"

namespace fsdp {

/// The function that each rank runs once per step, `@step`: one block, and no
/// calls. Reports an error if there is none.
mlir::FailureOr<mlir::func::FuncOp> getStep(mlir::ModuleOp module);

/// The types and attributes of a function's arguments or results.
struct Ports {
  llvm::SmallVector<mlir::Type> types;
  llvm::SmallVector<mlir::DictionaryAttr> attrs;

  void add(mlir::Type type, mlir::DictionaryAttr dict) {
    types.push_back(type);
    attrs.push_back(dict);
  }
};

/// The ports that `func` has now.
Ports getArguments(mlir::func::FuncOp func);
Ports getResults(mlir::func::FuncOp func);

/// Gives `func` a signature in one go: changing a thousand arguments one by one
/// takes quadratic time and memory. The block and the return are the caller's.
void setSignature(mlir::func::FuncOp func, const Ports &arguments,
                  const Ports &results);

/// A dictionary with one `#fsdp.state`.
mlir::DictionaryAttr getStateDict(UnitOp unit, llvm::StringRef kind);

/// The phase of the gather that an operation of `phase` reads: recomputation is
/// part of the backward.
aten::Phase getGatherPhase(aten::Phase phase);

/// The phase of an operation for that purpose; the forward if it does not say.
aten::Phase getGatherPhase(mlir::Operation *op);

/// Which gathered unit a tensor is memory of: `fsdp.view`, and views of views.
class GatheredViews {
public:
  explicit GatheredViews(mlir::Block &block);

  /// The gathered unit whose memory `value` is, or null.
  mlir::Value lookup(mlir::Value value) const { return owners.lookup(value); }

private:
  llvm::DenseMap<mlir::Value, mlir::Value> owners;
};

/// What launches have in common that are copied into one buffer: element types,
/// and how a reduction divides. The gather of a shard casts it on the way in.
mlir::Attribute getCopyKey(CollectiveOpInterface launch);

/// Checks that each unit is gathered from its own shard and viewed as itself,
/// and that what is used in a phase was gathered for that phase, for units that
/// are resharded after the forward.
mlir::LogicalResult verifyGathers(mlir::func::FuncOp step);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_STEP_H
