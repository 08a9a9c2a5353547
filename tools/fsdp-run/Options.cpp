//===- Options.cpp - The command line of fsdp-run -------------------------===//

#include "Options.h"

#include "Help.h"

#include "fsdp/Archive/PT2Archive.h"
#include "fsdp/Runtime/Data/Data.h"
#include "fsdp/Runtime/Training/Processes.h"

#include <cmath>
#include <cstdio>

using namespace fsdp;

static const char *const description =
    "Runs a plan: trains on data, or compares one step with a reference.";

static const char *const footer =
    "A reference is a safetensors file with the inputs (by their names or as "
    "in_0, in_1, ...) and either loss and grad.NAME (one forward and backward, "
    "no update), or losses and param.NAME: then as many steps as there are "
    "losses are trained, with the hyper-parameters in the file's metadata, and "
    "losses and final parameters are compared. Its metadata also has the seed "
    "of what draws random numbers, as --seed takes it. An input with one axis "
    "more than the plan's holds a batch for each rank; in a training, batch "
    "t * RANKS + r is rank r's at step t.\n\n"
    "Exit codes: 0 done; 1 rejected before the first step; 2 the proof or the "
    "comparison failed, or a loss is not finite; 3 a rank failed, or output "
    "was lost, after the first step began; 4 SIGTERM, SIGINT or SIGUSR1 has "
    "ended the training after a step.";

/// The likeliest mistake: the model in place of its plan.
static void rejectArchive(const std::vector<std::string> &plans) {
  if (plans.empty())
    return;
  const std::string &path = plans.front();
  if (archive::PT2Archive::isArchive(path))
    throw Error(path +
                ": expected a plan, found an archive; plan it first: "
                "fsdp-plan " +
                path + " --ranks N -o step.plan");
}

namespace {
/// What is given as text, and means something only once all is given.
struct Texts {
  std::string seeds = "0";
  std::vector<std::string> lrScales;
};
} // namespace

static void addCommon(CLI::App &app, TrainingOptions &options) {
  app.option_defaults()->group("Common");
  app.add_option("plan", options.plans,
                 "The plan file; or one for each rank, which must agree")
      ->required();
  app.add_option("--ranks", options.ranks, "Must be the plan's, if given");
  app.add_option(
      "--weights", options.weights,
      "Parameters: a .pt2 archive, a .safetensors file, or a folder with "
      "model.safetensors or model.safetensors.index.json; required without "
      "--init");
  app.add_option(
      "--data", options.data,
      "Batches: .safetensors with the inputs by their names or "
      "as in_0, in_1, ..., a file of tokens (.npy, or .bin "
      "with raw ones), or a folder of these, *.bin and *.npy; or - for "
      "messages on the standard input, each with 8 bytes of its "
      "length and a .safetensors with a batch for each rank");
  app.add_option("--steps", options.steps, "How many steps to train")
      ->needs("--data");
  app.add_option("--reference", options.reference,
                 "Compare with this .safetensors file");
  app.add_option("--backend", options.backend,
                 "How ranks talk. local: as threads of this process. mpi: as "
                 "processes that mpirun or srun has started, one for each "
                 "rank. nccl: as processes of torchrun, srun or mpirun, each "
                 "with a GPU")
      ->check(CLI::IsMember({"local", "mpi", "nccl"}))
      ->capture_default_str();
  app.get_option("--reference")->excludes("--data");
}

