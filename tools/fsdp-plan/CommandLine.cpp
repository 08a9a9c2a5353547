//===- CommandLine.cpp - The command line of fsdp-plan --------------------===//

#include "CommandLine.h"
#include "../Tool.h"

#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Pipelines/Pipelines.h"
#include "fsdp/Planner/Hardware.h"

#include "mlir/Tools/Plugins/PassPlugin.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/StringSaver.h"

#include <array>

using namespace fsdp;
using llvm::StringRef;
using mlir::failed;
using mlir::LogicalResult;
using mlir::success;
namespace cl = llvm::cl;

#ifdef FSDP_STATIC_MLIR
static constexpr bool hasOwnMLIR = true;
#else
static constexpr bool hasOwnMLIR = false;
#endif

namespace {
/// The options of every command, as LLVM parses and lists them.
struct Parser {
  /// Of help, in order; those of the table have the names that it says.
  cl::OptionCategory common{"Common"}, sharding{"Sharding"},
      training{"Training"}, schedule{"Schedule and memory"},
      search{"Search and costs"}, reports{"Reports"}, expert{"Expert"};
  const std::array<cl::OptionCategory *, 7> groups{
      &common, &sharding, &training, &schedule, &search, &reports, &expert};
  cl::opt<std::string> input{cl::Positional, cl::desc("<model.pt2>"),
                             cl::cat(common)};
  cl::list<std::string> programs{
      "program",
      cl::desc("Another graph over the same parameters, such as eval=eval.pt2 "
               "or long=long.pt2. The model itself is the program step"),
      cl::value_desc("name=file"), cl::cat(common)};
  cl::opt<std::string> bind{"bind",
                            cl::desc("Sizes of symbols: hint for those of the "
                                     "example inputs, or batch=16,length=2"),
                            cl::value_desc("sizes"), cl::cat(expert)};
  cl::opt<std::string> report{"report",
                              cl::desc("Also write the report as JSON"),
                              cl::value_desc("r.json"), cl::cat(reports)};
  cl::list<std::string> plugins{
      "load-pass-plugin",
      cl::desc("A library with passes for --comm-hook and --passes-at, in the "
               "form that "
               "mlir-opt loads"),
      cl::value_desc("lib.so"), cl::cat(expert)};
  cl::opt<bool> unproved{
      "unproved",
      cl::desc("Write the plan even if it cannot be proved that it computes "
               "what the model does; the plan says so"),
      cl::cat(expert)};

  std::vector<std::string> helps; // outlive their options
  std::vector<std::unique_ptr<cl::opt<std::string>>> options;
  std::vector<std::unique_ptr<cl::opt<bool>>> flags;
  std::vector<std::unique_ptr<cl::alias>> aliases;

  Parser();
  LogicalResult parse(int argc, char **argv, const char *overview,
                      CommandLine &line);

private:
  std::vector<GivenOption> getGiven() const;
};

/// Those of a compilation alone.
struct PlanParser : Parser {
  cl::opt<std::string> output{
      "o",
      cl::desc("Where the plan goes. Without it nothing is written but what is "
               "named: a dry run"),
      cl::value_desc("step.plan"), cl::cat(common)};
  cl::opt<std::string> trace{
      "trace", cl::desc("Write the predicted timeline of a step, for Perfetto"),
      cl::value_desc("t.json"), cl::cat(reports)};
  cl::opt<std::string> html{
      "html",
      cl::desc("Write a page with the predicted timeline, the memory and the "
               "report, for a browser"),
      cl::value_desc("page.html"), cl::cat(reports)};
  cl::opt<std::string> remarks{
      "remarks-filter",
      cl::desc("Show what passes of matching names decided, and why: "
               "fsdp-remat, or .* for all"),
      cl::value_desc("regex"), cl::cat(reports)};
  cl::opt<bool> degrade{
      "degrade",
      cl::desc("Also write plans for a tenth less of the budget "
               "(step.budget.plan) and for a host less of the hardware "
               "(step.hosts.plan), to go on with where there is less"),
      cl::cat(search)};
  cl::opt<bool> timing{"timing",
                       cl::desc("Show where the time of the compiler went"),
                       cl::cat(reports)};
};

/// And those of a comparison.
struct CompareParser : Parser {
  cl::list<std::string> with{
      "with",
      cl::desc("A row for these options of the plan, such as '--schedule fsdp2 "
               "--remat budget:4GiB'; they come on top of those that all rows "
               "have"),
      cl::value_desc("options"), cl::cat(common)};
};
} // namespace

