//===- Compile.cpp - From imported programs to a proved plan --------------===//

#include "Compile.h"
#include "Prediction.h"
#include "Trace.h"
#include "Variants.h"

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Analysis/Memory.h"
#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Auto.h"
#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/InitAllDialects.h"
#include "fsdp/Pipelines/Pipelines.h"
#include "fsdp/Planner/Hardware.h"
#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/Process.h"

#include <cmath>
#include <future>

using namespace fsdp;
using llvm::StringRef;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;
using mlir::LogicalResult;
using mlir::success;

namespace {

/// The most that a program holds, in bytes.
FailureOr<int64_t> findPeak(mlir::ModuleOp module) {
  auto programs = getPrograms(module);
  if (failed(programs))
    return failure();
  int64_t bytes = 0;
  for (mlir::func::FuncOp program : *programs)
    bytes = std::max(bytes, findMemoryPeak(program).getTotal());
  return bytes;
}

/// From the imported model to the scheduled level. What is recomputed is chosen
/// at the logical level, and the schedule holds more, such as what it gathers
/// ahead: with a budget, less is asked for until the schedule keeps to it.
/// Returns the bytes of the peak.
FailureOr<int64_t> schedule(mlir::ModuleOp &module, FSDPPipelineOptions options,
                            mlir::TimingScope &timing) {
  int64_t budget = options.remat.budget, excess = 0;
  mlir::ModuleOp source = budget ? module.clone() : module;
  for (;;) {
    mlir::PassManager logical(module.getContext()), rest(module.getContext());
    for (mlir::PassManager *passes : {&logical, &rest}) {
      // The borders are verified by passes of their own, and MLIR's rules at
      // the end of each half: between any two passes they would cost a quarter
      // of the time.
      passes->enableVerifier(false);
      passes->enableTiming(timing);
    }
    buildLogicalPipeline(logical, options);
    buildLogicalToScheduledPipeline(rest, options);
    if (failed(logical.run(module))) {
      if (excess)
        module.getContext()->getDiagEngine().emit(
            module.getLoc(), mlir::DiagnosticSeverity::Note)
            << "the budget is " << budget << " bytes; the schedule holds "
            << excess
            << " more than what is counted here, such as units that are "
               "gathered ahead";
      return failure();
    }
    FailureOr<int64_t> chosen = findPeak(module);
    if (failed(chosen) || failed(rest.run(module)) ||
        failed(mlir::verify(module)))
      return failure();
    FailureOr<int64_t> peak = findPeak(module);
    if (failed(peak) || !budget || *peak <= budget)
      return peak;
    excess = *peak - *chosen;
    options.remat.budget.bytes =
        std::max<int64_t>(*chosen - (*peak - budget), 1);
    module = source.clone();
  }
}

/// One line on the terminal, which is written anew.
class ProgressLine {
public:
  explicit ProgressLine(bool isWanted)
      : isShown(isWanted && llvm::sys::Process::StandardErrIsDisplayed()) {}
  ~ProgressLine() {
    if (isShown)
      llvm::errs() << "\r\033[K";
  }
  bool show(const planner::SearchProgress &progress) const {
    if (isShown)
      llvm::errs() << "\r\033[Kfsdp-plan: searching: " << progress.stage << ", "
                   << progress.evaluations << " steps tried"
                   << (progress.time ? ", " + spellTime(progress.time) : "");
    return true;
  }

private:
  bool isShown;
};

/// What is known of a plan at the scheduled level, and not from its file.
struct Scheduled {
  int64_t bytes = 0;                                  ///< Of the peak.
  llvm::StringMap<PlanSummary::Prediction> predicted; ///< By program.
  unsigned recomputed = 0; ///< Operators of the step.
  uint64_t capacity = 0;   ///< As that of the summary.
  std::vector<std::pair<std::string, std::string>> timelines;

