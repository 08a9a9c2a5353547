//===- Pipelines.cpp - From an imported model to a proved plan ------------===//
//
// The passes in their order, with a verifier at each border.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Pipelines/Pipelines.h"

#include "fsdp/Conversion/FSDPToPlan/FSDPToPlan.h"
#include "fsdp/Dialect/ATen/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/Plan/IR/Plan.h"
#include "fsdp/Dialect/Plan/Transforms/Passes.h"
#include "fsdp/Planner/Hardware.h"

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"

using namespace mlir;
using namespace fsdp;

static bool mergesUnits(const FSDPPipelineOptions &options) {
  return options.bucket.mode == BucketMode::Merge;
}

/// Whether the machine's attention is cuDNN's. What is wrong with its file, who
/// needs more of it says.
static bool prefersCudnn(const FSDPPipelineOptions &options) {
  auto hardware = planner::loadHardware(getHardware(options));
  return hardware && hardware->hasCudnnAttention;
}

/// Those of an option, which `readPipelineOptions` has parsed before.
static void addPasses(OpPassManager &pm, StringRef pipeline) {
  if (failed(parsePassPipeline(pipeline, pm)))
    llvm_unreachable("readPipelineOptions has parsed it");
}

void fsdp::buildLogicalPipeline(OpPassManager &pm,
                                const FSDPPipelineOptions &options) {
  pm.addPass(aten::createLegalizePass());
  pm.addPass(aten::createFoldParameterCastsPass());
  if (options.device == aten::Device::CUDA)
    pm.addPass(aten::createRetargetDevicePass(
        {aten::Device::CUDA, prefersCudnn(options)}));
  if (options.chunkLoss.chunks > 1)
    pm.addPass(aten::createChunkLossPass({options.chunkLoss.chunks}));

  addPasses(pm, options.passesAt.aten);

  AssignUnitsPassOptions units;
  units.wrap = options.wrap;
  units.ignore = options.ignore;
  pm.addPass(createAssignUnitsPass(units));

  if (mergesUnits(options))
    pm.addPass(createBucketPass({options.bucket}));

  ShardPassOptions shard;
  shard.ranks = options.ranks;
  shard.mesh = options.mesh;
  shard.unit = options.unit;
  shard.reshardAfterBackward = options.reshardAfterBackward;
  shard.strategy = options.strategy;
  shard.storageDtype = options.storageDtype;
  shard.reduceDtype = options.reduceDtype;
  shard.keepOutput = options.keepOutput;
  shard.syncBuffers = options.syncBuffers;
  pm.addPass(createShardPass(shard));
  if (options.reshardAfterForward.group)
    pm.addPass(createReshardPolicyPass({options.reshardAfterForward}));

  if (options.accumulate.microBatches > 1)
    pm.addPass(createAccumulatePass(
        {options.accumulate, options.noSync, options.noAllReduce}));
  if (!options.commHook.empty()) {
    addPasses(pm, options.commHook);
    pm.addPass(createNameReductionsPass());
  }
  pm.addPass(createInsertOptimizerPass({options.optimizer, options.momentum,
                                        options.noDecay, options.lrGroups}));
  if (options.gradScaler)
    pm.addPass(createScaleLossPass({options.gradScaler}));
  if (options.clipGradNorm)
    pm.addPass(createClipGradientsPass({options.clipGradNorm}));
  if (options.offload)
    pm.addPass(createOffloadPass({options.offload}));
  pm.addPass(createHoistConstantsPass());
  if (!isPlanned(options))
    pm.addPass(createRematPass({options.remat}));
  addPasses(pm, options.passesAt.logical);
  pm.addPass(createVerifyLogicalPass());
}

std::string fsdp::getHardware(const FSDPPipelineOptions &options) {
  if (!options.hardware.empty())
    return options.hardware;
  return options.device == aten::Device::CUDA ? "h100" : "cpu";
}

