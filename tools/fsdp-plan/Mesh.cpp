//===- Mesh.cpp - The mesh as a decision ----------------------------------===//

#include "Mesh.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Pipelines/Pipelines.h"
#include "fsdp/Planner/Hardware.h"
#include "fsdp/Planner/Search.h"

using namespace fsdp;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;

/// By the ranks of a group, most first: a rank of a smaller one holds more.
static std::vector<MeshSizes> listMeshes(int64_t ranks,
                                         const planner::Hardware &hardware) {
  int64_t node = hardware.hasNetwork ? hardware.nodeRanks : ranks;
  std::vector<MeshSizes> meshes = {{1, ranks}};
  for (int64_t shard = ranks / 2; shard > 1; --shard)
    if (ranks % shard == 0 && (node % shard == 0 || shard % node == 0))
      meshes.push_back({ranks / shard, shard});
  return meshes;
}

/// On one mesh; a time of 0 if nothing fits. `isTooLarge`: nothing will on one
/// of smaller groups.
static FailureOr<planner::Outcome> tryMesh(mlir::ModuleOp module,
                                           const FSDPPipelineOptions &options,
                                           mlir::TimingScope &timing,
                                           bool &isTooLarge) {
  mlir::OwningOpRef<mlir::ModuleOp> copy = module.clone();
  FailureOr<BuiltModel> built = makeStepModel(*copy, options, timing);
  if (failed(built))
    return failure();
  planner::StepModel &model = built->model;
  if (options.budget)
    model.budget = options.budget;
  isTooLarge = model.persistentBytes >= model.budget;
  if (isTooLarge)
    return planner::Outcome{0, model.persistentBytes};
  planner::SearchAnswer answer = planner::search(
      model,
      planner::makeSearchOptions(options.evaluations / 10, options.robust));
  return answer.isFeasible ? answer.outcome
                           : planner::Outcome{0, answer.outcome.peakBytes};
}

FailureOr<MeshSearch> fsdp::searchMesh(mlir::ModuleOp module,
                                       const FSDPPipelineOptions &options,
                                       mlir::TimingScope &timing) {
  mlir::TimingScope deciding = timing.nest("decide the mesh");
  auto hardware = planner::loadHardware(getHardware(options), options.whatIf);
  if (!hardware)
    return mlir::emitError(module.getLoc()) << hardware.error().message;
  MeshSearch answer;
  FSDPPipelineOptions tried = options;
  if (!tried.budget)
    tried.budget.bytes = int64_t(hardware->capacity);
  planner::Outcome best, leanest;
  bool isTooLarge = false;
  for (const MeshSizes &mesh : listMeshes(options.ranks, *hardware)) {
    if (isTooLarge)
      break;
    tried.mesh = mesh;
    tried.strategy =
        mesh.replicate > 1 ? Strategy::HybridShard : Strategy::FullShard;
    FailureOr<planner::Outcome> outcome =
        tryMesh(module, tried, deciding, isTooLarge);
    if (failed(outcome))
      return failure();
    answer.points.push_back({spellOption(mesh), *outcome});
    if (outcome->time && (!best.time || outcome->meanTime < best.meanTime)) {
      best = *outcome;
      answer.options = tried;
    }
    if (!leanest.peakBytes || outcome->peakBytes < leanest.peakBytes)
      leanest = *outcome;
  }
  if (best.time)
    return answer;
  return mlir::emitError(module.getLoc())
         << "no mesh of " << options.ranks << " ranks holds at most "
         << spellBytes(tried.budget)
         << ": the smallest budget that is known to "
         << "work is " << leanest.peakBytes << " bytes; allow more, or more "
         << "ranks";
}