  void addTo(PlanSummary &summary) const;
};

void Scheduled::addTo(PlanSummary &summary) const {
  summary.scheduledBytes = bytes;
  summary.recomputed = recomputed;
  summary.capacity = capacity;
  for (PlanSummary::Program &program : summary.programs)
    program.predicted = predicted.lookup(program.name);
}

/// `bytes`: of the peak.
FailureOr<Scheduled> lookAt(mlir::ModuleOp module, int64_t bytes,
                            const CompileRequest &request) {
  auto programs = getPrograms(module);
  if (failed(programs))
    return failure();
  Scheduled facts;
  facts.bytes = bytes;
  const FSDPPipelineOptions &options = request.options;
  // Of a machine that nobody named, nobody knows memory and peak.
  planner::Hardware hardware;
  if (!options.hardware.empty())
    if (auto named = planner::loadHardware(options.hardware, options.whatIf))
      hardware = *named;
  facts.capacity = uint64_t(hardware.capacity);
  for (mlir::func::FuncOp program : *programs) {
    if (!options.hardware.empty() || options.schedule == Preset::List ||
        isPlanned(options))
      facts.predicted[program.getSymName()] = predict(program, hardware);
    if (!request.isTraced)
      continue;
    std::string timeline;
    llvm::raw_string_ostream stream(timeline);
    writeTimeline(program, stream);
    facts.timelines.emplace_back(program.getSymName(), std::move(timeline));
  }
  mlir::func::FuncOp step = programs->front();
  facts.recomputed =
      llvm::count_if(step.getOps<aten::CallOp>(), [](aten::CallOp call) {
        return call.getPhase() == aten::Phase::Recompute;
      });
  return facts;
}

LogicalResult fail(mlir::MLIRContext *context, const llvm::Twine &sentence) {
  return mlir::emitError(mlir::UnknownLoc::get(context)) << sentence;
}

/// From the scheduled level to the plan level.
LogicalResult lower(mlir::ModuleOp module, const FSDPPipelineOptions &options,
                    mlir::TimingScope &timing) {
  mlir::PassManager passes(module.getContext());
  passes.enableVerifier(false);
  passes.enableTiming(timing);
  buildLoweringPipeline(passes, options.device, options.strategy,
                        options.passesAt.plan);
  return success(succeeded(passes.run(module)) &&
                 succeeded(mlir::verify(module)));
}

/// Proves a plan. One that cannot be proved says so from then on, if that is
/// asked for; otherwise it is rejected.
LogicalResult prove(mlir::ModuleOp module, const CompileRequest &request,
                    planfile::PlanFile &file) {
  symbolic::Proof proof = symbolic::verifyPlan(file.plan());
  mlir::MLIRContext *context = module.getContext();
  if (proof.verdict == symbolic::Proof::Refuted)
    return fail(context, request.name + ": " + proof.message);
  if (proof)
    return success();
  if (!request.takesUnproved)
    return fail(context, request.name +
                             ": cannot prove the plan: " + proof.message +
                             "; --unproved writes it all the same");
  auto plan = *module.getOps<plan::ModuleOp>().begin();
  plan.setUnproved(proof.message);
  FailureOr<planfile::PlanFile> marked = exportPlan(plan, request.name);
  if (failed(marked))
    return failure();
  file = std::move(*marked);
  return success();
}

/// Adds the programs that are named beside the model.
LogicalResult importOthers(const CommandLine &line, mlir::ModuleOp module) {
  for (StringRef program : line.programs) {
    auto [name, path] = program.split('=');
    mlir::OwningOpRef<mlir::ModuleOp> other =
        importPT2(path, ImportOptions{line.bind}, module.getContext());
    if (!other || failed(addProgram(module, *other, name)))
      return failure();
  }
  return success();
}

} // namespace

mlir::MLIRContext &fsdp::getContext() {
  static mlir::MLIRContext *context = [] {
    mlir::DialectRegistry registry;
    registerAllDialects(registry);
    registerCostModels(registry);
    auto *made =
        new mlir::MLIRContext(registry, mlir::MLIRContext::Threading::DISABLED);
    made->printOpOnDiagnostic(false); // one sentence, and where
    return made;
  }();
  return *context;
}

