//===- fsdp-plan.cpp - From an exported model to a plan -------------------===//
//
// The whole compiler in one command for people: `.pt2` in, plan file and
// report out, with every verifier on.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"
#include "CommandLine.h"
#include "Report.h"
#include "Trace.h"

#include "fsdp/Analysis/Memory.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
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

#include <cstdlib>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace fsdp;
using llvm::StringRef;
using mlir::failed;
using mlir::failure;
using mlir::LogicalResult;
using mlir::success;

namespace {

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

/// The most that a program holds, in bytes.
mlir::FailureOr<int64_t> findPeak(mlir::ModuleOp module) {
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
mlir::FailureOr<int64_t> schedule(mlir::ModuleOp &module,
                                  FSDPPipelineOptions options,
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
        llvm::errs() << "fsdp-plan: note: the budget is " << budget
                     << " bytes; the schedule holds " << excess
                     << " more than what is counted here, such as units that "
                        "are gathered ahead\n";
      return failure();
    }
    mlir::FailureOr<int64_t> chosen = findPeak(module);
    if (failed(chosen) || failed(rest.run(module)) ||
        failed(mlir::verify(module)))
      return failure();
    mlir::FailureOr<int64_t> peak = findPeak(module);
    if (failed(peak) || !budget || *peak <= budget)
      return peak;
    excess = *peak - *chosen;
    options.remat.budget.bytes =
        std::max<int64_t>(*chosen - (*peak - budget), 1);
    module = source.clone();
  }
}

LogicalResult run(const CommandLine &line) {
  const FSDPPipelineOptions &options = line.options;
  mlir::DefaultTimingManager timings;
  timings.setEnabled(line.timing);
  timings.setDisplayMode(mlir::DefaultTimingManager::DisplayMode::Tree);
  mlir::TimingScope root = timings.getRootScope();

  mlir::DialectRegistry registry;
  registerAllDialects(registry);
  // The IR ends with the process: to take it apart first would only take time.
  static auto &context =
      *new mlir::MLIRContext(registry, mlir::MLIRContext::Threading::DISABLED);
  context.printOpOnDiagnostic(false); // one sentence, and where
  mlir::ScopedDiagnosticHandler handler(&context, printDiagnostic);
  if (failed(enableRemarks(context, line.remarks)))
    return failure();

  mlir::TimingScope importing = root.nest("import");
  static mlir::ModuleOp module =
      importPT2(line.input, ImportOptions{line.bind}, &context).release();
  if (!module || failed(importOthers(line, module)))
    return failure();
  importing.stop();

  mlir::TimingScope passes = root.nest("passes");
  mlir::FailureOr<int64_t> scheduledBytes = schedule(module, options, passes);
  if (failed(scheduledBytes))
    return failure();
  auto programs = getPrograms(module);
  if (failed(programs))
    return failure();
  mlir::func::FuncOp step = programs->front();
  llvm::StringMap<int64_t> predicted; // by program
  for (mlir::func::FuncOp program : *programs)
    if (!options.hardware.empty() || options.schedule == Preset::List)
      predicted[program.getSymName()] = predictTime(program);
  unsigned recomputed =
      llvm::count_if(step.getOps<aten::CallOp>(), [](aten::CallOp call) {
        return call.getPhase() == aten::Phase::Recompute;
      });
  std::string trace;
  if (!line.trace.empty()) {
    llvm::raw_string_ostream stream(trace);
    writeTrace(step, stream);
  }
  mlir::PassManager lower(&context);
  lower.enableVerifier(false);
  lower.enableTiming(passes);
  buildLoweringPipeline(lower, options.device, options.strategy);
  if (failed(lower.run(module)) || failed(mlir::verify(module)))
    return failure();
  passes.stop();

  mlir::TimingScope exporting = root.nest("export");
  mlir::FailureOr<planfile::PlanFile> file = exportPlan(module, line.output);
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
    auto plan = *module.getOps<plan::ModuleOp>().begin();
    plan.setUnproved(proof.message);
    file = exportPlan(plan, line.output);
    if (failed(file))
      return failure();
  }
  verifying.stop();

  PlanSummary summary = summarize(file->plan());
  summary.scheduledBytes = *scheduledBytes;
  summary.recomputed = recomputed;
  for (PlanSummary::Program &program : summary.programs)
    program.nanoseconds = predicted.lookup(program.name);
  if (options.budget && summary.arenaBytes > uint64_t(options.budget))
    return reject("--budget: the plan needs an arena of " +
                  llvm::Twine(summary.arenaBytes) + " bytes, more than " +
                  llvm::Twine(options.budget.bytes) +
                  "; what the schedule holds would fit, alignment and gaps "
                  "between buffers do not");
  if (failed(writeAll(line, *file, summary, trace)))
    return failure();
  printReport(summary, llvm::outs());
  return finishOutput();
}

} // namespace

/// An import touches a hundred megabytes, most of them for IR that stays: in
/// large pages, in one heap that gives nothing back, a plan takes a tenth less
/// time. Where the system has none, nothing changes.
static void useLargePages() {
#ifdef __GLIBC__
  constexpr size_t bytes = size_t(1) << 30; // of addresses
  auto *begin = static_cast<char *>(::sbrk(0));
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
  void *volatile heap = std::malloc(bytes); // which grows the heap
  std::free(heap);
  uintptr_t first = llvm::alignTo(reinterpret_cast<uintptr_t>(begin), 4096),
            last = reinterpret_cast<uintptr_t>(::sbrk(0));
  if (first < last)
    (void)::madvise(reinterpret_cast<void *>(first), last - first,
                    MADV_HUGEPAGE);
#endif
}

int main(int argc, char **argv) {
  useLargePages();
  initTool("fsdp-plan");
  CommandLine line;
  return failed(parseCommandLine(argc, argv, line)) || failed(run(line));
}
