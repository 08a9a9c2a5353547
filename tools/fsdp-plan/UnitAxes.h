//===- UnitAxes.h - Over which axes units are sharded -----------*- C++ -*-===//
//
// A unit that is sharded over inner axes alone takes more memory. Over the
// outer axes, it has one all-reduce of a shard in place of two gathers and a
// reduction. There are as many choices as sets of units; some of them are
// tried.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_PLAN_UNITAXES_H
#define FSDP_TOOLS_FSDP_PLAN_UNITAXES_H

#include "fsdp/Dialect/FSDP/Transforms/Options/Options.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/LLVM.h"

namespace fsdp {

/// `rules` without what is `auto` in them.
UnitRules dropAuto(UnitRules rules);

/// The axes of several ranks over which the unit with the most shards is
/// sharded. `logical`: a step without pieces, which may split axes.
MeshSizes findMostAxes(mlir::ModuleOp logical);

/// Rules that shard some units over inner axes.
struct UnitAxes {
  std::string name; ///< As "4 of 32 units over local, spread".
  std::vector<UnitRule> rules;
  int64_t shards = 1; ///< Of the unit with the most.
};

/// Of the units whose axes are `auto` by `rules`: none; for the innermost axis,
/// the two innermost, and so on: the root; one to seven eighths of the others,
/// the first of the forward, and as many spread evenly; all others; and all.
/// `logical`: a step without pieces in which these are sharded over all axes.
mlir::FailureOr<std::vector<UnitAxes>> listUnitAxes(mlir::ModuleOp logical,
                                                    const UnitRules &rules);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_UNITAXES_H
