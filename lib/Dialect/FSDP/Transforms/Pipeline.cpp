//===- Pipeline.cpp - From the aten level to the scheduled level ----------===//
//
// The passes in their order, with a verifier at each border.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

#include "mlir/Pass/PassManager.h"

using namespace mlir;

namespace fsdp {

void setSchedule(FSDPPipelineOptions &options, Schedule schedule) {
  options.list = schedule == Schedule::List;
  options.prefetch = options.list ? Prefetch::None : Prefetch::Pre;
  options.limit = schedule == Schedule::Inductor || options.list ? 0 : 2;
  options.forwardPrefetch =
      schedule == Schedule::ManualBlock || schedule == Schedule::Inductor;
  options.bucketBytes = schedule == Schedule::Inductor ? 500'000'000 : 0;
  options.bucketBlocks = schedule == Schedule::FSDP2;
  if (schedule == Schedule::FSDP2)
    options.bucketMode = "copy";
  options.reduceWait = schedule == Schedule::FSDP1 ? ReduceWait::Backward
                       : schedule == Schedule::Inductor || options.list
                           ? ReduceWait::Use
                           : ReduceWait::Next;
}

void buildFSDPPipeline(OpPassManager &pm, const FSDPPipelineOptions &options) {
  AssignUnitsPassOptions units;
  units.wrap = options.wrap;
  pm.addPass(createAssignUnitsPass(units));

  BucketPassOptions bucket;
  bucket.blocks = options.bucketBlocks;
  bucket.bytes = options.bucketBytes;
  bucket.mode = options.bucketMode;
  bool isMerge = options.bucketMode == "merge";
  if (isMerge)
    pm.addPass(createBucketPass(bucket));

  ShardPassOptions shard;
  shard.ranks = options.ranks;
  shard.strategy = options.strategy;
  shard.storageDtype = options.storageDtype;
  shard.reduceDtype = options.reduceDtype;
  shard.keepOutput = options.keepOutput;
  pm.addPass(createShardPass(shard));
  if (!options.reshard.empty()) {
    ReshardPolicyPassOptions policy;
    policy.afterForward = options.reshard;
    pm.addPass(createReshardPolicyPass(policy));
  }

  InsertOptimizerPassOptions optimizer;
  optimizer.optimizer = options.optimizer;
  pm.addPass(createInsertOptimizerPass(optimizer));
  pm.addPass(createHoistConstantsPass());

  RematPassOptions remat;
  remat.scopes = options.remat;
  remat.budget = options.rematBudget;
  pm.addPass(createRematPass(remat));
  if (options.verify)
    pm.addPass(createVerifyLogicalPass());

  pm.addPass(createAsyncPass());
  PrefetchPassOptions prefetch;
  prefetch.backward = options.prefetch;
  prefetch.forward = options.forwardPrefetch;
  pm.addPass(createPrefetchPass(prefetch));
  if (!isMerge)
    pm.addPass(createBucketPass(bucket));
  LimitInFlightPassOptions limit;
  limit.gathers = options.limit;
  limit.bytes = options.limitBytes;
  limit.raise = options.raiseLimit;
  pm.addPass(createLimitInFlightPass(limit));
  PlaceReduceWaitsPassOptions placeReduce;
  placeReduce.wait = options.reduceWait;
  pm.addPass(createPlaceReduceWaitsPass(placeReduce));
  if (options.list || !options.hardware.empty()) {
    AnnotateCostsPassOptions costs;
    costs.hardware = options.hardware;
    if (costs.hardware.empty())
      costs.hardware = options.device == "cuda" ? "h100" : "cpu";
    costs.profile = options.profile;
    pm.addPass(createAnnotateCostsPass(costs));
  }
  if (options.list) {
    SchedulePassOptions schedule;
    schedule.memoryLimit = options.budget;
    pm.addPass(createSchedulePass(schedule));
    pm.addPass(createApplySchedulePass());
  }
  if (options.verify) {
    pm.addPass(createVerifyScheduledPass());
    pm.addPass(createVerifyFuturesPass());
    pm.addPass(createVerifyOrderPass());
    VerifyMemoryPassOptions memory;
    memory.budget = options.budget;
    pm.addPass(createVerifyMemoryPass(memory));
    pm.addPass(createVerifyEquivalencePass());
  }
}

} // namespace fsdp