Parser::Parser() {
  FSDPPipelineOptions defaults;
  helps.reserve(2 * getPipelineOptions().size());
  for (const PipelineOption &row : getPipelineOptions()) {
    std::string text = row.spell(defaults);
    bool isFlag = !*row.values, isSaid = isFlag || text.empty();
    helps.push_back(row.description +
                    (isSaid ? std::string() : " Default: " + text + "."));
    cl::OptionCategory &group =
        **llvm::find_if(groups, [&](cl::OptionCategory *each) {
          return each->getName() == row.group;
        });
    if (isFlag) {
      flags.push_back(std::make_unique<cl::opt<bool>>(
          StringRef(row.name), cl::desc(helps.back()), cl::cat(group)));
      continue;
    }
    options.push_back(std::make_unique<cl::opt<std::string>>(
        StringRef(row.name), cl::desc(helps.back()), cl::value_desc(row.values),
        cl::cat(group)));
    if (!*row.alias)
      continue;
    helps.push_back("The same as --" + std::string(row.name) + ".");
    aliases.push_back(std::make_unique<cl::alias>(
        StringRef(row.alias), cl::desc(helps.back()),
        cl::value_desc(row.values), cl::aliasopt(*options.back()),
        cl::cat(group)));
  }
}

std::vector<GivenOption> Parser::getGiven() const {
  std::vector<GivenOption> given;
  for (const auto &option : options)
    if (option->getNumOccurrences())
      given.emplace_back(option->ArgStr.str(), option->getValue());
  for (const auto &flag : flags)
    if (flag->getNumOccurrences())
      given.emplace_back(flag->ArgStr.str(), spellOption(flag->getValue()));
  return given;
}

/// What there must be, all at once.
static LogicalResult checkRequired(const Parser &parser,
                                   llvm::ArrayRef<GivenOption> given) {
  llvm::SmallVector<StringRef> missing;
  if (parser.input.empty())
    missing.push_back("a model (model.pt2)");
  if (llvm::none_of(given, [](const auto &each) {
        return each.first == "ranks" || each.first == "mesh";
      }))
    missing.push_back("--ranks N");
  if (missing.empty())
    return success();
  return reject("expected " + llvm::join(missing, ", ") + "; see --help");
}

/// Reads what all commands have.
LogicalResult Parser::parse(int argc, char **argv, const char *overview,
                            CommandLine &line) {
  if (failed(parseOptions(argc, argv, overview, groups)))
    return mlir::failure();
  line.given = getGiven();
  if (failed(checkRequired(*this, line.given)))
    return mlir::failure();
  for (const std::string &library : plugins) {
    if (hasOwnMLIR)
      return reject("--load-pass-plugin: expected a fsdp-plan that shares "
                    "libMLIR with plugins, found one of a wheel, which has an "
                    "MLIR of its own; build it from source");
    auto plugin = mlir::PassPlugin::load(library);
    if (!plugin)
      return reject("--load-pass-plugin: " +
                    llvm::toString(plugin.takeError()));
    plugin->registerPassRegistryCallbacks();
  }
  line.input = input;
  line.bind = bind;
  line.programs = programs;
  line.report = report;
  line.unproved = unproved;
  return success();
}

std::string fsdp::getDegradedPath(StringRef path, StringRef what) {
  llvm::SmallString<128> other(path);
  llvm::sys::path::replace_extension(other, what + ".plan");
  return other.str().str();
}

/// Fails if an output cannot be written or is an input.
static LogicalResult checkFiles(const CommandLine &line) {
  std::vector<archive::NamedPath> outputs, inputs;
  auto add = [](std::vector<archive::NamedPath> &files, const char *option,
                const std::string &path) {
    if (!path.empty())
      files.push_back({option, path});
  };
  add(inputs, "the model", line.input);
  for (StringRef program : line.programs) {
    auto [name, path] = program.split('=');
    if (name.empty() || path.empty())
      return reject("--program: expected a name and a file, such as "
                    "eval=eval.pt2; found '" +
                    program + "'");
    add(inputs, "--program", path.str());
  }
  add(inputs, "--profile", line.options.profile);
  add(inputs, "--hardware", line.options.hardware);
  add(line.options.automatic ? outputs : inputs, "--decisions",
      line.options.decisions);
  add(outputs, "-o", line.output);
  if (line.degrade)
    for (const char *what : {"budget", "hosts"})
      add(outputs, "--degrade", getDegradedPath(line.output, what));
  add(outputs, "--report", line.report);
  add(outputs, "--trace", line.trace);
  add(outputs, "--html", line.html);
  auto error = archive::checkOutputs(outputs, inputs);
  return error ? reject(error->message) : success();
}