/// By rules that say where each collective goes.
static void buildRules(OpPassManager &pm, const FSDPPipelineOptions &options) {
  pm.addPass(createAsyncPass());
  pm.addPass(
      createPrefetchPass({options.backwardPrefetch, options.forwardPrefetch}));
  if (!mergesUnits(options))
    pm.addPass(createBucketPass({options.bucket}));
  LimitInFlightPassOptions limit;
  limit.limitAllGathers = options.limitAllGathers;
  pm.addPass(createLimitInFlightPass(limit));
  pm.addPass(createPlaceReduceWaitsPass({options.reduceWait}));
}

void fsdp::buildLogicalToScheduledPipeline(OpPassManager &pm,
                                           const FSDPPipelineOptions &options) {
  if (isPlanned(options)) {
    AutoPassOptions decisions;
    decisions.automatic = options.automatic;
    decisions.decisions = options.decisions;
    decisions.robust = options.robust;
    decisions.evaluations = options.evaluations;
    decisions.hardware = getHardware(options);
    decisions.profile = options.profile;
    decisions.whatIf = options.whatIf;
    decisions.budget = options.budget;
    pm.addPass(createAutoPass(decisions));
  } else {
    buildRules(pm, options);
  }
  buildScheduledPipeline(pm, options);
}

void fsdp::buildScheduledPipeline(OpPassManager &pm,
                                  const FSDPPipelineOptions &options) {
  bool isList = options.schedule == Preset::List;
  if (isList || isPlanned(options) || !options.hardware.empty())
    pm.addPass(createAnnotateCostsPass(
        {getHardware(options), options.profile, options.whatIf}));
  if (isList) {
    SchedulePassOptions schedule;
    schedule.budget = options.budget;
    pm.addPass(createSchedulePass(schedule));
  }
  pm.addPass(createApplySchedulePass());
  addPasses(pm, options.passesAt.scheduled);
  pm.addPass(createVerifyScheduledPass());
  pm.addPass(createVerifyFuturesPass());
  pm.addPass(createVerifyOrderPass());
  pm.addPass(createVerifyMemoryPass({options.budget}));
  pm.addPass(createVerifyEquivalencePass());
}

void fsdp::buildSchedulePipeline(OpPassManager &pm,
                                 const FSDPPipelineOptions &options) {
  buildLogicalPipeline(pm, options);
  buildLogicalToScheduledPipeline(pm, options);
}

void fsdp::buildLoweringPipeline(OpPassManager &pm, aten::Device device,
                                 Strategy strategy, StringRef passes) {
  pm.addPass(createComputeMeaning());
  pm.addPass(createConvertFSDPToPlan({device, strategy}));
  OpPassManager &nested = pm.nest<plan::ModuleOp>();
  nested.addPass(plan::createFoldViews());
  nested.addPass(plan::createSelectKernels());
  nested.addPass(plan::createFoldCopies());
  addPasses(nested, passes);
  nested.addPass(plan::createInsertSync());
  nested.addPass(plan::createAssignMemory());
}

void fsdp::buildPlanPipeline(OpPassManager &pm,
                             const FSDPPipelineOptions &options) {
  buildSchedulePipeline(pm, options);
  buildLoweringPipeline(pm, options.device, options.strategy,
                        options.passesAt.plan);
  pm.addNestedPass<plan::ModuleOp>(createVerifyPlan());
}

namespace {
struct Options : PassPipelineOptions<Options> {
  PassOptions::Option<aten::Device> device{
      *this, "device", llvm::cl::init(aten::Device::CPU),
      llvm::cl::desc("The device that the plan runs on."),
      llvm::cl::values(clEnumValN(aten::Device::CPU, "cpu", ""),
                       clEnumValN(aten::Device::CUDA, "cuda", ""))};
  PassOptions::Option<Strategy> strategy{
      *this, "strategy", llvm::cl::init(Strategy::FullShard),
      llvm::cl::desc("How the step was sharded, for people to read.")};
};
} // namespace

void fsdp::registerPipelines() {
  PassPipelineRegistration<Options>(
      "lower-to-plan", "From the scheduled level to a plan.",
      [](OpPassManager &pm, const Options &options) {
        buildLoweringPipeline(pm, options.device, options.strategy);
      });
  registerFSDPPipeline(
      "fsdp-pipeline",
      "From the aten level to a plan: shard, schedule, lower, and verify.",
      buildPlanPipeline);
}
