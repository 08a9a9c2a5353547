//===- Mesh.h - The mesh as a decision --------------------------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_PLAN_MESH_H
#define FSDP_TOOLS_FSDP_PLAN_MESH_H

#include "Compile.h"

namespace fsdp {

struct MeshSearch {
  FSDPPipelineOptions options; ///< With the mesh that was decided.
  std::vector<planner::Explanation::Point> points; ///< See PlanSummary::Search.
};

/// Decides a mesh that is `auto`: searches, for a tenth of the evaluations, on
/// each mesh whose groups are parts of a node, whole nodes, or all ranks, and
/// takes the fastest, in the mean of a robust search. Without a budget, the
/// memory of the machine is one: if nothing was scarce, all ranks would have
/// all parameters. `module` is not changed. Fails with a diagnostic if nothing
/// fits on any mesh.
mlir::FailureOr<MeshSearch> searchMesh(mlir::ModuleOp module,
                                       const FSDPPipelineOptions &options,
                                       mlir::TimingScope &timing);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_MESH_H
