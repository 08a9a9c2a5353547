//===- Variants.cpp - Options as decisions --------------------------------===//

#include "Variants.h"
#include "UnitAxes.h"

#include "fsdp/Analysis/Memory.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Pipelines/Pipelines.h"
#include "fsdp/Planner/Bounds.h"
#include "fsdp/Planner/Hardware.h"
#include "fsdp/Planner/Search.h"

#include "mlir/IR/Threading.h"

#include <limits>
#include <map>

using namespace fsdp;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;

static constexpr int64_t allChunks[] = {1, 2, 4, 8, 16};
static constexpr int64_t mostChunks = std::end(allChunks)[-1];

namespace {
/// Options, and the name of what they differ in.
struct Variant {
  std::string name;
  FSDPPipelineOptions options;
};
} // namespace

/// If it is not smaller, or no part of so many shards.
static void dropGroup(FSDPPipelineOptions &options, int64_t shards) {
  auto &group = options.reshardAfterForward.group;
  if (group && (shards % *group != 0 || shards == *group))
    group = std::nullopt;
}

/// By the ranks of a group, most first: a rank of a smaller one holds more. Of
/// several copies, if something is all-reduced later between them. With the
/// ranks of a node as an axis of their own, if units may be sharded over it.
static std::vector<Variant> listMeshes(const FSDPPipelineOptions &options,
                                       const planner::Hardware &hardware,
                                       bool splitsNodes) {
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
    if (splitsNodes && shard > node && node > 1) {
      own.mesh.axes.back().second /= node;
      own.mesh.axes.emplace_back("local", node);
    }
    own.strategy = isOne ? Strategy::FullShard : Strategy::HybridShard;
    dropGroup(own, shard);
    variants.push_back({spellOption(own.mesh), std::move(own)});
  }
  if (options.noAllReduce && variants.size() > 1)
    variants.erase(variants.begin());
  return variants;
}

/// Whether so many ranks are those along the innermost of the axes, or a part
/// of one: neighbours that may keep pieces between them.
static bool isGroup(const MeshSizes &sharded, int64_t ranks) {
  for (int64_t size : llvm::reverse(llvm::make_second_range(sharded.axes))) {
    if (ranks == 1)
      break;
    if (ranks < size)
      return size % ranks == 0;
    if (ranks % size != 0)
      return false;
    ranks /= size;
  }
  return ranks == 1;
}

