//===- fsdp-plan.cpp - From an exported model to a plan -------------------===//
//
// The whole compiler behind one command for people: `.pt2` in, plan file and
// report out, with every verifier on.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"
#include "Report.h"
#include "Trace.h"

#include "fsdp/Analysis/Memory.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Dialect/FSDP/Transforms/ModulePaths.h"
#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"
#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Remarks.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Support/Timing.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/CommandLine.h"

using namespace fsdp;
using llvm::StringRef;
using mlir::failed;
using mlir::failure;
using mlir::LogicalResult;
using mlir::success;
namespace cl = llvm::cl;

namespace {

/// The command line; a member of each name is an option of that name.
struct CommandLine {
  cl::OptionCategory category{"fsdp-plan options"};
  cl::opt<std::string> input{cl::Positional, cl::Required,
                             cl::desc("<model.pt2>"), cl::cat(category)};
  cl::opt<std::string> output{"o", cl::Required,
                              cl::desc("Where the plan goes"),
                              cl::value_desc("step.plan"), cl::cat(category)};
  cl::opt<std::string> ranks{"ranks", cl::Required,
                             cl::desc("How many ranks share the step"),
                             cl::value_desc("N"), cl::cat(category)};
  cl::opt<std::string> bind{
      "bind",
      cl::desc(
          "Sizes of symbols: hint for the example's, or batch=16,length=2"),
      cl::value_desc("sizes"), cl::cat(category)};
  cl::opt<std::string> strategy{
      "strategy", cl::init("full_shard"),
      cl::desc("full_shard (default), shard_grad_op or no_shard"),
      cl::value_desc("name"), cl::cat(category)};
  cl::opt<std::string> wrap{"wrap", cl::init("auto"),
                            cl::desc("What becomes a unit: auto (default: "
                                     "repeated structure), scope:REGEX, "
                                     "class:NAME or size:N"),
                            cl::value_desc("policy"), cl::cat(category)};
  cl::opt<std::string> storageDtype{
      "storage-dtype",
      cl::desc("Element type of the shards (default: the archive's)"),
      cl::value_desc("f32|bf16|f16"), cl::cat(category)};
  cl::opt<std::string> optimizer{"optimizer", cl::init("adamw"),
                                 cl::desc("adamw (default), sgd or none"),
                                 cl::value_desc("name"), cl::cat(category)};
  cl::opt<std::string> device{"device", cl::init("cpu"),
                              cl::desc("cpu (default) or cuda"),
                              cl::value_desc("name"), cl::cat(category)};
  cl::opt<std::string> prefetch{
      "prefetch", cl::init("backward_pre"),
      cl::desc("When the backward's gathers are launched: backward_pre "
               "(default), backward_post or none"),
      cl::value_desc("name"), cl::cat(category)};
  cl::opt<std::string> forwardPrefetch{
      "forward-prefetch", cl::init("0"),
      cl::desc("How many units the forward gathers ahead (default: 0)"),
      cl::value_desc("N"), cl::cat(category)};
  cl::opt<std::string> budget{
      "budget",
      cl::desc("The most memory that a rank may hold: reject a plan "
               "that needs more"),
      cl::value_desc("bytes, or N KiB|MiB|GiB"), cl::cat(category)};
  cl::opt<std::string> reshard{
      "reshard",
      cl::desc("Whether parameters are freed after the forward, instead of "
               "--strategy: true is full_shard, false shard_grad_op; or N: "
               "each keeps a piece, that N neighbours gather again"),
      cl::value_desc("policy"), cl::cat(category)};
  cl::opt<std::string> remat{
      "remat", cl::init("none"),
      cl::desc("What the backward computes again: none (default), scope:REGEX, "
               "or as much as it takes to hold budget:BYTES"),
      cl::value_desc("policy"), cl::cat(category)};
  cl::opt<bool> keepOutput{"keep-output",
                           cl::desc("Keep the outputs of the model, too"),
                           cl::cat(category)};
  cl::opt<bool> unproved{
      "unproved",
      cl::desc("Write the plan also if value numbers cannot prove that it does "
               "what the model means; the plan says so"),
      cl::cat(category)};
  cl::opt<std::string> limit{
      "limit", cl::init("2"),
      cl::desc(
          "How many gathered units may be alive at once, beside those that "
          "the strategy keeps (default: 2; 0: any number)"),
      cl::value_desc("N"), cl::cat(category)};
  cl::opt<std::string> bucket{
      "bucket", cl::init("none"),
      cl::desc("Which collectives go in one call: none (default), blocks:N "
               "units or bytes:N bytes; merge:blocks:N or merge:bytes:N make "
               "one unit of several, copy:blocks:N or copy:bytes:N copy into "
               "one buffer and out of it"),
      cl::value_desc("policy"), cl::cat(category)};
  cl::opt<std::string> schedule{
      "schedule",
      cl::desc("Imitate fsdp1, fsdp2, manual-block or inductor, or let list "
               "scheduling decide by costs (list), instead of --prefetch, "
               "--forward-prefetch, --limit and --bucket"),
      cl::value_desc("name"), cl::cat(category)};
  cl::opt<std::string> profile{
      "profile",
      cl::desc("Measured times of fsdp-run --profile, for --trace and "
               "--schedule list (default: predicted for the device)"),
      cl::value_desc("p.json"), cl::cat(category)};
  cl::opt<std::string> trace{
      "trace", cl::desc("Write the predicted timeline of a step, for Perfetto"),
      cl::value_desc("t.json"), cl::cat(category)};
  cl::opt<std::string> report{"report",
                              cl::desc("Also write the report as JSON"),
                              cl::value_desc("r.json"), cl::cat(category)};
  cl::opt<std::string> remarks{
      "remarks-filter",
      cl::desc("Show what passes of matching names decided, and why: "
               "fsdp-remat, or .* for all"),
      cl::value_desc("regex"), cl::cat(category)};
  cl::opt<bool> timing{"timing",
                       cl::desc("Show where the compiler's time went"),
                       cl::cat(category)};
};

/// Prints errors and warnings as sentences, with the node that they are about.
LogicalResult printDiagnostic(mlir::Diagnostic &diagnostic) {
  auto print = [](mlir::Diagnostic &part, StringRef kind) {
    llvm::errs() << "fsdp-plan: " << kind << ": "
                 << archive::escape(part.str());
    if (auto node = llvm::dyn_cast<mlir::NameLoc>(part.getLocation()))
      llvm::errs() << " (at '" << archive::escape(node.getName().getValue())
                   << "')";
    llvm::errs() << "\n";
  };
  if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error)
    print(diagnostic, "error");
  else if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Warning)
    print(diagnostic, "warning");
  else
    return success();
  for (mlir::Diagnostic &note : diagnostic.getNotes())
    print(note, "note");
  return success();
}

