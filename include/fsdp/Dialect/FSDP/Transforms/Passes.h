//===- Passes.h - Passes of the fsdp dialect --------------------*- C++ -*-===//
//
// The passes that shard and schedule a step, and the pipeline that runs them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H

#include "fsdp/Planner/Scheduling.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassOptions.h"

namespace fsdp {

/// What updates the shards.
enum class Optimizer { AdamW, SGD, None };

/// When the gathers of the backward are launched.
enum class Prefetch { Pre, Post, None };

/// When the backward waits for the reductions that it has launched.
enum class ReduceWait { Use, Backward, Next };

/// Whose schedule a plan imitates, or how it is found; see docs/schedules.md.
enum class Schedule { FSDP1, FSDP2, ManualBlock, Inductor, List };

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

/// The options of `--fsdp-pipeline`.
struct FSDPPipelineOptions : mlir::PassPipelineOptions<FSDPPipelineOptions> {
  Option<int64_t> ranks{*this, "ranks",
                        llvm::cl::desc("How many ranks share the step."),
                        llvm::cl::init(1)};
  Option<std::string> strategy{
      *this, "strategy", llvm::cl::desc("What is sharded, and for how long."),
      llvm::cl::init("full_shard")};
  Option<std::string> reshard{
      *this, "reshard",
      llvm::cl::desc("What the strategy keeps after the forward instead: "
                     "after-forward of --fsdp-reshard-policy.")};
  Option<std::string> wrap{*this, "wrap",
                           llvm::cl::desc("What becomes a unit."),
                           llvm::cl::init("auto")};
  Option<std::string> device{*this, "device",
                             llvm::cl::desc("The device of the plan."),
                             llvm::cl::init("cpu")};
  Option<std::string> storageDtype{
      *this, "storage-dtype",
      llvm::cl::desc("The element type of the shards.")};
  Option<std::string> reduceDtype{
      *this, "reduce-dtype", llvm::cl::desc("The element type of reductions.")};
  Option<bool> keepOutput{*this, "keep-output",
                          llvm::cl::desc("Keep the outputs of the model."),
                          llvm::cl::init(false)};
  Option<std::string> remat{
      *this, "remat", llvm::cl::desc("Scopes to recompute in the backward.")};
  Option<int64_t> rematBudget{
      *this, "remat-budget",
      llvm::cl::desc("Recompute until the step holds no more bytes."),
      llvm::cl::init(0)};
  Option<Optimizer> optimizer{
      *this, "optimizer", llvm::cl::desc("What updates the shards."),
      llvm::cl::init(Optimizer::AdamW),
      llvm::cl::values(clEnumValN(Optimizer::AdamW, "adamw", ""),
                       clEnumValN(Optimizer::SGD, "sgd", ""),
                       clEnumValN(Optimizer::None, "none", ""))};
  Option<Prefetch> prefetch{
      *this, "prefetch",
      llvm::cl::desc("When the gathers of the backward are launched."),
      llvm::cl::init(Prefetch::Pre),
      llvm::cl::values(clEnumValN(Prefetch::Pre, "backward_pre", ""),
                       clEnumValN(Prefetch::Post, "backward_post", ""),
                       clEnumValN(Prefetch::None, "none", ""))};
  Option<int64_t> forwardPrefetch{
      *this, "forward-prefetch",
      llvm::cl::desc("How many units the forward gathers ahead."),
      llvm::cl::init(0)};
  Option<int64_t> limit{
      *this, "limit",
      llvm::cl::desc("How many gathered units may be alive; 0: any number."),
      llvm::cl::init(2)};
  Option<int64_t> limitBytes{
      *this, "limit-bytes",
      llvm::cl::desc("How many bytes of gathered units may be alive; 0: any."),
      llvm::cl::init(0)};
  Option<bool> raiseLimit{
      *this, "raise-limit",
      llvm::cl::desc("Raise a limit that the step cannot meet."),
      llvm::cl::init(false)};
  Option<int64_t> bucketBlocks{
      *this, "bucket-blocks",
      llvm::cl::desc("How many units' collectives go in one call; 0: one."),
      llvm::cl::init(0)};
  Option<int64_t> bucketBytes{
      *this, "bucket-bytes",
      llvm::cl::desc("How many bytes of collectives go in one call; 0: one."),
      llvm::cl::init(0)};
  Option<std::string> bucketMode{
      *this, "bucket-mode",
      llvm::cl::desc("What joins: launches (group, copy) or units (merge)."),
      llvm::cl::init("group")};
  Option<ReduceWait> reduceWait{
      *this, "reduce-wait",
      llvm::cl::desc("When the backward waits for reductions."),
      llvm::cl::init(ReduceWait::Use),
      llvm::cl::values(clEnumValN(ReduceWait::Use, "use", ""),
                       clEnumValN(ReduceWait::Backward, "backward", ""),
                       clEnumValN(ReduceWait::Next, "next", ""))};
  Option<bool> list{
      *this, "list",
      llvm::cl::desc("Let list scheduling say when collectives are issued."),
      llvm::cl::init(false)};
  Option<std::string> hardware{
      *this, "hardware",
      llvm::cl::desc("Annotate costs, by this hardware file or built-in name."),
      llvm::cl::init("")};
  Option<std::string> profile{
      *this, "profile",
      llvm::cl::desc("Take costs from this profile where it has them.")};
  Option<int64_t> budget{
      *this, "budget",
      llvm::cl::desc("The most bytes that a rank may hold; 0 for no limit."),
      llvm::cl::init(0)};
  Option<bool> verify{*this, "verify",
                      llvm::cl::desc("Run the verifiers at the borders."),
                      llvm::cl::init(true)};
};

/// Sets the options that a schedule consists of: prefetch, limit, buckets and
/// waits for reductions.
void setSchedule(FSDPPipelineOptions &options, Schedule schedule);

/// Adds the passes from the aten level to the scheduled level.
void buildFSDPPipeline(mlir::OpPassManager &pm,
                       const FSDPPipelineOptions &options);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_PASSES_H