mlir::ModuleOp fsdp::importPrograms(const CommandLine &line) {
  mlir::ModuleOp module =
      importPT2(line.input, ImportOptions{line.bind}, &getContext()).release();
  if (!module || failed(importOthers(line, module)))
    return {};
  return module;
}

/// Says in the plan what its programs are predicted to take.
static void setPrediction(mlir::ModuleOp module, const Scheduled &facts) {
  plan::ModuleOp plan = *module.getOps<plan::ModuleOp>().begin();
  for (auto program : plan.getOps<plan::ProgramOp>()) {
    auto found = facts.predicted.find(program.getSymName());
    if (found == facts.predicted.end())
      continue;
    const PlanSummary::Prediction &made = found->second;
    double peak = made.flops > 0 ? 1e9 * made.flops / made.atPeak : 0;
    program.setPredictionAttr(plan::PredictionAttr::get(
        module.getContext(), made.nanoseconds, made.exposed,
        int64_t(std::min(made.flops, 9e18)), std::llround(peak)));
  }
}

/// From the scheduled level to the plan level. `bytes`: of the peak.
static FailureOr<Scheduled> finishPasses(mlir::ModuleOp module, int64_t bytes,
                                         const CompileRequest &request,
                                         mlir::TimingScope &timing) {
  mlir::TimingScope passes = timing.nest("passes");
  FailureOr<Scheduled> facts = lookAt(module, bytes, request);
  if (failed(facts) || failed(lower(module, request.options, passes)))
    return failure();
  return facts;
}

/// From the plan level to a proved plan and what there is to know about it.
static FailureOr<Compilation> finish(mlir::ModuleOp module, Scheduled facts,
                                     const CompileRequest &request,
                                     mlir::TimingScope &timing) {
  const FSDPPipelineOptions &options = request.options;
  mlir::TimingScope exporting = timing.nest("export");
  setPrediction(module, facts);
  FailureOr<planfile::PlanFile> file = exportPlan(module, request.name);
  if (failed(file))
    return failure();
  exporting.stop();

  mlir::TimingScope verifying = timing.nest("verify the plan");
  if (failed(prove(module, request, *file)))
    return failure();
  verifying.stop();

  PlanSummary summary = summarize(file->plan());
  facts.addTo(summary);
  summary.budget = options.budget.bytes;
  if (options.hardware == planner::findKeptHardware(summary.device))
    summary.hardware = options.hardware;
  return Compilation{std::move(*file), std::move(summary),
                     std::move(facts.timelines), ""};
}

namespace {
/// A step by decisions. The model of it is made once. A search knows values;
/// alignment and gaps between buffers come on top. Where a plan exceeds its
/// budget by these, a short search goes on with less, and then with what lies
/// between: how much they are is another matter each time.
class Planner {
public:
  /// `model`: of these options, if there is one.
  Planner(mlir::ModuleOp module, const CompileRequest &request,
          std::optional<BuiltModel> model, mlir::TimingScope &timing)
      : module(module), request(request), options(request.options),
        timing(timing), progress(request.showsProgress),
        given(std::move(model)) {}

  FailureOr<Compilation> run();
  /// It failed since no decisions keep to the budget.
  bool isTooLarge() const { return isInfeasible; }

private:
  /// Decisions, and the plan that they make.
  struct Try {
    planner::SearchAnswer answer;
    int64_t budget = 0; ///< Of the search.
    mlir::OwningOpRef<mlir::ModuleOp> plan;
    Scheduled facts;
    int64_t excess = 0; ///< Of the arena over the budget; 0 without one.
  };
  using Advise = llvm::function_ref<std::string()>;
  FailureOr<planner::SearchAnswer>
  decide(int64_t spare, const planner::SearchOptions &how, Advise advise);
  FailureOr<Try> carryOut(planner::SearchAnswer answer);
  std::optional<planner::SearchAnswer>
  tryWithin(int64_t spare, const planner::Decisions &near);
  LogicalResult searchWithin(Try &best);
  std::string advise();

