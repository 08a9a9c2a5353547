//===- fsdp-run.cpp - Runs a plan -----------------------------------------===//

#include "Options.h"
#include "Training.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Agreement.h"
#include "fsdp/Runtime/InitialValues.h"
#include "fsdp/Runtime/Reference.h"
#include "fsdp/Runtime/Trace.h"
#include "fsdp/Runtime/Weights.h"
#include "fsdp/Symbolic/VerifyPlan.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>

using namespace fsdp;

static void checkLoss(const planfile::PlanFile &plan,
                      const std::string &program) {
  std::uint32_t owner = findProgram(plan, program);
  for (const planfile::Buffer *buffer : *plan->buffers())
    if (buffer->role() == planfile::BufferRole::Loss &&
        buffer->owner() == owner)
      return;
  throw Error(plan.name() + ": expected a loss in program " + program +
              ", found none");
}

/// Opens the plans and compares them with what the command line says, and with
/// each other.
static planfile::PlanFile openPlan(const Options &options, unsigned &ranks) {
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
  if (plans.size() != 1 && plans.size() != ranks)
    throw Error("expected one plan, or one for each of " +
                std::to_string(ranks) + " ranks; found " +
                std::to_string(plans.size()));
  checkAgreement(plans);
  std::string device = plan->device()->str();
  if (!options.device.empty() && options.device != device)
    throw Error(plan.name() + ": expected a plan for " + options.device +
                ", found one for " + device);
  for (auto [name, isGiven] :
       {std::pair("--overlap", options.overlap),
        std::pair("--trace", !options.trace.empty()),
        std::pair("--profile", !options.profile.empty())})
    if (isGiven && device != "cpu")
      throw Error(plan.name() + ": expected a plan for cpu with " +
                  std::string(name) + ", found one for " + device);
  for (const std::string &program : getStepPrograms(plan, options.program))
    checkLoss(plan, program);
  if (!options.evalData.empty())
    checkLoss(plan, evalProgram);
  if (plan->unproved())
    std::fprintf(stderr, "%s: not proved to do what its model means: %s\n",
                 plan.name().c_str(), plan->unproved()->c_str());
  if (options.verify)
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
static void checkFiles(const Options &options) {
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
  add(inputs, "--weights", options.weights);
  add(inputs, "--data", options.data);
  add(inputs, "--reference", options.reference);
  add(inputs, "--eval-data", options.evalData);
  if (!LearningRates::isNamed(options.lrSchedule))
    add(inputs, "--lr-schedule", options.lrSchedule);
  add(outputs, "--trace", options.trace);
  add(outputs, "--profile", options.profile);
  add(outputs, "--summon", options.summon);
  if (auto error = archive::checkOutputs(outputs, inputs))
    throw Error(error->message);
}

static int sayError(const std::string &sentence, int code) {
  std::fprintf(stderr, "error: %s\n", archive::escape(sentence).c_str());
  return code;
}

/// The loss of an evaluation is the mean over all batches: no rank may be left
/// without one.
static Data openEvalData(const planfile::PlanFile &plan, const Options &options,
                         unsigned ranks) {
  Data data =
      Data::open(options.evalData, plan, options.tokenBits, evalProgram);
  if (data.batches() == 0 || data.batches() % ranks != 0)
    throw Error(options.evalData + ": expected a multiple of " +
                std::to_string(ranks) + " batches, one for each rank, found " +
                std::to_string(data.batches()));
  return data;
}

static SessionOptions makeSessionOptions(const planfile::PlanFile &plan,
                                         const Options &options,
                                         unsigned ranks) {
  SessionOptions result;
  result.overlap = options.overlap;
  result.canary = options.json;
  result.chaosSeed = options.chaosSeed;
  result.trustedOperators = options.trusted;
  result.timeout = std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(options.timeout));
  result.timed = !options.trace.empty() || !options.profile.empty();
  for (const std::string &library : options.libraries)
    for (std::string &name : loadOperators(library.c_str()))
      result.trustedOperators.push_back(std::move(name));
  // What needs CUDA is a library of its own, beside this program.
  if (plan->device()->string_view() == "cuda") {
    std::filesystem::path program =
        std::filesystem::read_symlink("/proc/self/exe");
    std::filesystem::path library =
        program.parent_path().parent_path() / "lib" / "libfsdp_cuda.so";
    result.backend = loadBackend(library.c_str(), ranks);
  }
  return result;
}

