//===- Options.td - Every option of the compiler, once -----*- tablegen -*-===//
//
// What people may decide about a step. The passes take these options, the
// pipeline has all of them, and so has `fsdp-plan`: names, values, defaults and
// help are from here. To add one, see "Add an option" in CONTRIBUTING.md.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_TD
#define FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_TD

include "mlir/IR/EnumAttr.td"
include "mlir/Pass/PassBase.td"

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

class FSDP_OptionEnum<string name, string summary, list<I32EnumCase> cases>
    : I32Enum<name, summary, cases> {
  let cppNamespace = "::fsdp";
}

def FSDP_ElementType : FSDP_OptionEnum<"ElementType", "the element type of a unit", [
    I32EnumCase<"Unchanged", 0, "unchanged">, I32EnumCase<"F16", 1, "f16">,
    I32EnumCase<"BF16", 2, "bf16">, I32EnumCase<"F32", 3, "f32">, I32EnumCase<"F64", 4, "f64">]>;

def FSDP_Optimizer : FSDP_OptionEnum<"Optimizer", "what updates the shards", [
    I32EnumCase<"AdamW", 0, "adamw">, I32EnumCase<"SGD", 1, "sgd">, I32EnumCase<"None", 2, "none">]>;

def FSDP_BackwardPrefetch : FSDP_OptionEnum<"BackwardPrefetch", "when the backward launches all-gathers", [
    I32EnumCase<"Pre", 0, "backward_pre">, I32EnumCase<"Post", 1, "backward_post">,
    I32EnumCase<"None", 2, "none">]>;

def FSDP_BucketMode : FSDP_OptionEnum<"BucketMode", "how collectives join", [
    I32EnumCase<"Group", 0, "group">, I32EnumCase<"Merge", 1, "merge">, I32EnumCase<"Copy", 2, "copy">]>;

def FSDP_ReduceWait : FSDP_OptionEnum<"ReduceWait", "when the backward waits for reductions", [
    I32EnumCase<"Use", 0, "use">, I32EnumCase<"Backward", 1, "backward">, I32EnumCase<"Next", 2, "next">]>;

def FSDP_Preset : FSDP_OptionEnum<"Preset", "a whole schedule", [
    I32EnumCase<"None", 0, "none">, I32EnumCase<"FSDP1", 1, "fsdp1">, I32EnumCase<"FSDP2", 2, "fsdp2">,
    I32EnumCase<"ManualBlock", 3, "manual-block">, I32EnumCase<"Inductor", 4, "inductor">,
    I32EnumCase<"List", 5, "list">]>;

//===----------------------------------------------------------------------===//
// Options
//===----------------------------------------------------------------------===//

/// An option of the pipeline. `values`: what may be written, for help; empty
/// for a flag. `least`: of a number. `group`: of --help. `alias`: another name,
/// or none.
class PipelineOption<string cppName, string argument, string type, string default,
                     string description, string valueText, int least = 0>
    : Option<cppName, argument, type, default, description> {
  string group = ?;
  string alias = "";
  string values = valueText;
  code read = "read<&FSDPPipelineOptions::" # cppName # ", " # least # ">";
  code spell = "spell<&FSDPPipelineOptions::" # cppName # ">";
}