static std::string findKept(aten::Device device) {
  return planner::findKeptHardware(device == aten::Device::CUDA ? "cuda"
                                                                : "cpu");
}

LogicalResult fsdp::parseCommandLine(int argc, char **argv, CommandLine &line) {
  PlanParser parser;
  if (failed(parser.parse(
          argc, argv,
          "Compiles an exported PyTorch training graph for N ranks: model.pt2 "
          "in, plan and report out.\n\nExample: fsdp-plan model.pt2 --ranks 4 "
          "-o step.plan\n\nfsdp-plan compare, diff, validate and calibrate do "
          "something else, and have a --help of their own.\n",
          line)))
    return mlir::failure();
  line.output = parser.output;
  line.trace = parser.trace;
  line.html = parser.html;
  line.remarks = parser.remarks;
  line.timing = parser.timing;
  line.degrade = parser.degrade;
  if (std::string error =
          readOptions(line.given, line.isTraced(), line.options);
      !error.empty())
    return reject(error);
  if (line.degrade && line.output.empty())
    return reject("--degrade: expected -o step.plan, beside which the other "
                  "plans go");
  return checkFiles(line);
}

LogicalResult fsdp::parseCompareLine(int argc, char **argv, CommandLine &line) {
  CompareParser parser;
  std::string name = "fsdp-plan compare";
  std::vector<char *> arguments(argv, argv + argc + 1); // with the null
  arguments.front() = name.data();
  if (failed(parser.parse(
          argc, arguments.data(),
          "Compiles a model with each schedule and with option sets of your "
          "own, and compares memory, predicted time and calls. Times need "
          "--hardware or --profile.\n\nExample: fsdp-plan compare model.pt2 "
          "--ranks 4 --hardware h100 --with '--remat budget:4GiB'\n",
          line)))
    return mlir::failure();
  line.with = parser.with;
  if (std::string error = readOptions(line.given, false, line.options);
      !error.empty())
    return reject(error);
  // A machine that is known is that of all rows.
  std::string kept = findKept(line.options.device);
  if (line.options.hardware.empty() && !kept.empty())
    line.given.emplace_back("hardware", kept);
  return checkFiles(line);
}

std::vector<GivenOption>
fsdp::overrideOptions(llvm::ArrayRef<GivenOption> given,
                      std::vector<GivenOption> own) {
  for (const GivenOption &option : given)
    if (llvm::none_of(own, [&](const GivenOption &other) {
          return other.first == option.first;
        }))
      own.push_back(option);
  return own;
}

std::string fsdp::readOptions(llvm::ArrayRef<GivenOption> given, bool isTraced,
                              FSDPPipelineOptions &options) {
  std::string error = readPipelineOptions(given, options);
  if (!options.hardware.empty())
    return error;
  // Measured times are those of a machine: what was not measured is its.
  bool isTimed = isTraced || !options.profile.empty();
  if (isTimed || isPlanned(options) || options.schedule == Preset::List)
    options.hardware = findKept(options.device);
  if (isTimed && options.hardware.empty())
    options.hardware = getHardware(options);
  return error;
}

LogicalResult fsdp::printOptionTable() {
  FSDPPipelineOptions defaults;
  llvm::json::OStream json(llvm::outs(), 2);
  json.array([&] {
    for (const PipelineOption &row : getPipelineOptions())
      json.object([&] {
        json.attribute("name", row.name);
        json.attribute("alias", row.alias);
        json.attribute("group", row.group);
        json.attribute("values", row.values);
        json.attribute("default", row.spell(defaults));
        json.attribute("help", row.description);
      });
  });
  llvm::outs() << "\n";
  return finishOutput();
}

std::string fsdp::splitOptions(StringRef text,
                               std::vector<GivenOption> &given) {
  llvm::BumpPtrAllocator allocator;
  llvm::StringSaver saver(allocator);
  llvm::SmallVector<const char *> words;
  cl::TokenizeGNUCommandLine(text, saver, words);
  for (size_t i = 0; i != words.size(); ++i) {
    StringRef word = words[i];
    StringRef name, value;
    std::tie(name, value) =
        word.drop_while([](char c) { return c == '-'; }).split('=');
    const PipelineOption *option = findPipelineOption(name);
    if (!word.starts_with("-") || !option)
      return "expected options of the plan, such as --schedule fsdp2; found '" +
             word.str() + "'";
    if (*option->values && !word.contains('=')) { // no flag
      if (++i == words.size())
        return "expected a value after '" + word.str() + "', found none";
      value = words[i];
    }
    given.emplace_back(option->name, value.str());
  }
  return "";
}