static void addTraining(CLI::App &app, TrainingOptions &options, Texts &texts) {
  app.option_defaults()->group("Training");
  app.add_option("--program", options.program,
                 "The program of the plan that trains, or is compared")
      ->capture_default_str();
  for (const HyperParameterOption &option : getHyperParameterOptions())
    app.add_option(option.name, options.hyperParameters.*option.value,
                   option.help)
        ->needs("--data")
        ->capture_default_str();
  app.add_option("--lr-scale", texts.lrScales,
                 "The rate of the parameters in this group of fsdp-plan "
                 "--lr-groups, in parts of --lr; may be repeated")
      ->type_name("GROUP=FACTOR")
      ->allow_extra_args(false)
      ->needs("--data");
  app.add_option("--lr-schedule", options.lrSchedule,
                 "constant; linear or cosine from --lr to 0; or a file "
                 "with the rate of each step on a line")
      ->needs("--data")
      ->capture_default_str();
  app.add_option("--warmup-steps", options.warmupSteps,
                 "The rate rises from 0 to --lr in the first steps")
      ->needs("--data");
  app.add_option("--seed", texts.seeds,
                 "Rank r draws random numbers as after torch.manual_seed(SEED "
                 "+ r); with SEED:shared, all as after torch.manual_seed(SEED)")
      ->type_name("SEED[:shared]")
      ->needs("--data")
      ->capture_default_str();
  app.add_option(
         "--init", options.init,
         "Parameters that --weights lacks: zeros, or normal:STD, drawn "
         "by name and --seed alike on any number of ranks. from-module: "
         "--weights must be a file of Python's fsdp_mlir.initialize")
      ->type_name("zeros|normal:STD|from-module");
  app.add_option(
         "--rename", options.renames,
         "Change the names of the tensors of --weights: each part that "
         "matches the regular expression becomes the text, in which \\1 "
         "is the first group; may be repeated, one after the other")
      ->type_name("REGEX=TEXT")
      ->allow_extra_args(false)
      ->needs("--weights");
}

static void addData(CLI::App &app, TrainingOptions &options) {
  app.option_defaults()->group("Data");
  app.add_option("--token-bits", options.tokenBits,
                 "Of a token in a file of raw tokens, which may then have any "
                 "name; otherwise it ends in .bin, and the tokens have 16")
      ->check(CLI::IsMember({16, 32}))
      ->needs("--data");
  app.add_option("--shuffle", options.shuffleSeed,
                 "Take sequences of tokens, or batches of .safetensors, in an "
                 "order drawn from this seed, another one in each epoch, and "
                 "the same on any number of ranks")
      ->type_name("SEED")
      ->needs("--data");
  app.add_option("--eval-data", options.evalData,
                 "Batches, as for --data, for the plan's program eval")
      ->needs("--data");
  app.add_option("--eval-every", options.evalEvery,
                 "Evaluate all of --eval-data after each so many steps")
      ->needs("--eval-data");
  app.get_option("--eval-data")->needs("--eval-every");
}

static void addCheckpoints(CLI::App &app, TrainingOptions &options) {
  app.option_defaults()->group("Checkpoints");
  app.add_option("--checkpoint", options.checkpoint,
                 "Write checkpoints of the training to this folder, as "
                 "step-00000020: one at its end, or where a signal ends it")
      ->type_name("FOLDER")
      ->needs("--data");
  app.add_option("--every,--checkpoint-every", options.every,
                 "And one after each so many steps, while it goes on")
      ->needs("--checkpoint");
  app.add_option("--keep", options.keep,
                 "Remove all but so many of the newest checkpoints")
      ->needs("--checkpoint");
  app.add_option("--resume", options.resume,
                 "Go on with the training of a checkpoint, or of the newest "
                 "one of a folder that is not damaged, with its steps and "
                 "hyper-parameters unless others are given. auto: of that of "
                 "--checkpoint, if it has any")
      ->type_name("FOLDER|auto")
      ->needs("--data");
}