/// Of which ranks each keeps a piece: of none, half a node, and one, two and
/// four nodes. Where there is no network, nothing is faster than all ranks.
/// `sharded`: the axes of the unit with the most shards.
static std::vector<Variant> listGroups(const FSDPPipelineOptions &options,
                                       const planner::Hardware &hardware,
                                       const MeshSizes &sharded) {
  FSDPPipelineOptions own = options;
  own.reshardAfterForward = {};
  std::vector<Variant> variants = {{spellOption(own.reshardAfterForward), own}};
  if (!hardware.hasNetwork)
    return variants;
  int64_t node = hardware.nodeRanks;
  for (int64_t ranks : {node / 2, node, 2 * node, 4 * node})
    if (ranks > 1 && ranks < sharded.getRanks() && isGroup(sharded, ranks)) {
      own.reshardAfterForward.group = ranks;
      variants.push_back({std::to_string(ranks), own});
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

/// `bytes`: all that may lie on the host. A machine without a way to it has
/// none.
static std::vector<Variant> listOffloads(const FSDPPipelineOptions &options,
                                         int64_t bytes) {
  std::vector<Variant> variants;
  auto add = [&](const Offload &offload) {
    FSDPPipelineOptions own = options;
    own.offload = offload;
    variants.push_back({spellOption(offload), std::move(own)});
  };
  add({});
  add({/*parameters=*/true, /*states=*/false, {}});
  if (options.optimizer != Optimizer::None)
    add({/*parameters=*/false, /*states=*/true, {}});
  for (int64_t quarters : {1, 2, 3})
    add({false, false, {bytes / 4 * quarters}});
  add({/*parameters=*/true, /*states=*/true, {}});
  return variants;
}

namespace {
/// A model of a variant, and the least that it takes; 0 if that is not known.
struct Attempt {
  BuiltModel built;
  int64_t bound = 0;

  /// By what is persistent alone. Then there is no more of a model.
  bool isTooLarge() const {
    return built.model.persistentBytes >= built.model.budget;
  }
};
} // namespace

/// A copy at the logical level, and the bytes of it that are persistent.
static FailureOr<std::pair<mlir::OwningOpRef<mlir::ModuleOp>, int64_t>>
copyLogical(mlir::ModuleOp module, const FSDPPipelineOptions &options,
            mlir::TimingScope &timing) {
  mlir::OwningOpRef<mlir::ModuleOp> copy = module.clone();
  if (failed(makeLogical(*copy, options, timing)))
    return failure();
  auto programs = getPrograms(*copy);
  if (failed(programs))
    return failure();
  int64_t bytes = getPersistentBytes(programs->front());
  return std::make_pair(std::move(copy), bytes);
}

static FailureOr<Attempt> makeAttempt(mlir::ModuleOp module,
                                      const FSDPPipelineOptions &options,
                                      mlir::TimingScope &timing) {
  auto logical = copyLogical(module, options, timing);
  if (failed(logical))
    return failure();
  Attempt attempt;
  planner::StepModel &model = attempt.built.model;
  model.persistentBytes = logical->second;
  if (options.budget)
    model.budget = options.budget;
  if (attempt.isTooLarge())
    return attempt;
  FailureOr<BuiltModel> built = makeStepModel(*logical->first, options);
  if (failed(built))
    return failure();
  built->model.budget = model.budget;
  attempt.built = std::move(*built);
  return attempt;
}

/// A time of 0 if nothing fits.
static planner::Outcome trySearch(const Attempt &attempt,
                                  const FSDPPipelineOptions &options) {
  const planner::StepModel &model = attempt.built.model;
  if (attempt.isTooLarge())
    return {0, model.persistentBytes};
  planner::SearchOptions search =
      planner::makeSearchOptions(options.evaluations / 10, options.robust);
  // Only times are compared, and the bound is known.
  search.stages &= ~unsigned(planner::TrimStage | planner::BoundStage);
  planner::SearchAnswer answer = planner::search(model, search);
  return answer.isFeasible ? answer.outcome
                           : planner::Outcome{0, answer.outcome.peakBytes};
}

namespace {
/// Lets passes run on several modules of a context at once while it lives.
class Threads {
public:
  explicit Threads(mlir::MLIRContext &context)
      : context(context), pool(getStrategy()) {
    context.loadAllAvailableDialects(); // one thread alone may load any
    context.setThreadPool(pool);
  }
  ~Threads() { context.disableMultithreading(); }
  Threads(const Threads &) = delete;
  Threads &operator=(const Threads &) = delete;

  /// Each has a step of its own, in copies: this is what memory is for.
  static constexpr size_t most = 4;

private:
  static llvm::ThreadPoolStrategy getStrategy() {
    llvm::ThreadPoolStrategy strategy = llvm::hardware_concurrency(most);
    strategy.Limit = true;
    return strategy;
  }

  mlir::MLIRContext &context;
  llvm::DefaultThreadPool pool;
};
} // namespace

/// As `tryVariants`. What is wrong with a variant is said where they are made
/// one after the other: once, and not of one that another number of threads
/// would not have come to. Warnings come with the plan.
static mlir::LogicalResult makeModels(mlir::ModuleOp module,
                                      llvm::ArrayRef<Variant> variants,
                                      bool isByMemory,
                                      mlir::TimingScope &timing,
                                      std::vector<Attempt> &attempts) {
  mlir::TimingScope making = timing.nest("make models");
  mlir::MLIRContext *context = module.getContext();
  size_t threads = context->getThreadPool().getMaxConcurrency();
  while (attempts.size() != variants.size()) {
    size_t begin = attempts.size();
    attempts.resize(std::min(begin + threads, variants.size()));
    auto make = [&](size_t i) -> mlir::LogicalResult {
      auto attempt = makeAttempt(module, variants[i].options, making);
      if (failed(attempt))
        return failure();
      attempts[i] = std::move(*attempt);
      if (attempts[i].isTooLarge())
        return mlir::success();
      if (auto bound = planner::findBound(attempts[i].built.model))
        attempts[i].bound = bound->time;
      return mlir::success();
    };
    bool isMade = succeeded([&] {
      mlir::ScopedDiagnosticHandler quiet(
          context, [](mlir::Diagnostic &) { return mlir::success(); });
      return mlir::failableParallelForEachN(context, begin, attempts.size(),
                                            make);
    }());
    for (size_t i = begin; i != attempts.size(); ++i) {
      if (!isMade && failed(make(i)))
        return failure();
      if (isByMemory && attempts[i].isTooLarge()) {
        attempts.resize(i + 1);
        return mlir::success();
      }
    }
  }
  return mlir::success();
}

/// Those that fit, the fastest first, and then those of which a bound says that
/// they are no faster, which are not searched: those with the least bounds are
/// the first to be. `isByMemory`: each holds at least what those before it do,
/// so that after one whose persistent memory alone is too much there is nothing
/// to try. On several threads, of whose number nothing depends.
static FailureOr<std::vector<VariantSearch::Candidate>>
tryVariants(mlir::ModuleOp module, llvm::ArrayRef<Variant> variants,
            bool isByMemory, mlir::TimingScope &timing,
            PlanSummary::Tried &tried) {
  Threads threads(*module.getContext());
  std::vector<Attempt> attempts;
  if (failed(makeModels(module, variants, isByMemory, timing, attempts)))
    return failure();
  std::multimap<int64_t, size_t> byBound;
  for (auto [i, attempt] : llvm::enumerate(attempts)) {
    tried.points.push_back({variants[i].name, {}, attempt.bound});
    byBound.emplace(attempt.bound, i);
  }
  mlir::TimingScope searching = timing.nest("search");
  std::multimap<int64_t, size_t> byTime;
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (;;) {
    std::vector<size_t> next;
    while (next.size() != Threads::most && !byBound.empty() &&
           byBound.begin()->first < fastest)
      next.push_back(byBound.extract(byBound.begin()).mapped());
    if (next.empty())
      break;
    mlir::parallelForEach(module.getContext(), next, [&](size_t i) {
      tried.points[i] = {variants[i].name,
                         trySearch(attempts[i], variants[i].options)};
    });
    for (size_t i : next) {
      const planner::Outcome &outcome = tried.points[i].outcome;
      if (!outcome.time)
        continue;
      byTime.emplace(outcome.meanTime, i);
      fastest = std::min(fastest, outcome.time);
    }
  }
  std::vector<VariantSearch::Candidate> candidates;
  for (const auto &sorted : {byTime, byBound})
    for (auto [time, i] : sorted)
      candidates.push_back({variants[i].options, std::move(attempts[i].built)});
  return candidates;
}

/// `what`: none of which fits.
static mlir::InFlightDiagnostic reject(mlir::ModuleOp module,
                                       const llvm::Twine &what,
                                       const FSDPPipelineOptions &options,
                                       const PlanSummary::Tried &tried) {
  int64_t leanest = tried.points.front().outcome.peakBytes;
  for (const auto &point : tried.points)
    leanest = std::min(leanest, point.outcome.peakBytes);
  return mlir::emitError(module.getLoc())
         << "no " << what << " holds at most " << spellBytes(options.budget)
         << ": the smallest budget that is known to work is " << leanest
         << " bytes; allow more, or more ranks";
}

/// The axes of more than one rank over which units are sharded.
static size_t countShardAxes(const MeshSizes &mesh) {
  return llvm::count_if(mesh.axes, [](const auto &axis) {
    return axis.first != MeshSizes::replicate && axis.second > 1;
  });
}

/// What is decided with the axes of units.
static std::string spellAxes(const FSDPPipelineOptions &options) {
  return spellOption(options.mesh) + "; " + spellOption(options.unit);
}

namespace {
/// Decides one option after the other.
class Decider {
public:
  Decider(mlir::ModuleOp module, const FSDPPipelineOptions &given,
          mlir::TimingScope &timing)
      : module(module), given(given), timing(timing) {
    search.candidates = {{given, {}}};
  }
  FailureOr<VariantSearch> run();

private:
  /// With what is decided later as it needs the least memory. Without pieces:
  /// they only take more.
  static FSDPPipelineOptions makeLeanest(FSDPPipelineOptions own) {
    if (own.chunkLoss.isAuto)
      own.chunkLoss = {mostChunks};
    if (own.reshardAfterForward.isAuto)
      own.reshardAfterForward = {};
    own.unit = dropAuto(std::move(own.unit));
    return own;
  }
  FSDPPipelineOptions getLeanest() const {
    return makeLeanest(search.candidates.front().options);
  }
  /// At the logical level, whatever is kept or offloaded.
  FailureOr<mlir::OwningOpRef<mlir::ModuleOp>>
  copyPlain(FSDPPipelineOptions own) const;
  /// Options that are decided later are as they were given.
  void restore();
  using List = llvm::function_ref<std::vector<Variant>(
      const FSDPPipelineOptions &, const planner::Hardware &)>;
  /// Of what a list has, without offload, or if nothing fits, with all of it.
  mlir::LogicalResult decideAny(FSDPPipelineOptions own, List list,
                                bool isByMemory, PlanSummary::Tried &tried,
                                const llvm::Twine &what);
  mlir::LogicalResult decideMesh();
  FailureOr<std::vector<Variant>> listAxes();
  mlir::LogicalResult decideAxes();
  mlir::LogicalResult decideGroup();
  mlir::LogicalResult decideOffload();
  mlir::LogicalResult decideChunks();

  mlir::ModuleOp module;
  const FSDPPipelineOptions &given;
  mlir::TimingScope &timing;
  VariantSearch search;
};
} // namespace

void Decider::restore() {
  for (VariantSearch::Candidate &candidate : search.candidates) {
    auto set = [&](auto &option, const auto &before, bool wasAuto,
                   const PlanSummary::Tried &tried) {
      if (!wasAuto || !tried.points.empty())
        return;
      option = before;
      candidate.model.reset();
    };
    set(candidate.options.unit, given.unit, given.unit.isAuto(),
        search.choices.axes);
    set(candidate.options.reshardAfterForward, given.reshardAfterForward,
        given.reshardAfterForward.isAuto, search.choices.reshards);
    set(candidate.options.offload, given.offload, given.offload.isAuto,
        search.choices.offloads);
    set(candidate.options.chunkLoss, given.chunkLoss, given.chunkLoss.isAuto,
        search.choices.chunks);
  }
}

FailureOr<mlir::OwningOpRef<mlir::ModuleOp>>
Decider::copyPlain(FSDPPipelineOptions own) const {
  own.reshardAfterForward = {};
  if (own.offload.isAuto)
    own.offload = {};
  auto logical = copyLogical(module, own, timing);
  if (failed(logical))
    return failure();
  return std::move(logical->first);
}

mlir::LogicalResult Decider::decideAny(FSDPPipelineOptions own, List list,
                                       bool isByMemory,
                                       PlanSummary::Tried &tried,
                                       const llvm::Twine &what) {
  auto hardware = planner::loadHardware(getHardware(own), own.whatIf);
  if (!hardware)
    return mlir::emitError(module.getLoc()) << hardware.error().message;
  if (!own.budget && (given.mesh.isAuto || given.unit.isAuto()))
    own.budget.bytes = int64_t(hardware->capacity);
  llvm::SmallVector<Offload> offloads = {own.offload};
  if (own.offload.isAuto)
    offloads = {{}, {/*parameters=*/true, /*states=*/true, {}}};
  for (const Offload &offload : offloads) {
    own.offload = offload;
    tried = {};
    auto fitting =
        tryVariants(module, list(own, *hardware), isByMemory, timing, tried);
    if (failed(fitting))
      return failure();
    search.candidates = std::move(*fitting);
    if (!search.candidates.empty())
      break;
  }
  restore();
  return search.candidates.empty() ? reject(module, what, own, tried)
                                   : mlir::success();
}

mlir::LogicalResult Decider::decideMesh() {
  FSDPPipelineOptions own = getLeanest();
  auto list = [&](const auto &options, const auto &hardware) {
    return listMeshes(options, hardware, given.unit.isAuto());
  };
  return decideAny(own, list, /*isByMemory=*/true, search.choices.meshes,
                   "mesh of " + llvm::Twine(own.ranks) + " ranks");
}

/// Meshes of several axes that shard come to the same with all units over all
/// axes as one axis does; where the network is slow, those with the most ranks
/// are the best once some units are sharded in a node.
FailureOr<std::vector<Variant>> Decider::listAxes() {
  constexpr size_t mostMeshes = 3;
  std::vector<Variant> variants;
  size_t meshes = 0;
  for (const VariantSearch::Candidate &candidate : search.candidates) {
    FSDPPipelineOptions own = makeLeanest(candidate.options);
    bool isOne = countShardAxes(own.mesh) < 2;
    if ((isOne && !variants.empty()) || meshes == mostMeshes)
      continue;
    meshes += !isOne;
    auto logical = copyPlain(own);
    if (failed(logical))
      return failure();
    auto axes = listUnitAxes(**logical, given.unit);
    if (failed(axes))
      return failure();
    std::string on = given.mesh.isAuto ? ", on " + spellOption(own.mesh) : "";
    for (const UnitAxes &one : *axes) {
      if (one.rules.empty() && !variants.empty())
        continue;
      FSDPPipelineOptions &options =
          variants.emplace_back(Variant{one.name + on, own}).options;
      options.unit.rules.insert(options.unit.rules.end(), one.rules.begin(),
                                one.rules.end());
      if (!one.rules.empty())
        dropGroup(options, one.shards);
    }
  }
  return variants;
}

mlir::LogicalResult Decider::decideAxes() {
  auto variants = listAxes();
  if (failed(variants))
    return failure();
  for (const Variant &variant : *variants)
    search.axes[spellAxes(variant.options)] = variant.name;
  auto list = [&](const FSDPPipelineOptions &options,
                  const planner::Hardware &) {
    std::vector<Variant> own = *variants;
    for (Variant &variant : own) {
      variant.options.offload = options.offload;
      variant.options.budget = options.budget;
    }
    return own;
  };
  return decideAny(getLeanest(), list, /*isByMemory=*/false,
                   search.choices.axes, "choice of the axes of units");
}

mlir::LogicalResult Decider::decideGroup() {
  auto logical = copyPlain(getLeanest());
  if (failed(logical))
    return failure();
  MeshSizes sharded = findMostAxes(**logical);
  auto list = [&](const auto &options, const auto &hardware) {
    return listGroups(options, hardware, sharded);
  };
  return decideAny(getLeanest(), list, /*isByMemory=*/false,
                   search.choices.reshards,
                   "choice of --reshard-after-forward");
}

mlir::LogicalResult Decider::decideOffload() {
  FSDPPipelineOptions own = getLeanest();
  own.offload = {};
  auto none = copyLogical(module, own, timing);
  if (failed(none))
    return failure();
  own.offload = {/*parameters=*/true, /*states=*/true, {}};
  auto all = copyLogical(module, own, timing);
  if (failed(all))
    return failure();
  auto fitting =
      tryVariants(module, listOffloads(own, none->second - all->second),
                  /*isByMemory=*/false, timing, search.choices.offloads);
  if (failed(fitting))
    return failure();
  search.candidates = std::move(*fitting);
  restore();
  return search.candidates.empty()
             ? reject(module, "offload", own, search.choices.offloads)
             : mlir::success();
}

mlir::LogicalResult Decider::decideChunks() {
  FSDPPipelineOptions own = search.candidates.front().options;
  auto fitting = tryVariants(module, listChunks(own), /*isByMemory=*/false,
                             timing, search.choices.chunks);
  if (failed(fitting))
    return failure();
  search.candidates = std::move(*fitting);
  return search.candidates.empty()
             ? reject(module, "number of chunks of the loss", own,
                      search.choices.chunks)
             : mlir::success();
}

FailureOr<VariantSearch> Decider::run() {
  if ((given.mesh.isAuto && failed(decideMesh())) ||
      (given.unit.isAuto() && failed(decideAxes())) ||
      (given.reshardAfterForward.isAuto && failed(decideGroup())) ||
      (given.offload.isAuto && failed(decideOffload())) ||
      (given.chunkLoss.isAuto && failed(decideChunks())))
    return failure();
  return std::move(search);
}

FailureOr<VariantSearch>
fsdp::searchVariants(mlir::ModuleOp module, const FSDPPipelineOptions &options,
                     mlir::TimingScope &timing) {
  mlir::TimingScope deciding = timing.nest("decide the options");
  return Decider(module, options, deciding).run();
}

void VariantSearch::take(const FSDPPipelineOptions &options) {
  auto set = [](PlanSummary::Tried &tried, std::string name) {
    if (!tried.points.empty())
      tried.taken = std::move(name);
  };
  set(choices.meshes, spellOption(options.mesh));
  set(choices.axes, axes.lookup(spellAxes(options)));
  if (!choices.axes.points.empty())
    choices.unit = spellOption(options.unit);
  set(choices.reshards, spellOption(options.reshardAfterForward));
  set(choices.offloads, spellOption(options.offload));
  set(choices.chunks, std::to_string(options.chunkLoss.chunks));
}

std::string fsdp::findOptionThatFits(mlir::ModuleOp module,
                                     FSDPPipelineOptions options,
                                     mlir::TimingScope &timing) {
  std::vector<Variant> variants;
  if (options.chunkLoss.chunks == 1) {
    variants = listChunks(options);
    variants.erase(variants.begin());
    for (Variant &variant : variants)
      variant.name = "--chunk-loss " + variant.name;
  }
  auto hardware = planner::loadHardware(getHardware(options), options.whatIf);
  if (!options.offload && hardware && hardware->host.bandwidth > 0 &&
      !options.noAllReduce)
    for (Variant &variant : listOffloads(options, 0))
      if (variant.options.offload && !variant.options.offload.bytes)
        variants.push_back({"--offload " + variant.name, variant.options});
  for (const Variant &variant : variants) {
    auto attempt = makeAttempt(module, variant.options, timing);
    if (failed(attempt))
      return "";
    if (trySearch(*attempt, variant.options).time)
      return variant.name;
  }
  return "";
}