  mlir::ModuleOp module;
  mlir::OwningOpRef<mlir::ModuleOp> imported; ///< Another option may help.
  const CompileRequest &request;
  const FSDPPipelineOptions &options;
  mlir::TimingScope &timing;
  ProgressLine progress;
  std::optional<BuiltModel> given;
  BuiltModel built;
  planner::SearchOptions search;
  int64_t evaluations = 0; ///< Of all searches.
  bool isInfeasible = false;
};
} // namespace

LogicalResult fsdp::makeLogical(mlir::ModuleOp module,
                                const FSDPPipelineOptions &options,
                                mlir::TimingScope &timing) {
  mlir::PassManager logical(module.getContext());
  logical.enableVerifier(false);
  logical.enableTiming(timing);
  buildLogicalPipeline(logical, options);
  return logical.run(module);
}

FailureOr<BuiltModel> fsdp::makeStepModel(mlir::ModuleOp module,
                                          const FSDPPipelineOptions &options) {
  auto costs = CostModel::load(module, getHardware(options), options.profile,
                               options.whatIf);
  auto programs = getPrograms(module);
  if (failed(costs) || failed(programs))
    return failure();
  return buildStepModel(*programs, *costs);
}

/// What else would help where nothing fits.
std::string Planner::advise() {
  if (!imported)
    return "";
  FSDPPipelineOptions own = options;
  own.budget.bytes = built.model.budget;
  std::string option = findOptionThatFits(*imported, own, timing);
  return option.empty() ? "" : ", or give " + option + ", with which it fits";
}

/// `spare`: bytes of the budget that are left to alignment and gaps.
FailureOr<planner::SearchAnswer>
Planner::decide(int64_t spare, const planner::SearchOptions &how,
                Advise advise) {
  mlir::TimingScope deciding = timing.nest("decide");
  if (options.budget)
    built.model.budget = std::max<int64_t>(options.budget - spare, 1);
  FailureOr<planner::SearchAnswer> answer =
      options.automatic ? searchDecisions(module, built.model, how, advise)
                        : readDecisions(module, built.model, options.decisions);
  isInfeasible = failed(answer) && options.automatic;
  if (failed(answer) && spare)
    module.getContext()->getDiagEngine().emit(module.getLoc(),
                                              mlir::DiagnosticSeverity::Note)
        << "the budget is " << options.budget.bytes << " bytes, of which "
        << spare << " are left for alignment and gaps between buffers";
  if (succeeded(answer))
    evaluations += answer->evaluations;
  return answer;
}

FailureOr<Planner::Try> Planner::carryOut(planner::SearchAnswer answer) {
  Try made;
  made.plan = module.clone();
  auto programs = getPrograms(*made.plan);
  if (failed(programs) ||
      failed(applyDecisions(*programs, built, answer.decisions)))
    return failure();
  mlir::PassManager scheduled(module.getContext());
  scheduled.enableVerifier(false);
  scheduled.enableTiming(timing);
  buildScheduledPipeline(scheduled, options);
  if (failed(scheduled.run(*made.plan)) || failed(mlir::verify(*made.plan)))
    return failure();
  FailureOr<int64_t> bytes = findPeak(*made.plan);
  if (failed(bytes))
    return failure();
  FailureOr<Scheduled> facts =
      finishPasses(*made.plan, *bytes, request, timing);
  if (failed(facts))
    return failure();
  made.facts = std::move(*facts);
  made.answer = std::move(answer);
  made.budget = built.model.budget;
  auto plan = *made.plan->getOps<plan::ModuleOp>().begin();
  if (options.automatic && options.budget)
    made.excess =
        int64_t(getArenaBytes(plan, plan::Space::Device)) - options.budget;
  return made;
}

