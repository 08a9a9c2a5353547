//===- fsdp-plan.cpp - From an exported model to a plan -------------------===//
//
// The whole compiler in one command for people: `.pt2` in, plan file and
// report out, with every verifier on.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"
#include "CommandLine.h"
#include "Compare.h"
#include "Compile.h"
#include "Degrade.h"
#include "Diagnostics.h"
#include "Diff.h"
#include "Page.h"
#include "Report.h"
#include "Subcommands.h"

#include "fsdp/Archive/WriteFile.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"

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

/// Writes what was made of a plan, each if there is a path for it.
LogicalResult writeAll(const CommandLine &line, const Compilation &made) {
  archive::Expected<size_t> written = 0;
  if (!line.output.empty())
    written = made.file.write(line.output);
  if (line.options.automatic && !line.options.decisions.empty() && written)
    written = archive::writeFile(line.options.decisions, {made.decisions});
  if (!line.report.empty() && written)
    written = archive::writeFile(
        line.report, {llvm::formatv("{0:2}\n", toJSON(made.summary)).str()});
  if (!line.trace.empty() && written)
    written = archive::writeFile(
        line.trace,
        {"{\"traceEvents\": ", made.timelines.front().second, "}\n"});
  if (!line.html.empty() && written)
    written = archive::writeFile(
        line.html, {makePage(llvm::sys::path::filename(line.input), made)});
  return written ? success() : reject(written.error().message);
}

LogicalResult run(const CommandLine &line) {
  mlir::DefaultTimingManager timings;
  timings.setEnabled(line.timing);
  timings.setDisplayMode(mlir::DefaultTimingManager::DisplayMode::Tree);
  mlir::TimingScope root = timings.getRootScope();

  mlir::MLIRContext &context = getContext();
  mlir::ScopedDiagnosticHandler handler(&context, printDiagnostic);
  if (failed(enableRemarks(context, line.remarks)))
    return failure();
  mlir::TimingScope importing = root.nest("import");
  mlir::ModuleOp module = importPrograms(line);
  if (!module)
    return failure();
  importing.stop();

  mlir::OwningOpRef<mlir::ModuleOp> imported; // compilation changes it
  if (line.degrade)
    imported = module.clone();
  const std::string &name = line.output.empty() ? line.input : line.output;
  mlir::FailureOr<Compilation> made = compile(
      module, {line.options, name, line.unproved, line.isTraced(), true}, root);
  if (failed(made) || failed(writeAll(line, *made)))
    return failure();
  printReport(made->summary, llvm::outs());
  if (line.output.empty())
    llvm::outs()
        << "dry run: the plan is not written; -o step.plan writes it\n";
  if (line.degrade)
    writeDegraded(line, *imported, root);
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
  if (word == "--help-json")
    return failed(printOptionTable());
  if (word == "validate")
    return failed(runValidate(argc - 1, argv + 1));
  if (word == "calibrate")
    return failed(runCalibrate(argc - 1, argv + 1));
  if (word == "compare")
    return failed(compareSchedules(argc - 1, argv + 1));
  if (word == "diff")
    return diffPlans(argc - 1, argv + 1);
  CommandLine line;
  return failed(parseCommandLine(argc, argv, line)) || failed(run(line));
}
