//===- Pipeline.td - The options of --fsdp-pipeline --------*- tablegen -*-===//
//
// The struct of the pipeline's options, and the table that reads them by name.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_PIPELINE_TD
#define FSDP_DIALECT_FSDP_TRANSFORMS_PIPELINE_TD

include "fsdp/Dialect/FSDP/Transforms/Options/Options.td"
include "llvm/TableGen/SearchableTable.td"

def FSDPPipeline : Pass<"fsdp-pipeline", "::mlir::ModuleOp"> {
  let summary = "compile a step from the aten level to a plan";
  let description = [{
    Shards, schedules, lowers and verifies: all passes of `fsdp-plan`, with its
    options.
  }];
  let constructor = "nullptr"; // a pipeline, registered in InitAllPasses.h
  let options = [
    Ranks, MeshOption, StrategyOption, ReshardAfterForwardOption, ReshardAfterBackwardOption, UnitOption, Wrap, IgnoreOption,
    SyncBuffersOption, DeviceOption, StorageDtype, ReduceDtype, KeepOutput, AccumulateOption,
    NoSync, NoAllReduce, CommHookOption, PassesAtOption, ChunkLossOption, RematOption, OptimizerOption, Momentum, NoDecayOption, LRGroupsOption, GradScalerOption, ClipGradNormOption, OffloadOption,
    BackwardPrefetchOption, ForwardPrefetch,
    LimitAllGathers, BucketOption, ReduceWaitOption, PresetOption, Hardware, Profile, WhatIfOption, Budget,
    AutoOption, Robust, Evaluations, DecisionsOption,
  ];
}

def PipelineOptions : GenericTable {
  let FilterClass = "PipelineOption";
  let CppTypeName = "PipelineOption";
  let Fields = ["argument", "alias", "group", "values", "description", "read", "spell"];
  string TypeOf_read = "code";
  string TypeOf_spell = "code";
}

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_PIPELINE_TD