/// Nothing, and nothing is said, if no decisions keep to what is left.
std::optional<planner::SearchAnswer>
Planner::tryWithin(int64_t spare, const planner::Decisions &near) {
  mlir::ScopedDiagnosticHandler handler(
      module.getContext(), [](mlir::Diagnostic &) { return success(); });
  FailureOr<planner::SearchAnswer> answer = decide(
      spare, planner::makeShort(search, near), [] { return std::string(); });
  isInfeasible = false;
  return succeeded(answer) ? std::optional(std::move(*answer)) : std::nullopt;
}

/// Until a plan fits; then nearer to the budget, as long as that is worth it: a
/// plan is about as fast as what did not fit into the whole budget, at most.
/// Between what is too little for a plan and too much for any decisions, there
/// may be something. What the last plan left is too little for the next: with
/// as much, its decisions would be found again.
LogicalResult Planner::searchWithin(Try &best) {
  constexpr int mostTries = 8, mostBetween = 3;
  const int64_t enoughTime = best.answer.outcome.time / 1000 * 1003;
  int64_t tooLittle = 0, spare = 0;
  std::optional<int64_t> enough, tooMuch;
  auto leaveMore = [&](const Try &tried) {
    tooLittle = options.budget - tried.answer.outcome.peakBytes;
    spare = tooLittle + 2 * tried.excess; // gaps differ
  };
  leaveMore(best);
  auto isFast = [&] {
    return best.excess <= 0 && best.answer.outcome.time <= enoughTime;
  };
  for (int tries = 1, between = 0;
       tries != mostTries && between != mostBetween && !isFast(); ++tries) {
    std::optional<planner::SearchAnswer> answer =
        tryWithin(spare, best.answer.decisions);
    if (!answer) {
      tooMuch = spare;
      spare = (tooLittle + spare) / 2;
      continue;
    }
    // One that is no faster is not carried out: a larger budget may have one.
    bool fits = true;
    if (best.excess > 0 || answer->outcome.time < best.answer.outcome.time) {
      FailureOr<Try> made = carryOut(std::move(*answer));
      if (failed(made))
        return failure();
      fits = made->excess <= 0;
      if (!fits)
        leaveMore(*made);
      if (fits || best.excess > 0)
        best = std::move(*made);
    }
    if (fits)
      enough = spare;
    between += enough.has_value();
    if (auto most = enough ? enough : tooMuch) {
      int64_t nearer = tooLittle + (*most - tooLittle) / 4;
      spare = fits ? nearer : std::min(spare, nearer);
    }
  }
  if (best.excess <= 0 || !tooMuch)
    return success(); // or the arena is too large
  return decide(*tooMuch, planner::makeShort(search, best.answer.decisions),
                [&] { return advise(); });
}

FailureOr<Compilation> Planner::run() {
  if (options.automatic && options.budget)
    imported = module.clone();
  if (failed(makeLogical(module, options, timing)))
    return failure();
  FailureOr<BuiltModel> model =
      given ? std::move(*given) : makeStepModel(module, options);
  if (failed(model))
    return failure();
  built = std::move(*model);
  search = planner::makeSearchOptions(options.evaluations,
                                      options.automatic && options.robust);
  search.progress = [&](const auto &now) { return progress.show(now); };
  FailureOr<planner::SearchAnswer> answer =
      decide(0, search, [&] { return advise(); });
  if (failed(answer))
    return failure();
  const std::optional<planner::Bound> bound = answer->bound;
  FailureOr<Try> best = carryOut(std::move(*answer));
  if (failed(best) || (best->excess > 0 && failed(searchWithin(*best))))
    return failure();
  // What explains it needs no IR.
  built.model.budget = best->budget;
  search.progress = {};
  auto explaining = std::async(std::launch::async, [&] {
    return planner::explain(built.model, best->answer.decisions, search);
  });
  FailureOr<Compilation> made =
      finish(*best->plan, std::move(best->facts), request, timing);
  if (failed(made))
    return failure();
  best->answer.evaluations = evaluations;
  best->answer.bound = bound; // of the whole budget
  made->decisions = planner::write(built.model, best->answer.decisions);
  std::vector<std::string> resident;
  for (auto [unit, isIn] :
       llvm::zip_equal(built.model.units, best->answer.decisions.resident))
    if (isIn)
      resident.push_back(unit.name);
  auto jitter = predictJitter(made->summary);
  planner::Explanation explanation = explaining.get();
  made->summary.search = {std::move(best->answer),
                          std::move(explanation),
                          best->budget,
                          std::move(resident),
                          {},
                          std::move(jitter)};
  return made;
}