/// Returns the exit code.
static int compare(const Options &options, const Reference &reference,
                   Session &session) {
  Comparison comparison = reference.run(session, options.tolerance);
  if (options.json) {
    const Comparison::Tensor &worst = comparison.worstTensor();
    std::printf("{\"compared\": %zu, \"worst\": %s, \"difference\": %g, "
                "\"allowed\": %g, \"passed\": %s, \"differences\": {",
                comparison.compared().size(),
                archive::quoteJSON(worst.name).c_str(),
                std::min(worst.difference, 1e300), worst.allowed,
                comparison.passed() ? "true" : "false");
    const char *separator = "";
    for (const Comparison::Tensor &tensor : comparison.compared()) {
      std::printf("%s%s: %g", separator,
                  archive::quoteJSON(tensor.name).c_str(),
                  std::min(tensor.difference, 1e300));
      separator = ", ";
    }
    std::printf("}}\n");
  } else
    std::printf("%s\n", archive::escape(comparison.summary()).c_str());
  flushOutput();
  constexpr std::size_t most = 5;
  std::vector<std::string> problems = comparison.problems();
  for (std::size_t i = 0; i != problems.size() && i != most; ++i)
    sayError(options.reference + ": " + problems[i], 2);
  if (problems.size() > most)
    sayError(options.reference + ": and " +
                 std::to_string(problems.size() - most) + " more like these",
             2);
  return comparison.passed() ? 0 : static_cast<int>(Failure::CheckFailed);
}

namespace {

/// Where the parameters and the model buffers of a plan begin.
class Start {
public:
  /// All that can be rejected is, before anything is loaded.
  Start(const planfile::PlanFile &plan, const Options &options,
        std::uint64_t seed);

  void load(Session &session) const;

private:
  Weights weights;
  std::optional<InitialValues> init;
  std::vector<Weights::Match> matches;
  std::vector<std::string> made; ///< By `init`.
  std::uint64_t seed;
};

Start::Start(const planfile::PlanFile &plan, const Options &options,
             std::uint64_t seed)
    : weights(options.weights.empty() ? Weights::none("--init " + options.init)
                                      : Weights::open(options.weights)),
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
  matches = weights.match(plan, init ? &made : nullptr);
  if (init && made.empty())
    throw Error("--init " + options.init + ": expected a parameter that " +
                options.weights +
                " lacks, found none; leave out one of the two");
  auto note = [](const std::string &text) {
    if (!text.empty())
      std::fprintf(stderr, "note: %s\n", archive::escape(text).c_str());
  };
  note(weights.describeRounding(matches));
  if (init && !options.weights.empty())
    note(options.weights + ": " + std::to_string(made.size()) +
         " parameters are not in it and begin as --init " + options.init);
}

void Start::load(Session &session) const {
  weights.load(matches, session);
  for (const std::string &parameter : made)
    init->set(session, parameter, seed);
}

} // namespace

static int run(const Options &options) {
  Resident before = measureResident();
  checkFiles(options);
  unsigned ranks = 0;
  planfile::PlanFile plan = openPlan(options, ranks);

  // All that can be rejected is looked at before anything is loaded.
  std::optional<Reference> reference;
  std::optional<Data> data, evalData;
  LearningRates rates(options);
  (void)scaleGroups(plan, options.lrScales);
  if (!options.reference.empty())
    reference = Reference::open(options.reference, plan, options.program);
  else
    data = Data::open(options.data, plan, options.tokenBits, options.program);
  if (!options.evalData.empty())
    evalData = openEvalData(plan, options, ranks);
  Summon summon(plan, options);
  Seeds seeds = reference ? reference->seeds() : options.seeds;
  std::optional<Start> start(std::in_place, plan, options, seeds.first);

  Session session(plan.plan(), ranks, makeSessionOptions(plan, options, ranks));
  start->load(session);
  start.reset();
  int code = 0;
  if (reference)
    code = compare(options, *reference, session);
  else
    code =
        train(plan, options, rates, before, *data, evalData, summon, session);
  // One that can't be written does not take the other with it.
  auto write = [&](const std::string &path, auto writer) {
    try {
      if (!path.empty())
        writer(path, plan, session.spans());
    } catch (const Error &error) {
      code = sayError(error.what(), error.exitCode());
    }
  };
  write(options.trace, writeTrace);
  write(options.profile, [&](const auto &...arguments) {
    writeProfile(arguments..., getStepPrograms(plan, options.program).back());
  });
  return code;
}

int main(int argc, char **argv) {
  std::signal(SIGPIPE, SIG_IGN); // What can't be written is an error.
  try {
    std::optional<Options> options = parseOptions(argc, argv);
    return options ? run(*options) : 0;
  } catch (const Error &error) {
    return sayError(error.what(), error.exitCode());
  } catch (const std::bad_alloc &) {
    return sayError("no memory is left", 1);
  } catch (const std::exception &error) {
    return sayError(error.what(), 1);
  } catch (...) {
    return sayError("an exception of an unknown type", 1);
  }
}
