//===- TrainingRun.cpp - A training from its options to its end -----------===//

#include "fsdp/Runtime/Training/TrainingRun.h"

#include "Digests.h"
#include "Export.h"
#include "FlightRecord.h"
#include "GatherSpans.h"
#include "LearningRates.h"
#include "Summon.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Checkpoints/InitialValues.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"
#include "fsdp/Runtime/Processes/Agreement.h"
#include "fsdp/Runtime/Tracing/Trace.h"
#include "fsdp/Symbolic/VerifyPlan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <tuple>
#include <unistd.h>

using namespace fsdp;

/// What no update of the plan reads would be ignored.
static void checkHyperParameters(const TrainingOptions &options,
                                 const planfile::PlanFile &plan) {
  bool hasAdamW = false, hasMomentum = false;
  for (const planfile::Program *program : *plan->programs())
    for (const planfile::Command *command : *program->commands())
      if (const planfile::Update *update = command->step_as_Update()) {
        bool isAdamW = update->rule() == planfile::UpdateRule::AdamW;
        hasAdamW |= isAdamW;
        hasMomentum |= !isAdamW && update->states()->size() != 0;
      }
  for (auto [name, isRead, what] :
       {std::tuple("--beta1", hasAdamW, "AdamW"),
        std::tuple("--beta2", hasAdamW, "AdamW"),
        std::tuple("--eps", hasAdamW, "AdamW"),
        std::tuple("--momentum",
                   hasMomentum || options.hyperParameters.momentum == 0,
                   "SGD and a momentum buffer")})
    if (!isRead && options.given.contains(name))
      throw Error(plan.name() + ": expected a plan with " + what + " for " +
                  name + ", found one without");
}

/// Opens the plans and compares them with what the command line says, and with
/// each other.
static planfile::PlanFile openPlan(const TrainingOptions &options,
                                   const Processes &processes,
                                   unsigned &ranks) {
  std::vector<planfile::PlanFile> plans;
  for (const std::string &path : options.plans) {
    auto plan = planfile::PlanFile::open(path);
    if (!plan)
      throw Error(plan.error().message);
    plans.push_back(std::move(*plan));
  }
  const planfile::PlanFile &plan = plans.front();
  ranks = planfile::getRankCount(plan.plan());
  if (options.ranks && *options.ranks != ranks)
    throw Error(plan.name() + ": expected a plan for " +
                std::to_string(*options.ranks) + " ranks, found one for " +
                std::to_string(ranks));
  if (processes.backend() && processes.size() != ranks)
    throw Error(plan.name() + ": expected a process for each of its " +
                std::to_string(ranks) + " ranks, found " +
                std::to_string(processes.size()) +
                (options.backend == "mpi"
                     ? "; start it with mpirun -n " + std::to_string(ranks)
                     : "; start it with torchrun --nproc-per-node " +
                           std::to_string(ranks) + " --no-python"));
  if (plans.size() != 1 && plans.size() != ranks)
    throw Error("expected one plan, or one for each of " +
                std::to_string(ranks) + " ranks; found " +
                std::to_string(plans.size()));
  checkAgreement(plans);
  std::string device = plan->device()->str();
  if (!options.device.empty() && options.device != device)
    throw Error(plan.name() + ": expected a plan for " + options.device +
                ", found one for " + device);
  if (processes.backend())
    if (std::string other =
            c10::DeviceTypeName(processes.backend()->deviceType(), true);
        device != other)
      throw Error(plan.name() + ": expected a plan for " + other +
                  " with --backend " + options.backend + ", found one for " +
                  device);
  if (options.overlap && device != "cpu")
    throw Error(plan.name() +
                ": expected a plan for cpu with --overlap, "
                "found one for " +
                device);
  checkHyperParameters(options, plan);
  for (const std::string &program : getStepPrograms(plan, options.program))
    getLossType(plan, program);
  if (!options.evalData.empty())
    getLossType(plan, evalProgram);
  if (plan->unproved())
    processes.note(plan.name() + ": not proved to do what its model means: " +
                   plan->unproved()->str());
  if (options.verify && processes.isFirst()) // All have the same one.
    if (symbolic::Proof proof = symbolic::verifyPlan(plan.plan()); !proof)
      throw Error(plan.name() + ": " +
                      (proof.verdict == symbolic::Proof::CannotProve
                           ? "cannot prove the plan: "
                           : "") +
                      proof.message,
                  Failure::CheckFailed);
  return std::move(plans.front());
}