/// Prints each decision on a line: who, what, by how much, and why.
class RemarkPrinter : public mlir::remark::detail::MLIRRemarkStreamerBase {
  void
  streamOptimizationRemark(const mlir::remark::detail::Remark &remark) final {
    llvm::errs() << "fsdp-plan: remark: " << remark.getCategoryName() << ": "
                 << remark.getRemarkName();
    for (const auto &argument : remark.getArgs())
      llvm::errs() << ", " << archive::escape(argument.key) << " = "
                   << archive::escape(argument.val);
    llvm::errs() << "\n";
  }
};

LogicalResult enableRemarks(mlir::MLIRContext &context, StringRef filter) {
  if (filter.empty())
    return success();
  if (std::string error = findRegexError(filter); !error.empty())
    return reject("--remarks-filter: " + error);
  return mlir::remark::enableOptimizationRemarks(
      context, std::make_unique<RemarkPrinter>(),
      std::make_unique<mlir::remark::RemarkEmittingPolicyAll>(),
      {filter.str(), "", "", "", ""}); // a kind that is not there is off
}

/// Sets `value` to what `text` names, or says which names there are.
template <typename Enum>
LogicalResult choose(StringRef option, StringRef text,
                     llvm::ArrayRef<std::pair<StringRef, Enum>> names,
                     Enum &value) {
  std::string expected;
  for (auto [name, candidate] : names) {
    if (name == text) {
      value = candidate;
      return success();
    }
    expected += (expected.empty() ? "" : ", ") + name.str();
  }
  return reject("--" + option + ": expected one of " + expected + "; found '" +
                text + "'");
}

/// Sets `value` to the number that `text` is, which is at least `least` and
/// fits what a plan counts ranks and units with.
LogicalResult read(StringRef option, StringRef text, int64_t least,
                   int64_t &value) {
  if (text.getAsInteger(10, value) || value < least)
    return reject("--" + option + ": expected a number of at least " +
                  llvm::Twine(least) + "; found '" + text + "'");
  if (value > INT32_MAX)
    return reject("--" + option + ": expected a number of at most " +
                  llvm::Twine(INT32_MAX) + "; found '" + text + "'");
  return success();
}

