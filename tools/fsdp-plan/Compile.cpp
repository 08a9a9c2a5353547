//===- Compile.cpp - From imported programs to a proved plan --------------===//

#include "Compile.h"
#include "Prediction.h"
#include "Trace.h"

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

PlanSummary::Search summarizeSearch(const AutoAnswer &answer) {
  PlanSummary::Search search;
  search.evaluations = answer.evaluations;
  search.nanoseconds = answer.outcome.time;
  if (answer.bound) {
    search.bound = answer.bound->time;
    search.boundBy = answer.bound->name;
  }
  if (answer.price) {
    search.moreBytes = answer.price->more;
    search.moreNanoseconds = answer.price->time;
  }
  for (const AutoAnswer::Scenario &scenario : answer.scenarios)
    search.scenarios.emplace_back(scenario.name, scenario.time);
  for (const AutoAnswer::Baseline &other : answer.baselines)
    search.others.push_back(
        {other.name, other.outcome.time, other.outcome.peakBytes});
  return search;
}

/// What one try at a budget tells the next one.
struct Tried {
  int64_t spare = 0; ///< Bytes of it that are left for alignment and gaps.
  std::vector<planner::Decisions> decisions; ///< What was found last.
};

/// From the imported model to the scheduled level, by decisions. Returns the
/// bytes of the peak.
FailureOr<int64_t> decideAbout(mlir::ModuleOp module,
                               const CompileRequest &request, Tried &tried,
                               mlir::TimingScope &timing,
                               std::optional<PlanSummary::Search> &search) {
  const FSDPPipelineOptions &options = request.options;
  mlir::PassManager logical(module.getContext()), rest(module.getContext());
  for (mlir::PassManager *passes : {&logical, &rest}) {
    passes->enableVerifier(false);
    passes->enableTiming(timing);
  }
  buildLogicalPipeline(logical, options);
  buildScheduledPipeline(rest, options);
  if (failed(logical.run(module)))
    return failure();
  auto costs = CostModel::load(module, getHardware(options), options.profile,
                               options.whatIf);
  if (failed(costs))
    return failure();
  ProgressLine line(request.showsProgress);
  AutoSettings settings;
  settings.searches = options.automatic;
  settings.file = options.decisions;
  // From decisions that nearly fit, the others are not far.
  settings.evaluations =
      tried.decisions.empty() ? options.evaluations : options.evaluations / 4;
  settings.starts = tried.decisions;
  settings.findsPrice = true;
  settings.progress = [&](const auto &now) { return line.show(now); };
  if (options.budget)
    settings.budget = std::max<int64_t>(options.budget - tried.spare, 1);
  mlir::TimingScope deciding = timing.nest("decide");
  FailureOr<AutoAnswer> answer = decide(module, *costs, settings);
  deciding.stop();
  if (failed(answer) || failed(rest.run(module)) ||
      failed(mlir::verify(module)))
    return failure();
  search = summarizeSearch(*answer);
  search->budget = settings.budget;
  tried.decisions = {std::move(answer->decisions)};
  return findPeak(module);
}

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
  for (mlir::func::FuncOp program : *programs) {
    if (!options.hardware.empty() || options.schedule == Preset::List ||
        isPlanned(options))
      facts.predicted[program.getSymName()] = predict(program);
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
  if (!options.hardware.empty())
    if (auto hardware = planner::loadHardware(options.hardware, options.whatIf))
      facts.capacity = uint64_t(hardware->capacity);
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
  buildLoweringPipeline(passes, options.device, options.strategy);
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

static FailureOr<Compilation> compileOnce(mlir::ModuleOp module,
                                          const CompileRequest &request,
                                          Tried &tried,
                                          mlir::TimingScope &timing) {
  const FSDPPipelineOptions &options = request.options;
  mlir::TimingScope passes = timing.nest("passes");
  std::optional<PlanSummary::Search> search;
  FailureOr<int64_t> bytes =
      isPlanned(options) ? decideAbout(module, request, tried, passes, search)
                         : schedule(module, options, passes);
  if (failed(bytes))
    return failure();
  FailureOr<Scheduled> facts = lookAt(module, *bytes, request);
  if (failed(facts) || failed(lower(module, options, passes)))
    return failure();
  passes.stop();

  mlir::TimingScope exporting = timing.nest("export");
  FailureOr<planfile::PlanFile> file = exportPlan(module, request.name);
  if (failed(file))
    return failure();
  exporting.stop();

  mlir::TimingScope verifying = timing.nest("verify the plan");
  if (failed(prove(module, request, *file)))
    return failure();
  verifying.stop();

  PlanSummary summary = summarize(file->plan());
  facts->addTo(summary);
  summary.budget = options.budget.bytes;
  summary.search = std::move(search);
  return Compilation{std::move(*file), std::move(summary),
                     std::move(facts->timelines)};
}

FailureOr<Compilation> fsdp::compile(mlir::ModuleOp module,
                                     const CompileRequest &request,
                                     mlir::TimingScope &timing) {
  const FSDPPipelineOptions &options = request.options;
  // A search knows values; alignment and gaps between them come on top. Where
  // these exceed the budget, it is asked for less.
  constexpr int mostTries = 8;
  Tried tried;
  for (int tries = options.automatic && options.budget ? mostTries : 1;;) {
    mlir::OwningOpRef<mlir::ModuleOp> copy;
    if (--tries)
      copy = module.clone();
    FailureOr<Compilation> made =
        compileOnce(copy ? *copy : module, request, tried, timing);
    if (failed(made) && tried.spare)
      module.getContext()->getDiagEngine().emit(module.getLoc(),
                                                mlir::DiagnosticSeverity::Note)
          << "the budget is " << options.budget.bytes << " bytes, of which "
          << tried.spare << " are left for alignment and gaps between buffers";
    if (failed(made) || !options.budget ||
        made->summary.arenaBytes <= uint64_t(options.budget))
      return made;
    if (!tries)
      return fail(module.getContext(),
                  "--budget: the plan needs an arena of " +
                      llvm::Twine(made->summary.arenaBytes) +
                      " bytes, more than " + llvm::Twine(options.budget.bytes) +
                      "; what the schedule holds would fit, alignment and "
                      "gaps between buffers do not");
    int64_t excess = int64_t(made->summary.arenaBytes) - options.budget;
    tried.spare += excess + excess / 4;
  }
}
