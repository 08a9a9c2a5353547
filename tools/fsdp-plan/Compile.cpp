//===- Compile.cpp - From imported programs to a proved plan --------------===//

#include "Compile.h"
#include "Mesh.h"
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

/// From the scheduled level to the plan and what there is to know about it.
/// `bytes`: of the peak.
static FailureOr<Compilation> finish(mlir::ModuleOp module, int64_t bytes,
                                     const CompileRequest &request,
                                     mlir::TimingScope &timing) {
  const FSDPPipelineOptions &options = request.options;
  mlir::TimingScope passes = timing.nest("passes");
  FailureOr<Scheduled> facts = lookAt(module, bytes, request);
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
  if (options.hardware == planner::findKeptHardware(summary.device))
    summary.hardware = options.hardware;
  return Compilation{std::move(*file), std::move(summary),
                     std::move(facts->timelines), ""};
}

namespace {
/// A step by decisions. The model of it is made once; where the plan of the
/// first decisions exceeds the budget, others are searched.
class Planner {
public:
  Planner(mlir::ModuleOp module, const CompileRequest &request,
          mlir::TimingScope &timing)
      : module(module), request(request), options(request.options),
        timing(timing), progress(request.showsProgress) {}

  FailureOr<Compilation> run();

private:
  FailureOr<planner::SearchAnswer> decide();
  FailureOr<Compilation> carryOut(const planner::SearchAnswer &answer);

  mlir::ModuleOp module;
  const CompileRequest &request;
  const FSDPPipelineOptions &options;
  mlir::TimingScope &timing;
  ProgressLine progress;
  BuiltModel built;
  planner::SearchOptions search;
};
} // namespace

FailureOr<BuiltModel> fsdp::makeStepModel(mlir::ModuleOp module,
                                          const FSDPPipelineOptions &options,
                                          mlir::TimingScope &timing) {
  mlir::PassManager logical(module.getContext());
  logical.enableVerifier(false);
  logical.enableTiming(timing);
  buildLogicalPipeline(logical, options);
  if (failed(logical.run(module)))
    return failure();
  auto costs = CostModel::load(module, getHardware(options), options.profile,
                               options.whatIf);
  auto programs = getPrograms(module);
  if (failed(costs) || failed(programs))
    return failure();
  return buildStepModel(*programs, *costs);
}

FailureOr<planner::SearchAnswer> Planner::decide() {
  mlir::TimingScope deciding = timing.nest("decide");
  return options.automatic
             ? searchDecisions(module, built.model, search)
             : readDecisions(module, built.model, options.decisions);
}

FailureOr<Compilation> Planner::carryOut(const planner::SearchAnswer &answer) {
  mlir::OwningOpRef<mlir::ModuleOp> copy = module.clone();
  auto programs = getPrograms(*copy);
  if (failed(programs) ||
      failed(applyDecisions(*programs, built, answer.decisions)))
    return failure();
  mlir::PassManager scheduled(module.getContext());
  scheduled.enableVerifier(false);
  scheduled.enableTiming(timing);
  buildScheduledPipeline(scheduled, options);
  if (failed(scheduled.run(*copy)) || failed(mlir::verify(*copy)))
    return failure();
  FailureOr<int64_t> bytes = findPeak(*copy);
  if (failed(bytes))
    return failure();
  return finish(*copy, *bytes, request, timing);
}

FailureOr<Compilation> Planner::run() {
  FailureOr<BuiltModel> made = makeStepModel(module, options, timing);
  if (failed(made))
    return failure();
  built = std::move(*made);
  search = planner::makeSearchOptions(options.evaluations,
                                      options.automatic && options.robust);
  search.progress = [&](const auto &now) { return progress.show(now); };
  // A search knows values; alignment and gaps between them come on top. Where
  // these exceed the budget, it is asked for less, from where it was, and then
  // for what lies between: how much they are is another matter each time.
  constexpr int mostTries = 8, mostBetween = 2;
  struct Try {
    planner::SearchAnswer answer;
    Compilation made;
    int64_t budget, excess;
  };
  std::optional<Try> best;
  int64_t spare = 0, evaluations = 0;
  std::optional<int64_t> tooLittle, enough; // to spare
  for (int tries = 1, between = 0; tries <= mostTries; ++tries) {
    if (options.budget)
      built.model.budget = std::max<int64_t>(options.budget - spare, 1);
    FailureOr<planner::SearchAnswer> answer = decide();
    if (failed(answer) && spare)
      module.getContext()->getDiagEngine().emit(module.getLoc(),
                                                mlir::DiagnosticSeverity::Note)
          << "the budget is " << options.budget.bytes << " bytes, of which "
          << spare << " are left for alignment and gaps between buffers";
    if (failed(answer))
      return failure();
    evaluations += answer->evaluations;
    FailureOr<Compilation> made = carryOut(*answer);
    if (failed(made))
      return failure();
    int64_t excess = options.automatic && options.budget
                         ? int64_t(made->summary.arenaBytes) - options.budget
                         : 0;
    search.starts = {answer->decisions};
    bool fits = excess <= 0;
    if (!best || (fits ? best->excess > 0 ||
                             answer->outcome.time < best->answer.outcome.time
                       : best->excess > 0))
      best = {std::move(*answer), std::move(*made), built.model.budget, excess};
    (fits ? enough : tooLittle) = spare;
    if (fits && (!tooLittle || between == mostBetween))
      break;
    between += enough.has_value();
    spare = enough ? (*tooLittle + *enough) / 2 : spare + excess + excess / 4;
    search.evaluations = options.evaluations / 4;
  }
  built.model.budget = best->budget;
  best->answer.evaluations = evaluations;
  best->made.decisions = planner::write(built.model, best->answer.decisions);
  planner::Explanation explanation =
      planner::explain(built.model, best->answer.decisions, search);
  best->made.summary.search = {
      std::move(best->answer), std::move(explanation), best->budget, {}};
  return std::move(best->made);
}

FailureOr<Compilation> fsdp::compile(mlir::ModuleOp module,
                                     const CompileRequest &request,
                                     mlir::TimingScope &timing) {
  const FSDPPipelineOptions &options = request.options;
  if (options.mesh.isAuto) {
    FailureOr<MeshSearch> search = searchMesh(module, options, timing);
    if (failed(search))
      return failure();
    CompileRequest decided = request;
    decided.options = search->options;
    FailureOr<Compilation> made = compile(module, decided, timing);
    if (succeeded(made))
      made->summary.search->meshes = std::move(search->points);
    return made;
  }
  auto make = [&]() -> FailureOr<Compilation> {
    if (isPlanned(options))
      return Planner(module, request, timing).run();
    FailureOr<int64_t> bytes = schedule(module, options, timing);
    if (failed(bytes))
      return failure();
    return finish(module, *bytes, request, timing);
  };
  FailureOr<Compilation> made = make();
  if (succeeded(made) && options.budget &&
      made->summary.arenaBytes > uint64_t(options.budget))
    return fail(module.getContext(),
                "--budget: the plan needs an arena of " +
                    llvm::Twine(made->summary.arenaBytes) +
                    " bytes, more than " + llvm::Twine(options.budget.bytes) +
                    "; what the schedule holds would fit, alignment and gaps "
                    "between buffers do not");
  return made;
}