/// `1048576`, `1024KiB`, `1 MiB`; 0 if there is no text.
LogicalResult readBytes(StringRef option, StringRef text, int64_t &bytes) {
  bytes = 0;
  if (text.empty())
    return success();
  StringRef rest = text;
  int64_t count = 0;
  bool isNumber = !rest.consumeInteger(10, count) && count > 0;
  unsigned shift = llvm::StringSwitch<unsigned>(rest.ltrim())
                       .Case("", 0)
                       .Case("KiB", 10)
                       .Case("MiB", 20)
                       .Case("GiB", 30)
                       .Default(64);
  if (!isNumber || shift == 64 || count > (INT64_MAX >> shift))
    return reject("--" + option +
                  ": expected bytes, or a number of KiB, MiB or GiB; found '" +
                  text + "'");
  bytes = count << shift;
  return success();
}

LogicalResult readBucket(const CommandLine &line,
                         FSDPPipelineOptions &options) {
  StringRef rest = line.bucket;
  if (rest.consume_front("merge:"))
    options.bucketMode = "merge";
  else if (rest.consume_front("copy:"))
    options.bucketMode = "copy";
  auto [policy, text] = rest.split(':');
  int64_t number = 0;
  bool isNumber = !text.getAsInteger(10, number) && number > 0;
  if (policy == "blocks" && isNumber)
    options.bucketBlocks = number;
  else if (policy == "bytes" && isNumber)
    options.bucketBytes = number;
  else if (line.bucket != "none")
    return reject("--bucket: expected none, or blocks:N or bytes:N, with "
                  "merge: in front to join units, or copy: to copy them into "
                  "one buffer; found '" +
                  line.bucket + "'");
  return success();
}

/// A preset is all of a schedule: what contradicts it is rejected.
LogicalResult readSchedule(const CommandLine &line,
                           FSDPPipelineOptions &options) {
  if (line.schedule.getNumOccurrences() == 0)
    return readBucket(line, options);
  Schedule schedule = Schedule::FSDP1;
  if (failed(choose<Schedule>("schedule", line.schedule,
                              {{"fsdp1", Schedule::FSDP1},
                               {"fsdp2", Schedule::FSDP2},
                               {"manual-block", Schedule::ManualBlock},
                               {"inductor", Schedule::Inductor},
                               {"list", Schedule::List}},
                              schedule)))
    return failure();
  for (const cl::Option *option :
       {static_cast<const cl::Option *>(&line.prefetch),
        static_cast<const cl::Option *>(&line.forwardPrefetch),
        static_cast<const cl::Option *>(&line.limit),
        static_cast<const cl::Option *>(&line.bucket)})
    if (option->getNumOccurrences())
      return reject("--schedule: '" + line.schedule + "' already says what --" +
                    option->ArgStr + " is; give one of the two");
  setSchedule(options, schedule);
  return success();
}

LogicalResult readRemat(const CommandLine &line, FSDPPipelineOptions &options) {
  StringRef policy = line.remat;
  int64_t bytes = 0;
  if (policy.consume_front("scope:") && !policy.empty())
    options.remat = policy.str();
  else if (policy.consume_front("budget:") && !policy.empty()) {
    if (failed(readBytes("remat", policy, bytes)))
      return failure();
    options.rematBudget = bytes;
  } else if (line.remat != "none")
    return reject("--remat: expected none, scope:REGEX or budget:BYTES; found "
                  "'" +
                  line.remat + "'");
  return success();
}

