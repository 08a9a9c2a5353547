//===- Degrade.cpp - Plans for less of the machine ------------------------===//

#include "Degrade.h"
#include "../Tool.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Pipelines/Pipelines.h"
#include "fsdp/Planner/Hardware.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

using namespace fsdp;
using llvm::StringRef;

/// What of the options is other; or why there is no plan.
struct Change {
  std::vector<GivenOption> options;
  std::string error;
};

/// Of a host less: the outermost axis of the mesh has as many ranks as there
/// still are for it, or all ranks that there are are one group.
static Change removeHost(const FSDPPipelineOptions &options) {
  auto hardware = planner::loadHardware(getHardware(options), options.whatIf);
  if (!hardware)
    return {{}, hardware.error().message};
  if (!hardware->hasNetwork || hardware->nodeRanks >= options.ranks)
    return {{},
            "the " + std::to_string(options.ranks) + " ranks are on one host"};
  int64_t ranks = options.ranks - hardware->nodeRanks;
  MeshSizes mesh = options.mesh;
  auto outer =
      llvm::find_if(mesh.axes, [](auto &axis) { return axis.second > 1; });
  if (outer == mesh.axes.end())
    return {{{"ranks", std::to_string(ranks)}}, ""};
  int64_t others = options.ranks / outer->second;
  outer->second = ranks / others;
  if (!outer->second)
    return {{},
            "a copy of the parameters needs " + std::to_string(others) +
                " ranks"};
  return {
      {{"mesh", spellOption(mesh)}, {"ranks", std::to_string(mesh.getRanks())}},
      ""};
}

static Change removeMemory(const FSDPPipelineOptions &options) {
  if (!options.budget)
    return {{}, "there is no --budget"};
  int64_t bytes = options.budget - options.budget / 10;
  return {{{"budget", std::to_string(bytes)}}, ""};
}

/// One plan; a line about it.
static void writeOne(const CommandLine &line, mlir::ModuleOp module,
                     StringRef what, Change change, mlir::TimingScope &timing) {
  std::string path = getDegradedPath(line.output, what);
  CompileRequest request{{}, path, line.unproved};
  std::string error = change.error;
  if (error.empty())
    error = readOptions(overrideOptions(line.given, std::move(change.options)),
                        line.isTraced(), request.options);
  if (error.empty()) {
    mlir::ScopedDiagnosticHandler handler(
        module.getContext(), [&](mlir::Diagnostic &diagnostic) {
          if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error &&
              error.empty())
            error = diagnostic.str();
          return mlir::success();
        });
    mlir::OwningOpRef<mlir::ModuleOp> copy = module.clone();
    mlir::FailureOr<Compilation> made = compile(*copy, request, timing);
    if (mlir::succeeded(made)) {
      auto written = made->file.write(path);
      if (written) {
        const PlanSummary &summary = made->summary;
        int64_t time = summary.getStep().predicted.nanoseconds;
        llvm::outs() << llvm::formatv(
            "{0}: {1} ranks, {2}{3}\n", path, summary.ranks,
            spellBytes(summary.arenaBytes), time ? ", " + spellTime(time) : "");
        return;
      }
      error = written.error().message;
    }
  }
  llvm::outs() << path
               << ": none: " << (error.empty() ? "cannot be compiled" : error)
               << "\n";
}

void fsdp::writeDegraded(const CommandLine &line, mlir::ModuleOp module,
                         mlir::TimingScope &timing) {
  writeOne(line, module, "budget", removeMemory(line.options), timing);
  writeOne(line, module, "hosts", removeHost(line.options), timing);
}
