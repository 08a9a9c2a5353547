//===- Variants.h - Options as decisions ------------------------*- C++ -*-===//
//
// The mesh, axes of units, groups that keep pieces, offload and the loss in
// chunks change the step before there is a model of it. So they are decided by
// trying: a model and a short search for each.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_PLAN_VARIANTS_H
#define FSDP_TOOLS_FSDP_PLAN_VARIANTS_H

#include "Compile.h"

namespace fsdp {

struct VariantSearch {
  struct Candidate {
    FSDPPipelineOptions options;
    std::optional<BuiltModel> model; ///< Of these, if there is one.
  };
  /// With what was decided; the fastest first. They differ in what was decided
  /// last.
  std::vector<Candidate> candidates;
  PlanSummary::Choices choices;
  /// What is tried for axes of units, by mesh and rules.
  llvm::StringMap<std::string> axes;

  /// Notes which one was carried out.
  void take(const FSDPPipelineOptions &options);
};

/// Decides what is `auto`, and takes the fastest, in the mean of a robust
/// search of a tenth of the evaluations, of those whose bound does not say that
/// they are slower than another as predicted: first the mesh, of those whose
/// groups are parts of a node, whole nodes, or all ranks; then the units that
/// are sharded over inner axes alone (UnitAxes.h); then the ranks of which each
/// keeps a piece of a unit, of none, half a node, and one, two and four nodes;
/// then what is offloaded, of nothing, parameters, optimizer states, all, and a
/// quarter, half and three quarters of all; then of 1, 2, 4, 8 and 16 chunks of
/// the loss. What comes later is taken to need the least memory, but that
/// nothing is offloaded for a mesh if one fits without. Without a budget, the
/// memory of the machine is one for the mesh: if nothing was scarce, all ranks
/// would have all parameters. `module` is not changed. Fails with a diagnostic
/// if nothing fits.
mlir::FailureOr<VariantSearch>
searchVariants(mlir::ModuleOp module, const FSDPPipelineOptions &options,
               mlir::TimingScope &timing);

/// An option that is not given and with which a step keeps to its budget, such
/// as `--chunk-loss 4`: the fewest chunks, or else an offload. Empty if it is
/// not known to with any. `module` is not changed.
std::string findOptionThatFits(mlir::ModuleOp module,
                               FSDPPipelineOptions options,
                               mlir::TimingScope &timing);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_VARIANTS_H
