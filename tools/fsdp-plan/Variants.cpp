//===- Variants.cpp - Options as decisions --------------------------------===//

#include "Variants.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Pipelines/Pipelines.h"
#include "fsdp/Planner/Hardware.h"
#include "fsdp/Planner/Search.h"

using namespace fsdp;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;

static constexpr int64_t allChunks[] = {1, 2, 4, 8, 16};

namespace {
/// Options, and the name of what they differ in.
struct Variant {
  std::string name;
  FSDPPipelineOptions options;
};
} // namespace

/// By the ranks of a group, most first: a rank of a smaller one holds more.
static std::vector<Variant> listMeshes(const FSDPPipelineOptions &options,
                                       const planner::Hardware &hardware) {
  int64_t ranks = options.ranks;
  int64_t node = hardware.hasNetwork ? hardware.nodeRanks : ranks;
  std::vector<Variant> variants;
  for (int64_t shard = ranks; shard >= 1; --shard) {
    bool isOne = shard == ranks;
    if (!isOne && (shard == 1 || ranks % shard != 0 ||
                   (node % shard != 0 && shard % node != 0)))
      continue;
    FSDPPipelineOptions own = options;
    own.mesh = MeshSizes::of(ranks / shard, shard);
    own.strategy = isOne ? Strategy::FullShard : Strategy::HybridShard;
    variants.push_back({spellOption(own.mesh), std::move(own)});
  }
  return variants;
}

static std::vector<Variant> listChunks(const FSDPPipelineOptions &options) {
  std::vector<Variant> variants;
  for (int64_t chunks : allChunks) {
    variants.push_back({std::to_string(chunks), options});
    variants.back().options.chunkLoss = {chunks};
  }
  return variants;
}

/// A time of 0 if nothing fits. `isTooLarge`: what is persistent alone does
/// not.
static FailureOr<planner::Outcome>
tryVariant(mlir::ModuleOp module, const FSDPPipelineOptions &options,
           mlir::TimingScope &timing, bool &isTooLarge) {
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

/// The fastest. After one whose persistent memory alone is too much, those hold
/// no less. `what`: none of which fits, for an error.
static FailureOr<FSDPPipelineOptions> decide(mlir::ModuleOp module,
                                             llvm::ArrayRef<Variant> variants,
                                             const llvm::Twine &what,
                                             mlir::TimingScope &timing,
                                             PlanSummary::Tried &tried) {
  const Variant *best = nullptr;
  int64_t time = 0, leanest = 0;
  bool isTooLarge = false;
  for (const Variant &variant : variants) {
    if (isTooLarge)
      break;
    FailureOr<planner::Outcome> outcome =
        tryVariant(module, variant.options, timing, isTooLarge);
    if (failed(outcome))
      return failure();
    tried.points.push_back({variant.name, *outcome});
    if (outcome->time && (!best || outcome->meanTime < time)) {
      best = &variant;
      time = outcome->meanTime;
    }
    if (!leanest || outcome->peakBytes < leanest)
      leanest = outcome->peakBytes;
  }
  if (!best)
    return mlir::emitError(module.getLoc())
           << "no " << what << " holds at most "
           << spellBytes(variants.front().options.budget)
           << ": the smallest budget that is known to work is " << leanest
           << " bytes; allow more, or more ranks";
  tried.taken = best->name;
  return best->options;
}

FailureOr<VariantSearch>
fsdp::searchVariants(mlir::ModuleOp module, const FSDPPipelineOptions &options,
                     mlir::TimingScope &timing) {
  mlir::TimingScope deciding = timing.nest("decide the options");
  VariantSearch search = {options, {}, {}};
  if (options.mesh.isAuto) {
    auto hardware = planner::loadHardware(getHardware(options), options.whatIf);
    if (!hardware)
      return mlir::emitError(module.getLoc()) << hardware.error().message;
    FSDPPipelineOptions own = options;
    if (!own.budget)
      own.budget.bytes = int64_t(hardware->capacity);
    if (own.chunkLoss.isAuto)
      own.chunkLoss = {std::end(allChunks)[-1]};
    auto decided = decide(module, listMeshes(own, *hardware),
                          "mesh of " + llvm::Twine(options.ranks) + " ranks",
                          deciding, search.meshes);
    if (failed(decided))
      return failure();
    search.options = std::move(*decided);
  }
  if (options.chunkLoss.isAuto) {
    auto decided =
        decide(module, listChunks(search.options),
               "number of chunks of the loss", deciding, search.chunks);
    if (failed(decided))
      return failure();
    search.options = std::move(*decided);
  }
  return search;
}

int64_t fsdp::findChunksThatFit(mlir::ModuleOp module,
                                FSDPPipelineOptions options,
                                mlir::TimingScope &timing) {
  for (const Variant &variant : listChunks(options)) {
    if (variant.options.chunkLoss.chunks == options.chunkLoss.chunks)
      continue;
    bool isTooLarge = false;
    auto outcome = tryVariant(module, variant.options, timing, isTooLarge);
    if (failed(outcome) || isTooLarge)
      return 0;
    if (outcome->time)
      return variant.options.chunkLoss.chunks;
  }
  return 0;
}