/// Before a long training, not after it.
static void checkFiles(const TrainingOptions &options, bool writes) {
  std::vector<archive::NamedPath> outputs, inputs;
  auto add = [](std::vector<archive::NamedPath> &files, const char *option,
                const std::string &path) {
    if (!path.empty())
      files.push_back({option, path});
  };
  for (const std::string &plan : options.plans)
    add(inputs, "the plan", plan);
  for (const std::string &library : options.libraries)
    add(inputs, "--load", library);
  std::error_code ignored;
  if (std::filesystem::is_directory(options.weights, ignored))
    for (const auto &file :
         std::filesystem::directory_iterator(options.weights, ignored))
      add(inputs, "--weights", file.path().string());
  else
    add(inputs, "--weights", options.weights);
  for (const std::string &file : listDataFiles(options.data))
    add(inputs, "--data", file);
  add(inputs, "--reference", options.reference);
  for (const std::string &file : listDataFiles(options.evalData))
    add(inputs, "--eval-data", file);
  if (!isNamedSchedule(options.lrSchedule))
    add(inputs, "--lr-schedule", options.lrSchedule);
  if (writes) {
    add(outputs, "--trace", options.trace);
    add(outputs, "--profile", options.profile);
    add(outputs, "--summon", options.summon);
    if (options.exported.ends_with(".safetensors"))
      add(outputs, "--export", options.exported);
  }
  if (auto error = archive::checkOutputs(outputs, inputs))
    throw Error(error->message);
}

/// The loss of an evaluation is the mean over all batches: no rank may be left
/// without one.
static Data openEvalData(const planfile::PlanFile &plan,
                         const TrainingOptions &options,
                         const Processes &processes, unsigned ranks) {
  Data data =
      Data::open(options.evalData, plan,
                 {.program = evalProgram, .tokenBits = options.tokenBits});
  if (data.batches() == 0 || data.batches() % ranks != 0)
    throw Error(options.evalData + ": expected a multiple of " +
                std::to_string(ranks) + " batches, one for each rank, found " +
                std::to_string(data.batches()));
  if (data.leftOver() != 0)
    processes.note("note: --eval-data " + options.evalData + ": the last " +
                   std::to_string(data.leftOver()) +
                   " sequences make no whole batch, and are not evaluated");
  return data;
}

static SessionOptions makeSessionOptions(const planfile::PlanFile &plan,
                                         const TrainingOptions &options,
                                         const Processes &processes,
                                         unsigned ranks) {
  SessionOptions result;
  result.backend = processes.backend();
  result.store = processes.store();
  result.lifeline = processes.getLifeline();
  result.processes = processes.onThisMachine();
  result.overlap = options.overlap;
  result.canary = options.json;
  result.chaosSeed = options.chaosSeed;
  result.trustedOperators = options.trusted;
  result.timeout = options.getTimeout();
  result.timed = !options.trace.empty() || !options.profile.empty();
  for (const std::string &library : options.libraries)
    for (std::string &name : loadOperators(library.c_str()))
      result.trustedOperators.push_back(std::move(name));
  // What needs CUDA is a library of its own.
  if (plan->device()->string_view() == "cuda" && !result.backend)
    result.backend =
        loadBackend(findLibrary("libfsdp_cuda.so").c_str(), {.ranks = ranks});
  return result;
}

namespace {

/// Where the parameters and the model buffers of a plan begin.
class Start {
public:
  /// All that can be rejected is, before anything is loaded.
  Start(const planfile::PlanFile &plan, const TrainingOptions &options,
        const Processes &processes, std::uint64_t seed);