let group = "Common" in {
def Ranks : PipelineOption<"ranks", "ranks", "int64_t", "1",
    "The world size: how many ranks share the step.", "N", 1>;
def MeshOption : PipelineOption<"mesh", "mesh", "::fsdp::MeshSizes", "::fsdp::MeshSizes{}",
    "The ranks as a mesh of named axes, outermost first: ranks that differ along the last one are neighbours. "
    "A unit is sharded over all axes but replicate, along which there are copies that agree on the gradients; "
    "unit and strategy may say otherwise. RxS is replicate=R,shard=S. auto: of all RxS that fill the ranks, the "
    "one with the fastest step, as fsdp-plan --auto finds. By default one group of all ranks.",
    "RxS|NAME=SIZE,...|auto">;
def StrategyOption : PipelineOption<"strategy", "strategy", "::fsdp::Strategy",
    "::fsdp::Strategy::FullShard", "What is sharded, as ShardingStrategy of FSDP1. With a mesh of "
    "several copies, hybrid_shard is the default, and no_shard where it has no other axis. zero3 is full_shard, zero2 shard_grad_op.",
    "full_shard|shard_grad_op|no_shard|hybrid_shard|hybrid_shard_zero2|zero2|zero3">;
def Wrap : PipelineOption<"wrap", "wrap", "std::string", "\"auto\"",
    "Which modules are units. auto: repeated structure.", "auto|scope:REGEX|class:NAME|size:N">;
def DeviceOption : PipelineOption<"device", "device", "::fsdp::aten::Device",
    "::fsdp::aten::Device::CPU", "The device that the plan runs on.", "cpu|cuda">;
def Hardware : PipelineOption<"hardware", "hardware", "std::string", "\"\"",
    "The machine that costs are predicted for: a hardware file, or a name that is built in. "
    "By default the one of the device.",
    "FILE.toml|a100-40|a100-80|b200|cpu|gb200-nvl72|h100|h100-500w|h200">;
def OptimizerOption : PipelineOption<"optimizer", "optimizer", "::fsdp::Optimizer",
    "::fsdp::Optimizer::AdamW", "What updates the shards.", "adamw|sgd|none">;
def RematOption : PipelineOption<"remat", "remat", "::fsdp::Remat", "::fsdp::Remat{}",
    "Activation checkpointing: what the backward computes again. With scope, modules as a whole; with "
    "cheap, their norms, activations, casts and the like, while products and attention are kept; with "
    "budget, as many modules as it takes for the step to hold no more bytes.", "none|scope:REGEX|cheap:REGEX|budget:SIZE"> {
  let alias = "activation-checkpoint";
}
def Budget : PipelineOption<"budget", "budget", "::fsdp::ByteSize", "::fsdp::ByteSize{}",
    "The most memory that a rank may hold; a plan that needs more is rejected.", "SIZE"> {
  let alias = "memory-limit";
}
def AutoOption : PipelineOption<"automatic", "auto", "bool", "false",
    "Search what is kept, recomputed, sent in one call and launched when: the fastest step within the "
    "budget, by the costs of the hardware or the profile. Instead of a schedule and of remat.", "">;
} // Common

let group = "Sharding" in {
def ReshardAfterForwardOption : PipelineOption<"reshardAfterForward", "reshard-after-forward",
    "::fsdp::ReshardAfterForward", "::fsdp::ReshardAfterForward{}",
    "Whether parameters are freed after the forward, as in FSDP2: true is full_shard, "
    "false shard_grad_op; N keeps 1/N of each unit, which N neighbours gather again: those along the last "
    "axes of the mesh that have N ranks, or part of an axis. Instead of strategy. With the option auto, N lets that decide for "
    "each unit what is kept: nothing, all, or 1/N; the value auto also decides N.", "true|false|N|auto">;
def ReshardAfterBackwardOption : PipelineOption<"reshardAfterBackward", "reshard-after-backward",
    "bool", "true",
    "Whether parameters are freed between the micro-batches of a step. false: each unit is gathered "
    "once in a step, and stays until the last micro-batch has ended, as after "
    "set_reshard_after_backward(False) of FSDP2; nor is it freed after the forward.", "true|false">;
def UnitOption : PipelineOption<"unit", "unit", "::fsdp::UnitRules", "::fsdp::UnitRules{}",
    "What is decided otherwise for the units of which REGEX matches the name; the last rule that "
    "says something counts. shard: over which axes of the mesh it is sharded; along the others there are "
    "copies; with the option auto, the value auto decides for each unit whether these are all axes or only "
    "inner ones. Rules are separated by semicolons, or the lines of a file.",
    "REGEX: [strategy=NAME] [shard=AXIS+AXIS|auto] [reshard=true|false] [reshard-after-backward=true|false] [storage=DTYPE] [reduce=DTYPE]; ...|file:PATH">;
def IgnoreOption : PipelineOption<"ignore", "ignore", "std::string", "\"\"",
    "Parameters that are neither sharded nor reduced, as ignored_states of FSDP1: those of which the "
    "regular expression matches a part of the name. Each rank has a copy of its own, and updates it "
    "by its own gradient.", "REGEX">;
def SyncBuffersOption : PipelineOption<"syncBuffers", "sync-buffers", "::fsdp::SyncBuffers",
    "::fsdp::SyncBuffers::None", "What becomes of the buffers that a program changes: each rank keeps its "
    "own, all take those of rank 0, as broadcast_buffers of DDP, or the mean, of integers nothing.",
    "none|broadcast|mean">;
def StorageDtype : PipelineOption<"storageDtype", "storage-dtype", "::fsdp::ElementType",
    "::fsdp::ElementType::Unchanged",
    "The element type of the shards. unchanged: that of the parameters in the archive.", "f16|bf16|f32|f64">;
def ReduceDtype : PipelineOption<"reduceDtype", "reduce-dtype", "::fsdp::ElementType",
    "::fsdp::ElementType::Unchanged",
    "The element type of reductions. unchanged: the reduce_dtype of the capture, or that of the gradients.", "f16|bf16|f32|f64">;
} // Sharding