/// A strategy that shards is a reshard policy: one of the two is given.
LogicalResult readStrategy(const CommandLine &line, int64_t ranks,
                           FSDPPipelineOptions &options) {
  StringRef strategy = line.strategy;
  bool isKnown = false;
  if (failed(choose<bool>(
          "strategy", strategy,
          {{"full_shard", true}, {"shard_grad_op", true}, {"no_shard", true}},
          isKnown)))
    return failure();
  if (line.reshard.getNumOccurrences()) {
    StringRef reshard = line.reshard;
    if (int64_t group = 0; !reshard.getAsInteger(10, group)) {
      if (group < 1 || ranks % group != 0)
        return reject(
            "--reshard: expected a number of ranks that divides the " +
            std::to_string(ranks) + " of --ranks; found '" + reshard + "'");
      strategy = group == 1 && ranks > 1 ? "shard_grad_op" : "full_shard";
      if (group != ranks)
        options.reshard = reshard.str();
    } else if (reshard == "true" || reshard == "false") {
      strategy = reshard == "true" ? "full_shard" : "shard_grad_op";
    } else {
      return reject("--reshard: expected true, false or a number of ranks; "
                    "found '" +
                    reshard + "'");
    }
    if (line.strategy.getNumOccurrences())
      return reject("--reshard: --strategy '" + line.strategy +
                    "' already says what is freed; give one of the two");
  }
  options.strategy = strategy.str();
  return success();
}

LogicalResult readOptions(const CommandLine &line,
                          FSDPPipelineOptions &options) {
  int64_t ranks = 0, forwardPrefetch = 0, limit = 0;
  Prefetch prefetch = Prefetch::Pre;
  Optimizer optimizer = Optimizer::AdamW;
  bool isCUDA = false, isDtype = false;
  if (failed(read("ranks", line.ranks, 1, ranks)) ||
      failed(
          read("forward-prefetch", line.forwardPrefetch, 0, forwardPrefetch)) ||
      failed(read("limit", line.limit, 0, limit)) ||
      failed(choose<Prefetch>("prefetch", line.prefetch,
                              {{"backward_pre", Prefetch::Pre},
                               {"backward_post", Prefetch::Post},
                               {"none", Prefetch::None}},
                              prefetch)) ||
      failed(choose<Optimizer>("optimizer", line.optimizer,
                               {{"adamw", Optimizer::AdamW},
                                {"sgd", Optimizer::SGD},
                                {"none", Optimizer::None}},
                               optimizer)) ||
      failed(choose<bool>("device", line.device,
                          {{"cpu", false}, {"cuda", true}}, isCUDA)) ||
      failed(choose<bool>("storage-dtype", line.storageDtype,
                          {{"", false},
                           {"f32", true},
                           {"bf16", true},
                           {"f16", true},
                           {"f64", true}},
                          isDtype)))
    return failure();
  int64_t budget = 0;
  if (failed(readBytes("budget", line.budget, budget)) ||
      failed(readStrategy(line, ranks, options)) ||
      failed(readRemat(line, options)))
    return failure();
  options.budget = budget;
  options.ranks = ranks;
  options.prefetch = prefetch;
  options.forwardPrefetch = forwardPrefetch;
  options.limit = limit;
  options.raiseLimit = line.limit.getNumOccurrences() == 0;
  options.optimizer = optimizer;
  options.storageDtype = line.storageDtype.getValue();
  options.wrap = line.wrap.getValue();
  options.keepOutput = line.keepOutput.getValue();
  options.device = line.device.getValue();
  if (failed(readSchedule(line, options)))
    return failure();
  if (!line.profile.empty() && line.trace.empty() && !options.list)
    return reject("--profile: expected --trace or --schedule list, which use "
                  "it; found neither");
  if (!line.trace.empty())
    options.hardware = isCUDA ? "h100" : "cpu";
  options.profile = line.profile.getValue();
  return success();
}

/// That every output can be written, and is no input.
LogicalResult checkFiles(const CommandLine &line) {
  std::vector<archive::NamedPath> outputs, inputs;
  auto add = [](std::vector<archive::NamedPath> &files, StringRef option,
                const cl::opt<std::string> &path) {
    if (path.getNumOccurrences())
      files.push_back({option.str(), path});
  };
  add(inputs, "the model", line.input);
  add(inputs, "--profile", line.profile);
  add(outputs, "-o", line.output);
  add(outputs, "--report", line.report);
  add(outputs, "--trace", line.trace);
  auto error = archive::checkOutputs(outputs, inputs);
  return error ? reject(error->message) : success();
}

/// Writes what was made of a plan, each if there is a path for it.
LogicalResult writeAll(const CommandLine &line, const planfile::PlanFile &file,
                       const PlanSummary &summary, StringRef trace) {
  planfile::Expected<size_t> written = file.write(line.output);
  if (!line.report.empty() && written)
    written = archive::writeFile(
        line.report, {llvm::formatv("{0:2}\n", toJSON(summary)).str()});
  if (!line.trace.empty() && written)
    written = archive::writeFile(line.trace, {trace});
  return written ? success() : reject(written.error().message);
}