  void load(Session &session) const;
  /// Of the weights, by those of the plan.
  std::map<std::string, std::string> names() const;

private:
  Weights weights;
  std::optional<InitialValues> init;
  std::vector<Weights::Match> matches;
  std::vector<std::string> made; ///< By `init`.
  std::uint64_t seed;
};

Start::Start(const planfile::PlanFile &plan, const TrainingOptions &options,
             const Processes &processes, std::uint64_t seed)
    : weights(options.weights.empty()
                  ? Weights::none("--init " + options.init)
                  : Weights::open(options.weights, options.renames)),
      seed(seed) {
  if (options.init == fromModule && !weights.isFromModule())
    throw Error(options.weights +
                ": expected initial values, which Python's "
                "fsdp_mlir.initialize writes, found a file of others; leave "
                "out --init from-module");
  try {
    if (!options.init.empty() && options.init != fromModule)
      init = InitialValues::parse(options.init);
  } catch (const Error &error) {
    throw Error(std::string("--init: ") + error.what());
  }
  std::vector<std::string> unused;
  matches = weights.match(plan, init ? &made : nullptr, &unused);
  if (init && made.empty())
    throw Error("--init " + options.init + ": expected a parameter that " +
                options.weights +
                " lacks, found none; leave out one of the two");
  if (std::string text = weights.describeUnused(unused); !text.empty())
    processes.note("note: " + text);
  if (std::string text = weights.describeRounding(matches); !text.empty())
    processes.note("note: " + text);
  if (init && !options.weights.empty())
    processes.note(
        "note: " + options.weights + ": " + std::to_string(made.size()) +
        " parameters are not in it and begin as --init " + options.init);
}

std::map<std::string, std::string> Start::names() const {
  std::map<std::string, std::string> names;
  for (const Weights::Match &match : matches)
    names.emplace(match.name, match.source);
  return names;
}

void Start::load(Session &session) const {
  weights.load(matches, session);
  for (const std::string &parameter : made)
    init->set(session, parameter, seed);
}

} // namespace

struct TrainingRun::Impl {
  Impl(const TrainingOptions &given, Processes &processes);

  std::vector<Fact> facts() const;
  int execute(RunListener &listener);
  std::vector<Fact> trainingFacts() const;
  void noteChanges(
      const std::vector<std::pair<std::string, std::string>> &before) const;
  archive::TrainingState begin(Session &session);
  void resumeOptions();

  TrainingOptions options; ///< Those that are not given are the checkpoint's.
  Processes &processes;
  Resident before = measureResident();
  unsigned ranks = 0;
  planfile::PlanFile plan;
  std::optional<Reference> reference;
  std::optional<Data> data, evalData;
  CheckpointFolder checkpoints;
  LearningRates rates;
  Summon summon;
  std::optional<Start> start; ///< Unless the training goes on.
  std::optional<Export> exported;
};

TrainingRun::Impl::Impl(const TrainingOptions &given, Processes &processes)
    : options(given), processes(processes),
      plan((checkFiles(options, processes.isFirst()),
            openPlan(options, processes, ranks))),
      checkpoints(plan, options, processes),
      rates(plan, (resumeOptions(), options)),
      summon(plan, options, processes.isFirst()) {
  if (!options.reference.empty())
    reference = Reference::open(options.reference, plan, options.program);
  else
    data =
        Data::open(options.data, plan,
                   {options.program, options.tokenBits, options.shuffleSeed});
  if (!options.evalData.empty())
    evalData = openEvalData(plan, options, processes, ranks);
  Seeds seeds = reference ? reference->seeds() : options.seeds;
  const archive::TrainingState *resumed = checkpoints.resumed();
  if (resumed && resumed->step > options.steps)
    throw Error("--steps: expected at least the " +
                std::to_string(resumed->step) + " of the checkpoint, found " +
                std::to_string(options.steps));
  if (resumed && resumed->step == options.steps && options.withGrads)
    throw Error("--with-grads: expected a step to train after that of the "
                "checkpoint, found --steps " +
                std::to_string(options.steps));
  if (!resumed)
    start.emplace(plan, options, processes, seeds.first);
  exported.emplace(plan, options, resumed ? resumed->names : start->names(),
                   processes.isFirst());
}