static void addResults(CLI::App &app, TrainingOptions &options) {
  app.option_defaults()->group("Results");
  app.add_option(
      "--export", options.exported,
      "After the last step, write the model under the names that it has in "
      "--weights: to a .safetensors file, or to a new folder, as "
      "save_pretrained of Hugging Face does");
  app.add_option("--max-shard-size", options.maxShardSize,
                 "The most bytes of a file in the folder of --export: 5GB, "
                 "200MiB; a larger tensor has a file of its own")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->type_name("SIZE")
      ->default_str("5GB")
      ->needs("--export");
  app.add_option(
      "--summon", options.summon,
      "After the last step, write the whole parameters and model buffers to "
      "this .safetensors file, which --weights reads");
  app.add_option("--summon-only", options.summonOnly,
                 "Only those of which this regular expression matches a part "
                 "of the name")
      ->type_name("REGEX")
      ->needs("--summon");
  app.add_flag("--with-grads", options.withGrads,
               "And the gradients of the last step, before they are clipped, "
               "as grad.NAME")
      ->needs("--summon");
}

static void addWatching(CLI::App &app, TrainingOptions &options) {
  app.option_defaults()->group("Watching");
  app.add_option("--log-every", options.logEvery,
                 "Print each so many steps, and the first and the last; "
                 "otherwise about ten, or in a terminal all, one in place of "
                 "the other. --json, --log and --tensorboard have all steps")
      ->type_name("N")
      ->needs("--data");
  app.add_flag("--verbose", options.verbose,
               "At the end, also say where the memory went");
  app.add_flag("--json", options.json,
               "One JSON object per step on stdout, then one for the whole");
  app.add_option("--log", options.log,
                 "Every process appends to rank-R.log in this folder: a line "
                 "of JSON for each step, and its latest collectives if the run "
                 "fails")
      ->type_name("FOLDER")
      ->needs("--data");
  app.add_option("--tensorboard", options.tensorBoard,
                 "Write event files of TensorBoard to this folder; needs "
                 "python3 with the library tensorboard")
      ->type_name("FOLDER")
      ->needs("--data");
  app.add_option("--trace", options.trace,
                 "Write what was run when, as JSON for Perfetto");
  app.add_option("--profile", options.profile,
                 "Write how long operators and collectives took, as JSON");
}

static void addExpert(CLI::App &app, TrainingOptions &options) {
  app.option_defaults()->group("Expert");
  app.add_option("--map", options.map,
                 "Which rank a process is. hosts: those of one machine are "
                 "consecutive, so that the inner axes of the mesh lie inside "
                 "it. launcher: as what has started them numbers them")
      ->check(CLI::IsMember({"hosts", "launcher"}))
      ->capture_default_str();
  app.add_option("--device", options.device,
                 "cpu or cuda; must be the plan's, if given")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--timeout", options.timeout,
                 "Seconds that a rank waits for another one before it fails")
      ->capture_default_str();
  app.add_option("--tolerance", options.tolerance,
                 "Allowed: TOLERANCE * max|reference| + 1e-7 in each tensor")
      ->needs("--reference")
      ->capture_default_str();
  app.add_flag("--verify", options.verify,
               "First prove that the plan does what its model means");
  app.add_flag("--overlap", options.overlap,
               "Communicate on a second thread of each rank; GPUs overlap "
               "without");
  app.add_option("--load", options.libraries,
                 "Load this library of operators first; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--trust", options.trusted,
                 "Run this operator although it is not known to be safe with "
                 "hostile arguments (aten::NAME); may be repeated")
      ->allow_extra_args(false);
  app.add_option(
      "--chaos", options.chaosSeed,
      "A test: random delays of this SEED, NaN in memory that is not in use");
}

