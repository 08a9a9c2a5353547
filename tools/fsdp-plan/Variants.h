//===- Variants.h - Options as decisions ------------------------*- C++ -*-===//
//
// The mesh and the loss in chunks change the step before there is a model of
// it. So they are decided by trying: a model and a short search for each.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_PLAN_VARIANTS_H
#define FSDP_TOOLS_FSDP_PLAN_VARIANTS_H

#include "Compile.h"

namespace fsdp {

struct VariantSearch {
  FSDPPipelineOptions options; ///< With what was decided.
  PlanSummary::Tried meshes, chunks;
};

/// Decides what is `auto`, and takes the fastest, in the mean of a robust
/// search of a tenth of the evaluations: first the mesh, of those whose groups
/// are parts of a node, whole nodes, or all ranks, with as many chunks as there
/// may be; then of 1, 2, 4, 8 and 16 chunks of the loss. Without a budget, the
/// memory of the machine is one for the mesh: if nothing was scarce, all ranks
/// would have all parameters. `module` is not changed. Fails with a diagnostic
/// if nothing fits.
mlir::FailureOr<VariantSearch>
searchVariants(mlir::ModuleOp module, const FSDPPipelineOptions &options,
               mlir::TimingScope &timing);

/// The fewest of these chunks, other than those of the options, with which a
/// step keeps to its budget; 0 if it is not known to with any. `module` is not
/// changed.
int64_t findChunksThatFit(mlir::ModuleOp module, FSDPPipelineOptions options,
                          mlir::TimingScope &timing);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_VARIANTS_H