void TrainingRun::Impl::resumeOptions() {
  if (options.resume.empty())
    return;
  const archive::TrainingState *resumed = checkpoints.resumed();
  resumeHyperParameters(resumed ? resumed->facts : TrainingFacts(), options);
}

namespace {
/// Facts in the making.
struct Facts {
  std::vector<Fact> all;

  void addText(const char *name, std::string value) {
    all.push_back({name, std::move(value)});
  }
  void addFile(const char *name, const std::string &path) {
    addText(name, path.empty() ? "none" : "with digest " + digestFile(path));
  }
  void add(const char *name, auto value) {
    addText(name, std::to_string(value));
  }
};
} // namespace

/// What changes the numbers of a training that goes on.
std::vector<Fact> TrainingRun::Impl::trainingFacts() const {
  Facts facts;
  facts.addFile("a plan", options.plans.front());
  facts.add("batches of data:", data ? data->batches() : 0);
  facts.add("--token-bits", options.tokenBits.value_or(16));
  facts.addText("--shuffle", options.shuffleSeed
                                 ? std::to_string(*options.shuffleSeed)
                                 : "none");
  facts.addText("--program", options.program);
  for (auto &[name, value] : spellHyperParameters(options))
    facts.addText(name.c_str(), std::move(value));
  facts.add("--seed", options.seeds.first);
  facts.add("a shared seed:", options.seeds.areShared);
  return std::move(facts.all);
}

/// What changes the training, or what all processes do together. Paths may
/// differ.
std::vector<Fact> TrainingRun::Impl::facts() const {
  Facts facts{{{"version", FSDP_VERSION}}};
  for (Fact &fact : trainingFacts())
    facts.all.push_back(std::move(fact));
  // What is in a file is compared where it is another one.
  std::error_code ignored;
  bool isFolder = std::filesystem::is_directory(options.weights, ignored);
  facts.addText("weights", isFolder ? "with tables of digest " +
                                          digestTables(options.weights)
                           : options.weights.empty() ? "none"
                                                     : "in one file");
  std::string renames;
  for (const std::string &rename : options.renames)
    renames += (renames.empty() ? "" : " ") + archive::quoteJSON(rename);
  facts.addText("--rename", renames.empty() ? "none" : renames);
  facts.addText("--init", options.init);
  facts.addFile("a reference", options.reference);
  facts.add("batches to evaluate:", evalData ? evalData->batches() : 0);
  facts.add("--eval-every", options.evalEvery);
  facts.add("--summon:", !options.summon.empty());
  facts.addText("--summon-only", options.summonOnly);
  facts.add("--with-grads:", options.withGrads);
  facts.add("--export:", !options.exported.empty());
  facts.add("--max-shard-size", options.maxShardSize);
  facts.add("--json:", options.json);
  facts.add("--trace:", !options.trace.empty());
  facts.add("--profile:", !options.profile.empty());
  facts.add("--tensorboard:", !options.tensorBoard.empty());
  facts.add("--checkpoint:", checkpoints.areWanted());
  facts.add("--every", options.every);
  facts.add("--keep", options.keep);
  facts.addText("a checkpoint", checkpoints.resumedName());
  return std::move(facts.all);
}

/// Earlier versions left out what is "none", and spelled 0.1 with 17 digits.
/// Whole numbers are their text: a double has not all of a seed.
static bool isSame(const std::string &before, const std::string &now) {
  auto read = [](const std::string &text) {
    double number = std::nan("");
    const char *end = text.data() + text.size();
    bool isNumber = text.find_first_of(".e") != std::string::npos &&
                    std::from_chars(text.data(), end, number).ptr == end;
    return isNumber ? number : std::nan("");
  };
  return before == now || (before.empty() && now == "none") ||
         read(before) == read(now);
}

/// A training may go on in another way, on purpose or not.
void TrainingRun::Impl::noteChanges(
    const std::vector<std::pair<std::string, std::string>> &before) const {
  std::map<std::string, std::string> told(before.begin(), before.end());
  for (const Fact &fact : trainingFacts())
    if (auto it = told.find(fact.name);
        it != told.end() && !isSame(it->second, fact.value))
      processes.note("note: --resume: the training goes on with " + fact.name +
                     " " + fact.value + ", it was " + it->second);
}