/// What each option cannot say by itself.
static void check(const CLI::App &app, const Texts &texts,
                  TrainingOptions &options) {
  if (options.data == standardInput) {
    if (options.backend != "local")
      throw Error("--data -: expected one process, which has the standard "
                  "input; found --backend " +
                  options.backend);
    if (options.shuffleSeed)
      throw Error("--data -: expected the order of the stream, found "
                  "--shuffle");
  }
  if (options.evalData == standardInput)
    throw Error("--eval-data: expected files, which can be read again; found "
                "the standard input");
  if (app.count("--every") && options.every < 1)
    throw Error("--every: expected at least 1, found " +
                std::to_string(options.every));
  if (app.count("--log-every") && options.logEvery < 1)
    throw Error("--log-every: expected at least 1, found " +
                std::to_string(options.logEvery));
  if (app.count("--keep") && options.keep < 1)
    throw Error("--keep: expected at least 1, found " +
                std::to_string(options.keep));
  if (options.resume == "auto" && !app.count("--checkpoint"))
    throw Error("--resume auto: expected --checkpoint FOLDER, where to look "
                "for the newest checkpoint; found none");
  bool isResumed = !options.resume.empty() && options.resume != "auto";
  if (!isResumed && options.weights.empty() &&
      (options.init.empty() || options.init == fromModule))
    throw Error(options.init.empty()
                    ? "expected --weights FILE, or --init to make parameters "
                      "without a file; found neither"
                    : "--init from-module: expected --weights FILE, which "
                      "Python's fsdp_mlir.initialize writes; found none");
  if (options.ranks && *options.ranks < 1)
    throw Error("--ranks: expected at least 1, found " +
                std::to_string(*options.ranks));
  if (app.count("--chaos") && options.chaosSeed == 0)
    throw Error("--chaos: expected a seed of at least 1, found 0");
  if (!app.count("--data") && !app.count("--reference"))
    throw Error("expected --data to train on or --reference to compare with, "
                "found neither");
  for (const auto &[name, value] : spellHyperParameters({}))
    if (app.count(name))
      options.given.insert(name);
  if (options.resume.empty())
    checkSteps(options);
  if (app.count("--eval-every") && options.evalEvery < 1)
    throw Error("--eval-every: expected at least 1, found " +
                std::to_string(options.evalEvery));
  options.hyperParameters.check();
  readScales(texts.lrScales, options.lrScales);
  try {
    options.seeds = Seeds::parse(texts.seeds);
  } catch (const Error &error) {
    throw Error(std::string("--seed: ") + error.what());
  }
  if (app.count("--lr-schedule") && !isNamedSchedule(options.lrSchedule))
    for (const char *other : {"--lr", "--warmup-steps"})
      if (app.count(other))
        throw Error(std::string(other) +
                    ": the file of --lr-schedule "
                    "already says the rate of each step; give one of the two");
  if (options.maxShardSize == 0)
    throw Error("--max-shard-size: expected at least 1 byte, found 0");
  constexpr double leastTimeout = 1e-3, mostTimeout = 1e9;
  if (!(options.timeout >= leastTimeout && options.timeout <= mostTimeout))
    throw Error("--timeout: expected from 0.001 to 1e9 seconds, found " +
                std::to_string(options.timeout));
  if (!(options.tolerance >= 0) || std::isinf(options.tolerance))
    throw Error("--tolerance: expected a finite number of at least 0, found " +
                std::to_string(options.tolerance));
}

std::optional<TrainingOptions> fsdp::parseOptions(int argc, char **argv) {
  TrainingOptions options;
  Texts texts;
  CLI::App app(description, "fsdp-run");
  app.footer(footer);
  app.formatter(std::make_shared<Help>());
  app.get_help_ptr()->group("Common");
  app.set_version_flag("--version", "fsdp-run " FSDP_VERSION)->group("Common");
  addCommon(app, options);
  addTraining(app, options, texts);
  addData(app, options);
  addCheckpoints(app, options);
  addResults(app, options);
  addWatching(app, options);
  addExpert(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success &success) {
    app.exit(success);
    return std::nullopt;
  } catch (const CLI::ParseError &error) {
    rejectArchive(options.plans); // What else is missing would mislead.
    throw Error(error.what());
  }
  rejectArchive(options.plans);
  check(app, texts, options);
  return options;
}

std::string fsdp::findOption(int argc, char **argv, const std::string &option) {
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == option && i + 1 < argc)
      return argv[i + 1];
    if (argument.starts_with(option + "="))
      return std::string(argument.substr(option.size() + 1));
  }
  return "";
}