let group = "Training" in {
def AccumulateOption : PipelineOption<"accumulate", "accumulate", "::fsdp::Accumulation", "::fsdp::Accumulation{}",
    "Gradient accumulation: a step is K micro-batches, whose gradients are summed; with mean, "
    "the loss of each is divided by K.", "K|K:mean">;
def NoSync : PipelineOption<"noSync", "no-sync", "bool", "false",
    "Reduce the gradients once for all micro-batches of a step, as in no_sync() of FSDP1: each rank "
    "sums its own unsharded ones. Otherwise each micro-batch reduces, and shards are summed.", "">;
def NoAllReduce : PipelineOption<"noAllReduce", "no-all-reduce", "bool", "false",
    "All-reduce the gradients between the copies of a mesh once for all micro-batches of a step, as "
    "set_requires_all_reduce(False) of FSDP2: each micro-batch reduce-scatters, and what the shards have of "
    "it is summed in the reduce dtype.", "">;
def ClipGradNormOption : PipelineOption<"clipGradNorm", "clip-grad-norm", "::fsdp::ClipGradNorm",
    "::fsdp::ClipGradNorm{}",
    "Clip the norm of all gradients to M, as torch.nn.utils.clip_grad_norm_; p is its order. fsdp-run then shows "
    "the norm of each step; an M that no norm exceeds, such as 1e30, only measures.",
    "M[:1|:2|:inf]">;
def GradScalerOption : PipelineOption<"gradScaler", "grad-scaler", "::fsdp::GradScaler",
    "::fsdp::GradScaler{}",
    "Scale the loss, skip the update where a gradient is not finite, and adapt the scale, as "
    "torch.amp.GradScaler with these arguments; default has those of PyTorch.",
    "default|init_scale=S,growth_factor=G,backoff_factor=B,growth_interval=N">;
def Momentum : PipelineOption<"momentum", "momentum", "bool", "false",
    "Give sgd a momentum buffer.", "">;
def NoDecayOption : PipelineOption<"noDecay", "no-decay", "::fsdp::NoDecay", "::fsdp::NoDecay{}",
    "Parameters without weight decay: those of which the regular expression matches a part of the "
    "name, those of fewer than N dimensions, or both.", "REGEX|dims<N|'dims<N|REGEX'">;
def LRGroupsOption : PipelineOption<"lrGroups", "lr-groups", "::fsdp::LRGroups", "::fsdp::LRGroups{}",
    "Groups of parameters with learning rates of their own, numbered from 1, which fsdp-run --lr-scale "
    "sets: those of which the regular expression matches a part of the name, those of fewer than N "
    "dimensions, or both. A parameter is in the last group that it matches.",
    "REGEX|dims<N|'dims<N|REGEX'; ...">;
} // Training