/// Where a training begins, in the session and in what a checkpoint says.
archive::TrainingState TrainingRun::Impl::begin(Session &session) {
  archive::TrainingState state;
  if (!reference)
    session.setSeeds(options.seeds);
  if (start) {
    for (const auto &[name, source] : start->names())
      if (name != source)
        state.names.emplace(name, source);
    start->load(session);
    start.reset();
  } else {
    checkpoints.load(session);
    state = *checkpoints.resumed();
    data->seek(state.position);
    processes.note("resuming from " + checkpoints.resumedPath() +
                   " (next: step " + std::to_string(state.step + 1) + ")");
    noteChanges(state.facts);
  }
  state.ranks = ranks;
  state.mesh = spellMesh(plan);
  state.facts.clear();
  if (checkpoints.areWanted())
    for (Fact &fact : trainingFacts())
      state.facts.emplace_back(std::move(fact.name), std::move(fact.value));
  checkpoints.prepare(session);
  return state;
}

int TrainingRun::Impl::execute(RunListener &listener) {
  Session session(plan.plan(), processes.ranks(ranks),
                  makeSessionOptions(plan, options, processes, ranks));
  auto recorder =
      processes.record([&] { return recordFlights(plan, session); });
  auto log =
      std::make_shared<RankLog>(options.log, processes.ranks(ranks).first);
  processes.setLog(log);
  archive::JSONWriter begun;
  begun.object([&] {
    begun.attribute("process", ::getpid());
    begun.attribute("ranks", ranks);
  });
  log->write(begun.take());
  archive::TrainingState state = begin(session);
  int code = 0;
  if (reference) {
    Comparison comparison = reference->run(session, options.tolerance);
    listener.tell(comparison);
    code = comparison.passed() ? 0 : static_cast<int>(Failure::CheckFailed);
  } else {
    Training training{
        plan,   options,     processes,        rates,   before, *data, evalData,
        summon, checkpoints, std::move(state), session, *log};
    std::unique_ptr<TrainingObserver> observer = listener.watch(training);
    code = train(std::move(training), *observer);
  }
  if (code == 0)
    exported->write(session);
  std::vector<Span> spans;
  if (!options.trace.empty() || !options.profile.empty())
    spans = gatherSpans(plan.plan(), processes, session.spans());
  // One that can't be written does not take the other with it.
  auto write = [&](const std::string &path, auto writer) {
    try {
      if (!path.empty() && processes.isFirst())
        writer(path, plan, spans);
    } catch (const Error &error) {
      processes.sayError(error.what());
      code = error.exitCode();
    }
  };
  write(options.trace, writeTrace);
  write(options.profile, [&](const auto &...arguments) {
    writeProfile(arguments..., getStepPrograms(plan, options.program).back());
  });
  return code;
}

TrainingRun::TrainingRun(const TrainingOptions &options, Processes &processes)
    : impl(std::make_unique<Impl>(options, processes)) {}
TrainingRun::~TrainingRun() = default;

int TrainingRun::execute(RunListener &listener) {
  return impl->execute(listener);
}

int TrainingRun::run(
    Processes &processes,
    const std::function<std::optional<TrainingOptions>()> &readOptions,
    const std::function<std::unique_ptr<RunListener>(const TrainingOptions &)>
        &makeListener) {
  std::optional<TrainingOptions> options;
  std::optional<TrainingRun> run;
  std::unique_ptr<RunListener> listener;
  processes.agree([&]() -> Processes::Given {
    options = readOptions();
    if (!options)
      return {};
    processes.setTimeout(options->getTimeout());
    run.emplace(*options, processes);
    listener = makeListener(*options);
    if (processes.size() == 1)
      return {};
    return {run->impl->facts(), identifyFiles(options->weights)};
  });
  processes.compareFiles("weights",
                         [&] { return digestContents(options->weights); });
  int code = run ? run->execute(*listener) : 0;
  listener.reset();
  run.reset();
  return processes.finish(code);
}
