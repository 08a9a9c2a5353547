//===- PipelineOptions.cpp - The table of options, and who reads it -------===//
//
// Options by name: for textual pipelines and for the command line.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Options/PipelineOptions.h"

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace fsdp {

template <auto Member, int64_t Least>
static std::string read(StringRef text, FSDPPipelineOptions &options) {
  auto &value = options.*Member;
  if constexpr (std::is_same_v<decltype(value), int64_t &>)
    return readOption(text, value, Least);
  else
    return readOption(text, value);
}

template <auto Member>
static std::string spell(const FSDPPipelineOptions &options) {
  return spellOption(options.*Member);
}

#define GET_PipelineOptions_IMPL
#include "fsdp/Dialect/FSDP/Transforms/Options/PipelineTable.inc"

ArrayRef<PipelineOption> getPipelineOptions() { return PipelineOptions; }

const PipelineOption *findPipelineOption(StringRef name) {
  for (const PipelineOption &row : PipelineOptions)
    if (row.name == name || (*row.alias && row.alias == name))
      return &row;
  return nullptr;
}

namespace {
/// A preset is a list of decisions, each an option of the table.
struct PresetDecisions {
  Preset preset;
  StringRef backwardPrefetch, forwardPrefetch, bucket, limitAllGathers,
      reduceWait;
};
} // namespace

static constexpr PresetDecisions presets[] = {
    {Preset::FSDP1, "backward_pre", "0", "none", "2", "next"},
    {Preset::FSDP2, "backward_pre", "0", "copy:units:1", "2", "next"},
    {Preset::ManualBlock, "backward_pre", "1", "none", "2", "next"},
    {Preset::Inductor, "backward_pre", "1", "bytes:500MB", "0", "use"},
    {Preset::List, "none", "0", "none", "0", "next"},
};

static void setSchedule(FSDPPipelineOptions &options) {
  const PresetDecisions &own =
      *llvm::find_if(presets, [&](const PresetDecisions &row) {
        return row.preset == options.schedule;
      });
  for (const std::string &error :
       {readOption(own.backwardPrefetch, options.backwardPrefetch),
        readOption(own.forwardPrefetch, options.forwardPrefetch, 0),
        readOption(own.bucket, options.bucket),
        readOption(own.limitAllGathers, options.limitAllGathers),
        readOption(own.reduceWait, options.reduceWait)}) {
    (void)error;
    assert(error.empty() && "the table has an option that there is not");
  }
  options.limitAllGathers.isDefault = true; // which rises where it must
}

/// What is wrong with the passes of an option, which run on `anchor`.
static std::string
checkPasses(StringRef option, const std::string &pipeline,
            StringRef anchor = OpPassManager::getAnyOpAnchorName()) {
  std::string error;
  llvm::raw_string_ostream stream(error);
  OpPassManager passes(anchor);
  if (succeeded(parsePassPipeline(pipeline, passes, stream)))
    return "";
  StringRef reason = StringRef(error).split(": error: ").second;
  return "--" + option.str() +
         ": expected passes of --load-pass-plugin, found '" + pipeline +
         "': " + reason.split('\n').first.str();
}

/// What a search or a file of decisions already says.
static std::string findPlannerConflict(const llvm::StringSet<> &names,
                                       const FSDPPipelineOptions &options) {
  if (!options.automatic && names.contains("evaluations"))
    return "--evaluations: expected --auto, whose search tries so many steps";
  if (!options.automatic && names.contains("robust"))
    return "--robust: expected --auto, whose search it is about";
  if (!options.automatic && options.decisions.empty())
    return "";
  std::string self = options.automatic ? "--auto" : "--decisions";
  for (StringRef part :
       {"schedule", "backward-prefetch", "forward-prefetch",
        "limit-all-gathers", "bucket", "reduce-wait", "remat", "strategy",
        "reshard-after-forward", "reshard-after-backward"}) {
    bool isMerge = part == "bucket" && options.bucket.mode == BucketMode::Merge;
    bool isReplicated =
        part == "strategy" && (options.strategy == Strategy::NoShard ||
                               options.strategy == Strategy::HybridShard ||
                               options.strategy == Strategy::FullShard);
    bool isOfPieces = part == "reshard-after-forward" &&
                      (options.reshardAfterForward.group > 1 ||
                       options.reshardAfterForward.isAuto);
    if (names.contains(part) && !isMerge && !isReplicated && !isOfPieces)
      return self + ": decides what --" + part.str() +
             " says; give one of the two";
  }
  for (const UnitRule &rule : options.unit.rules)
    if (rule.reshard || rule.reshardAfterBackward ||
        rule.strategy.value_or(Strategy::NoShard) != Strategy::NoShard)
      return self + ": decides what --unit says of '" + rule.regex +
             "'; leave reshard out, and any strategy but no_shard";
  return "";
}

/// What contradicts each other.
static std::string findConflict(const llvm::StringSet<> &names,
                                const FSDPPipelineOptions &options) {
  if (options.mesh.isAuto && !(options.automatic && names.contains("ranks")))
    return "--mesh: 'auto' is a decision of --auto for --ranks N; give both";
  if (options.reshardAfterForward.isAuto && !options.automatic)
    return "--reshard-after-forward: 'auto' is a decision of --auto; give both";
  if (options.chunkLoss.isAuto && !options.automatic)
    return "--chunk-loss: 'auto' is a decision of --auto; give both";
  if (options.offload.isAuto && !options.automatic)
    return "--offload: 'auto' is a decision of --auto; give both";
  if (options.unit.isAuto() && !options.automatic)
    return "--unit: 'shard=auto' is a decision of --auto; give both";
  if (options.unit.isAuto() && !options.mesh.isAuto &&
      options.mesh.axes.size() - options.mesh.hasAxis(MeshSizes::replicate) < 2)
    return "--unit: 'shard=auto' decides between axes that shard; give a mesh "
           "of several, such as --mesh shard=8,local=8, or --mesh auto";
  if (options.mesh.isAuto && names.contains("strategy"))
    return "--mesh: 'auto' decides what --strategy says; give one of the two";
  auto group = options.reshardAfterForward.group;
  if (names.contains("mesh") && !options.mesh.isAuto &&
      options.mesh.getRanks() != options.ranks)
    return "--mesh: expected the " + std::to_string(options.ranks) +
           " of --ranks, found '" + spellOption(options.mesh) + "'";
  if (options.ranks > INT32_MAX)
    return "--mesh: expected less than 2^31 ranks, found '" +
           spellOption(options.mesh) + "'";
  bool isInGroups = isHybrid(options.strategy);
  if (isInGroups && !(options.mesh.hasAxis(MeshSizes::replicate) &&
                      options.mesh.axes.size() > 1))
    return "--strategy: '" + spellOption(options.strategy) +
           "' shards in groups of ranks; give a mesh of two axes, such as "
           "--mesh 2x4";
  int64_t shards = countShards(options.strategy, options.ranks, options.mesh);
  if (group && shards % *group != 0)
    return "--reshard-after-forward: expected a number of ranks that divides "
           "the " +
           std::to_string(shards) +
           (isInGroups ? " of a group of --mesh" : " of --ranks") +
           "; found '" + std::to_string(*group) + "'";
  bool mayKeep = !options.reshardAfterBackward;
  for (const UnitRule &rule : options.unit.rules)
    mayKeep |= !rule.reshardAfterBackward.value_or(true);
  if (mayKeep && options.accumulate.microBatches == 1)
    return "--reshard-after-backward: expected --accumulate K of several "
           "micro-batches, between which parameters stay gathered; found '" +
           spellOption(options.accumulate) + "'";
  if (mayKeep && group > 1)
    return "--reshard-after-backward: --reshard-after-forward '" +
           spellOption(options.reshardAfterForward) +
           "' frees what is to stay gathered until the step ends; give one of "
           "the two";
  for (const UnitRule &rule : options.unit.rules)
    if ((!rule.shard.empty() || rule.isShardAuto) &&
        rule.strategy.value_or(options.strategy) == Strategy::NoShard)
      return "--unit: 'no_shard' shards over no axis; leave it or shard out of "
             "'" +
             rule.regex + "'";
  for (const UnitRule &rule : options.unit.rules)
    if (group > 1 && (rule.strategy || rule.reshard))
      return "--unit: --reshard-after-forward '" +
             spellOption(options.reshardAfterForward) +
             "' already says what is freed of all units; leave strategy and "
             "reshard out of '" +
             rule.regex + "'";
  if (names.contains("reshard-after-forward") && names.contains("strategy"))
    return "--reshard-after-forward: --strategy '" +
           spellOption(options.strategy) +
           "' already says what is freed; give one of the two";
  for (StringRef part : {"backward-prefetch", "forward-prefetch",
                         "limit-all-gathers", "bucket", "reduce-wait"})
    if (options.schedule != Preset::None && names.contains(part))
      return "--schedule: '" + spellOption(options.schedule) +
             "' already says what --" + part.str() + " is; give one of the two";
  if (std::string error = findPlannerConflict(names, options); !error.empty())
    return error;
  if (!options.whatIf.empty() && options.hardware.empty() &&
      options.schedule != Preset::List && !options.automatic &&
      options.decisions.empty())
    return "--what-if: expected --hardware, whose numbers are multiplied";
  if (options.noSync && options.accumulate.microBatches == 1)
    return "--no-sync: expected --accumulate K of several micro-batches, "
           "between which nothing is reduced; found '" +
           spellOption(options.accumulate) + "'";
  if (options.noAllReduce && options.accumulate.microBatches == 1)
    return "--no-all-reduce: expected --accumulate K of several micro-batches, "
           "between which nothing is all-reduced; found '" +
           spellOption(options.accumulate) + "'";
  if (options.noAllReduce && options.noSync)
    return "--no-all-reduce: --no-sync already reduces nothing between "
           "micro-batches; give one of the two";
  if (options.momentum && options.optimizer != Optimizer::SGD)
    return "--momentum: expected --optimizer sgd, which has a momentum; found "
           "'" +
           spellOption(options.optimizer) + "'";
  if (options.clipGradNorm && options.optimizer == Optimizer::None)
    return "--clip-grad-norm: expected --optimizer adamw or sgd, whose updates "
           "take gradients that are clipped; found 'none'";
  if (options.offload.states && !options.offload.parameters &&
      options.optimizer == Optimizer::None)
    return "--offload: expected --optimizer adamw or sgd, whose states are "
           "offloaded; found 'none'";
  if (options.lrGroups && options.optimizer == Optimizer::None)
    return "--lr-groups: expected --optimizer adamw or sgd, which have a "
           "learning rate; found 'none'";
  if (options.gradScaler && options.optimizer == Optimizer::None)
    return "--grad-scaler: expected --optimizer adamw or sgd, whose updates "
           "divide by the scale; found 'none'";
  if (options.noDecay && options.optimizer == Optimizer::None)
    return "--no-decay: expected --optimizer adamw or sgd, which decay "
           "weights; found 'none'";
  const PassesAt &more = options.passesAt;
  for (const std::string *pipeline :
       {&more.aten, &more.logical, &more.scheduled})
    if (std::string error = checkPasses("passes-at", *pipeline); !error.empty())
      return error;
  if (std::string error = checkPasses("passes-at", more.plan, "plan.module");
      !error.empty())
    return error;
  return checkPasses("comm-hook", options.commHook);
}

std::string readPipelineOptions(ArrayRef<GivenOption> given,
                                FSDPPipelineOptions &options) {
  llvm::StringSet<> names;
  for (const GivenOption &each : given) {
    const std::string &text = each.second;
    const PipelineOption *option = findPipelineOption(each.first);
    if (!option)
      return "--" + each.first + ": there is no such option";
    std::string name = option->name;
    if (!names.insert(name).second)
      return "--" + name + ": expected once, found twice";
    if (std::string expected = option->read(text, options); !expected.empty())
      return "--" + name + ": expected " + expected + "; found '" + text + "'";
  }
  if (names.contains("mesh") && !names.contains("ranks"))
    options.ranks = options.mesh.getRanks();
  if (!names.contains("strategy") && options.mesh.getReplicas() > 1)
    options.strategy = options.mesh.axes.size() > 1 ? Strategy::HybridShard
                                                    : Strategy::NoShard;
  if (std::string conflict = findConflict(names, options); !conflict.empty())
    return conflict;
  // A strategy is a reshard policy.
  int64_t shards = countShards(options.strategy, options.ranks, options.mesh);
  if (names.contains("reshard-after-forward") && shards > 1 &&
      options.reshardAfterForward.group == 1) {
    options.strategy = isHybrid(options.strategy) ? Strategy::HybridShardZero2
                                                  : Strategy::ShardGradOp;
    options.reshardAfterForward = {};
  } else if (options.reshardAfterForward.group == shards) {
    options.reshardAfterForward = {};
  }
  if (options.schedule != Preset::None)
    setSchedule(options);
  return "";
}

namespace {
/// The options of the table as MLIR parses and lists them: as text.
struct TextOptions : PassPipelineOptions<TextOptions> {
  TextOptions() {
    for (const PipelineOption &row : PipelineOptions)
      options.push_back(std::make_unique<Option<std::string>>(
          *this, row.name, llvm::cl::desc(row.description),
          llvm::cl::value_desc(row.values),
          *row.values ? llvm::cl::ValueRequired : llvm::cl::ValueOptional));
  }
  std::vector<std::unique_ptr<Option<std::string>>> options;
};
} // namespace

std::string parsePipelineOptions(StringRef text, FSDPPipelineOptions &options) {
  TextOptions texts;
  std::string error;
  llvm::raw_string_ostream stream(error);
  if (failed(texts.parseFromString(text, stream)))
    return error;
  std::vector<GivenOption> given;
  for (const auto &option : texts.options)
    if (option->hasValue())
      given.emplace_back(option->ArgStr.str(), option->getValue());
  return readPipelineOptions(given, options);
}

void registerFSDPPipeline(StringRef name, StringRef description,
                          void (*build)(OpPassManager &,
                                        const FSDPPipelineOptions &)) {
  registerPassPipeline(
      name, description,
      [build](OpPassManager &pm, StringRef text,
              function_ref<LogicalResult(const Twine &)> fail) {
        FSDPPipelineOptions options;
        if (std::string error = parsePipelineOptions(text, options);
            !error.empty())
          return fail(error);
        if (options.reshardAfterForward.isAuto)
          return fail("reshard-after-forward: expected true, false or a number "
                      "of ranks; 'auto' is a decision of fsdp-plan");
        if (options.chunkLoss.isAuto)
          return fail("chunk-loss: expected a number of chunks; 'auto' is a "
                      "decision of fsdp-plan");
        if (options.offload.isAuto)
          return fail("offload: expected what is offloaded; 'auto' is a "
                      "decision of fsdp-plan");
        build(pm, options);
        return success();
      },
      [](function_ref<void(const mlir::detail::PassOptions &)> list) {
        list(TextOptions());
      });
}

} // namespace fsdp
