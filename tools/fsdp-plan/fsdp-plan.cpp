//===- fsdp-plan.cpp - From an exported model to a plan -------------------===//
//
// The whole compiler in one command for people: `.pt2` in, plan file and
// report out, with every verifier on.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"
#include "CommandLine.h"
#include "Compile.h"
#include "Report.h"
#include "Subcommands.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Remarks.h"
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

/// Prints errors, warnings and notes as sentences, with the node that they are
/// about.
LogicalResult printDiagnostic(mlir::Diagnostic &diagnostic) {
  auto print = [](mlir::Diagnostic &part, StringRef kind) {
    llvm::errs() << "fsdp-plan: " << kind << ": "
                 << archive::escape(part.str());
    if (auto node = llvm::dyn_cast<mlir::NameLoc>(part.getLocation()))
      llvm::errs() << " (at '" << archive::escape(node.getName().getValue())
                   << "')";
    llvm::errs() << "\n";
  };
  switch (diagnostic.getSeverity()) {
  case mlir::DiagnosticSeverity::Error:
    print(diagnostic, "error");
    break;
  case mlir::DiagnosticSeverity::Warning:
    print(diagnostic, "warning");
    break;
  case mlir::DiagnosticSeverity::Note:
    print(diagnostic, "note");
    break;
  case mlir::DiagnosticSeverity::Remark:
    return success();
  }
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
LogicalResult writeAll(const CommandLine &line, const Compilation &made) {
  archive::Expected<size_t> written = 0;
  if (!line.output.empty())
    written = made.file.write(line.output);
  if (!line.report.empty() && written)
    written = archive::writeFile(
        line.report, {llvm::formatv("{0:2}\n", toJSON(made.summary)).str()});
  if (!line.trace.empty() && written)
    written = archive::writeFile(line.trace, {made.trace});
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

LogicalResult run(const CommandLine &line) {
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

  mlir::FailureOr<Compilation> made = compile(
      module, {line.options, line.output, line.unproved, !line.trace.empty()},
      root);
  if (failed(made) || failed(writeAll(line, *made)))
    return failure();
  printReport(made->summary, llvm::outs());
  if (line.output.empty())
    llvm::outs()
        << "dry run: the plan is not written; -o step.plan writes it\n";
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
  StringRef word = argc > 1 ? argv[1] : "";
  if (word == "validate")
    return failed(runValidate(argc - 1, argv + 1));
  if (word == "calibrate")
    return failed(runCalibrate(argc - 1, argv + 1));
  CommandLine line;
  return failed(parseCommandLine(argc, argv, line)) || failed(run(line));
}