let group = "Schedule and memory" in {
def ChunkLossOption : PipelineOption<"chunkLoss", "chunk-loss", "::fsdp::ChunkLoss", "::fsdp::ChunkLoss{}",
    "Compute a cross-entropy over a vocabulary, and its backward, for N chunks of rows one after the other: the "
    "logits are there for one chunk at a time. What else reads them leaves a loss as it is. auto: of 1, 2, 4, 8 and "
    "16 chunks, the number with the fastest step, as fsdp-plan --auto finds.", "N|auto">;
def PresetOption : PipelineOption<"schedule", "schedule", "::fsdp::Preset", "::fsdp::Preset::None",
    "A whole schedule, instead of backward-prefetch, forward-prefetch, limit-all-gathers, bucket "
    "and reduce-wait: that of FSDP1, FSDP2, GraphTrainer or Inductor, or list scheduling by "
    "costs.", "fsdp1|fsdp2|manual-block|inductor|list">;
def BackwardPrefetchOption : PipelineOption<"backwardPrefetch", "backward-prefetch",
    "::fsdp::BackwardPrefetch", "::fsdp::BackwardPrefetch::Pre",
    "When the backward launches the all-gather of the next unit: before or after the backward "
    "of the current one.", "backward_pre|backward_post|none">;
def ForwardPrefetch : PipelineOption<"forwardPrefetch", "forward-prefetch", "int64_t", "0",
    "How many units the forward gathers ahead.", "N">;
def LimitAllGathers : PipelineOption<"limitAllGathers", "limit-all-gathers", "::fsdp::GatherLimit", "::fsdp::GatherLimit{}",
    "How many gathered units may be alive, beside those that the strategy keeps; 0: any number. "
    "The default rises to what the step needs.", "N">;
def BucketOption : PipelineOption<"bucket", "bucket", "::fsdp::Bucket", "::fsdp::Bucket{}",
    "Which collectives go in one call. merge: units join instead; copy: the collectives of a "
    "bucket share one buffer.", "none|[merge:|copy:]units:N|[merge:|copy:]bytes:SIZE">;
def ReduceWaitOption : PipelineOption<"reduceWait", "reduce-wait", "::fsdp::ReduceWait",
    "::fsdp::ReduceWait::Next",
    "When the backward waits for a reduction, and gives back the memory of what was reduced: when "
    "the update needs it, when the backward ends, or before the next one is launched.", "use|backward|next">;
def OffloadOption : PipelineOption<"offload", "offload", "::fsdp::Offload", "::fsdp::Offload{}",
    "CPU offload: what lies in host memory. params: the shards; optimizer: optimizer states and gradients, and "
    "updates run on the host; all: both, as CPUOffload of FSDP1; bytes: all of the largest units, until SIZE "
    "of device memory are saved; auto: of none, params, optimizer, all, and a quarter, half and three quarters of "
    "all in bytes, that with the fastest step, as fsdp-plan --auto finds.", "none|params|optimizer|all|bytes=SIZE|auto">;
} // Schedule and memory

let group = "Search and costs" in {
def DecisionsOption : PipelineOption<"decisions", "decisions", "std::string", "\"\"",
    "A file of decisions: with auto, where those that were found are written; without, what is "
    "carried out.", "FILE.toml">;
def Evaluations : PipelineOption<"evaluations", "evaluations", "int64_t", "20000",
    "How many steps the search of auto tries. The answer depends on nothing else.", "N", 1>;
def Robust : PipelineOption<"robust", "robust", "bool", "true",
    "Whether the search of auto judges steps by the mean of their predicted time and those with a "
    "network of 20 % less bandwidth and with computations that take 10 % longer; false: by the "
    "predicted time alone.", "true|false">;
def Profile : PipelineOption<"profile", "profile", "std::string", "\"\"",
    "Measured times of fsdp-run --profile, which replace predicted ones.", "FILE.json">;
def WhatIfOption : PipelineOption<"whatIf", "what-if", "std::string", "\"\"",
    "Another machine: numbers of the hardware file are multiplied, such as link.network.gbytes=0.5x; a key means all "
    "numbers of that name in a table and below it.", "KEY=FACTORx,...">;
} // Search and costs

let group = "Expert" in {
def CommHookOption : PipelineOption<"commHook", "comm-hook", "std::string", "\"\"",
    "Passes that replace reductions, in the syntax of --pass-pipeline: communication hooks. They run when the "
    "gradients have been reduced and accumulated; --load-pass-plugin brings them. Means stay means, or the step "
    "is rejected; what sums are rounded to is theirs to say.", "PIPELINE">;
def PassesAtOption : PipelineOption<"passesAt", "passes-at", "::fsdp::PassesAt", "::fsdp::PassesAt{}",
    "More passes, each pipeline in the syntax of --pass-pipeline: at the end of a level, ahead of its verifiers. "
    "What they do at the aten level is the model from then on; at the others it is checked as what the compiler does.",
    "LEVEL=PIPELINE;... of aten, logical, scheduled, plan">;
def KeepOutput : PipelineOption<"keepOutput", "keep-output", "bool", "false",
    "Keep the outputs of the model, of each rank its own.", "">;
} // Expert

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_OPTIONS_TD