LogicalResult run(const CommandLine &line) {
  FSDPPipelineOptions options;
  if (failed(readOptions(line, options)) || failed(checkFiles(line)))
    return failure();

  mlir::DefaultTimingManager timings;
  timings.setEnabled(line.timing);
  timings.setDisplayMode(mlir::DefaultTimingManager::DisplayMode::Tree);
  mlir::TimingScope root = timings.getRootScope();

  mlir::DialectRegistry registry;
  registerAllDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  context.printOpOnDiagnostic(false); // one sentence, and where
  mlir::ScopedDiagnosticHandler handler(&context, printDiagnostic);
  if (failed(enableRemarks(context, line.remarks)))
    return failure();

  mlir::TimingScope importing = root.nest("import");
  mlir::OwningOpRef<mlir::ModuleOp> module =
      importPT2(line.input, ImportOptions{line.bind}, &context);
  if (!module)
    return failure();
  importing.stop();

  mlir::TimingScope passes = root.nest("passes");
  mlir::PassManager schedule(&context), lower(&context);
  // The borders are verified by passes of their own, and MLIR's rules at the
  // end of each half: between any two passes they would cost a quarter of the
  // time.
  schedule.enableVerifier(false);
  lower.enableVerifier(false);
  schedule.enableTiming(passes);
  lower.enableTiming(passes);
  buildSchedulePipeline(schedule, options);
  buildLoweringPipeline(lower, options);
  if (failed(schedule.run(*module)) || failed(mlir::verify(*module)))
    return failure();
  auto step = module->lookupSymbol<mlir::func::FuncOp>("step");
  int64_t scheduledBytes = findMemoryPeak(step).getTotal();
  unsigned recomputed =
      llvm::count_if(step.getOps<aten::CallOp>(), [](aten::CallOp call) {
        return call.getPhase() == aten::Phase::Recompute;
      });
  std::string trace;
  if (!line.trace.empty()) {
    llvm::raw_string_ostream stream(trace);
    writeTrace(step, stream);
  }
  if (failed(lower.run(*module)) || failed(mlir::verify(*module)))
    return failure();
  passes.stop();

  mlir::TimingScope exporting = root.nest("export");
  mlir::FailureOr<planfile::PlanFile> file =
      exportPlan(*module, line.output.getValue());
  if (failed(file))
    return failure();
  exporting.stop();

  mlir::TimingScope verifying = root.nest("verify the plan");
  symbolic::Proof proof = symbolic::verifyPlan(file->plan());
  if (proof.verdict == symbolic::Proof::Refuted)
    return reject(line.output + ": " + proof.message);
  if (!proof) {
    if (!line.unproved)
      return reject(line.output + ": cannot prove the plan: " + proof.message +
                    "; --unproved writes it all the same");
    auto plan = *module->getOps<plan::ModuleOp>().begin();
    plan.setUnproved(proof.message);
    file = exportPlan(plan, line.output.getValue());
    if (failed(file))
      return failure();
  }
  verifying.stop();

  PlanSummary summary = summarize(file->plan());
  summary.scheduledBytes = scheduledBytes;
  summary.recomputed = recomputed;
  if (options.budget && summary.arenaBytes > uint64_t(options.budget))
    return reject("--budget: the plan needs an arena of " +
                  llvm::Twine(summary.arenaBytes) + " bytes, more than " +
                  llvm::Twine(options.budget) +
                  "; what the schedule holds would fit, the temporaries of "
                  "kernels do not");
  if (failed(writeAll(line, *file, summary, trace)))
    return failure();
  printReport(summary, llvm::outs());
  return finishOutput();
}

} // namespace

int main(int argc, char **argv) {
  initTool("fsdp-plan");
  CommandLine line;
  cl::HideUnrelatedOptions(line.category);
  std::string errors;
  llvm::raw_string_ostream stream(errors);
  if (!cl::ParseCommandLineOptions(argc, argv,
                                   "Compiles an exported PyTorch training "
                                   "graph for N ranks: model.pt2 in, plan and "
                                   "report out.\n\nExample: fsdp-plan "
                                   "model.pt2 --ranks 4 -o step.plan\n",
                                   &stream)) {
    llvm::errs() << errors;
    return 1;
  }
  return failed(run(line)) ? 1 : 0;
}
