//===- Pipeline.cpp - From the aten level to the scheduled level ----------===//
//
// The passes in their order, with a verifier at each border.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

#include "mlir/Pass/PassManager.h"

using namespace mlir;

namespace fsdp {

static bool mergesUnits(const FSDPPipelineOptions &options) {
  return options.bucket.mode == BucketMode::Merge;
}

void buildShardPipeline(OpPassManager &pm, const FSDPPipelineOptions &options) {
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
    if (failed(parsePassPipeline(options.commHook, pm)))
      llvm_unreachable("readPipelineOptions has parsed it");
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
  pm.addPass(createRematPass({options.remat}));
  pm.addPass(createVerifyLogicalPass());
}

void buildLogicalToScheduledPipeline(OpPassManager &pm,
                                     const FSDPPipelineOptions &options) {
  pm.addPass(createAsyncPass());
  pm.addPass(
      createPrefetchPass({options.backwardPrefetch, options.forwardPrefetch}));
  if (!mergesUnits(options))
    pm.addPass(createBucketPass({options.bucket}));
  LimitInFlightPassOptions limit;
  limit.limitAllGathers = options.limitAllGathers;
  pm.addPass(createLimitInFlightPass(limit));
  pm.addPass(createPlaceReduceWaitsPass({options.reduceWait}));
  bool isList = options.schedule == Preset::List;
  if (isList || !options.hardware.empty()) {
    AnnotateCostsPassOptions costs{options.hardware, options.profile};
    if (costs.hardware.empty() && options.device == aten::Device::CUDA)
      costs.hardware = "h100";
    pm.addPass(createAnnotateCostsPass(costs));
  }
  if (isList) {
    SchedulePassOptions schedule;
    schedule.budget = options.budget;
    pm.addPass(createSchedulePass(schedule));
  }
  pm.addPass(createApplySchedulePass());
  pm.addPass(createVerifyScheduledPass());
  pm.addPass(createVerifyFuturesPass());
  pm.addPass(createVerifyOrderPass());
  pm.addPass(createVerifyMemoryPass({options.budget}));
  pm.addPass(createVerifyEquivalencePass());
}

} // namespace fsdp