/// Nothing of the options is `auto`. `isTooLarge`: it failed since no decisions
/// keep to the budget.
static FailureOr<Compilation> compileDecided(mlir::ModuleOp module,
                                             const CompileRequest &request,
                                             std::optional<BuiltModel> model,
                                             mlir::TimingScope &timing,
                                             bool &isTooLarge) {
  const FSDPPipelineOptions &options = request.options;
  auto make = [&]() -> FailureOr<Compilation> {
    if (isPlanned(options)) {
      Planner planner(module, request, std::move(model), timing);
      FailureOr<Compilation> made = planner.run();
      isTooLarge = planner.isTooLarge();
      return made;
    }
    FailureOr<int64_t> bytes = schedule(module, options, timing);
    if (failed(bytes))
      return failure();
    FailureOr<Scheduled> facts = finishPasses(module, *bytes, request, timing);
    if (failed(facts))
      return failure();
    return finish(module, std::move(*facts), request, timing);
  };
  FailureOr<Compilation> made = make();
  if (failed(made) || !options.budget ||
      made->summary.arenaBytes <= uint64_t(options.budget))
    return made;
  isTooLarge = true;
  return fail(module.getContext(),
              "--budget: the plan needs an arena of " +
                  llvm::Twine(made->summary.arenaBytes) + " bytes, more than " +
                  llvm::Twine(options.budget.bytes) +
                  "; what the schedule holds would fit, alignment and gaps "
                  "between buffers do not");
}

/// A short search knows nothing of alignment and gaps between buffers: where
/// these are too much, the next one may do.
static FailureOr<Compilation> compileFastest(mlir::ModuleOp module,
                                             CompileRequest request,
                                             mlir::TimingScope &timing) {
  FailureOr<VariantSearch> search =
      searchVariants(module, request.options, timing);
  if (failed(search))
    return failure();
  using Diagnostics = std::vector<mlir::Diagnostic>;
  auto say = [&](Diagnostics &diagnostics) {
    for (mlir::Diagnostic &diagnostic : diagnostics)
      module.getContext()->getDiagEngine().emit(std::move(diagnostic));
  };
  Diagnostics first;
  for (VariantSearch::Candidate &candidate : search->candidates) {
    request.options = candidate.options;
    mlir::OwningOpRef<mlir::ModuleOp> copy = module.clone();
    bool isTooLarge = false;
    Diagnostics said;
    FailureOr<Compilation> made = [&] {
      mlir::ScopedDiagnosticHandler handler(
          module.getContext(), [&](mlir::Diagnostic &diagnostic) {
            said.push_back(std::move(diagnostic));
          });
      return compileDecided(*copy, request, std::move(candidate.model), timing,
                            isTooLarge);
    }();
    if (failed(made) && isTooLarge) {
      if (first.empty())
        first = std::move(said);
      continue;
    }
    say(said);
    if (failed(made))
      return failure();
    search->take(candidate.options);
    made->summary.search->choices = std::move(search->choices);
    return made;
  }
  say(first);
  return failure();
}

FailureOr<Compilation> fsdp::compile(mlir::ModuleOp module,
                                     const CompileRequest &request,
                                     mlir::TimingScope &timing) {
  const FSDPPipelineOptions &options = request.options;
  bool isTooLarge = false;
  return options.mesh.isAuto || options.unit.isAuto() ||
                 options.reshardAfterForward.isAuto || options.offload.isAuto ||
                 options.chunkLoss.isAuto
             ? compileFastest(module, request, timing)
             : compileDecided(module, request, {}, timing, isTooLarge);
}
