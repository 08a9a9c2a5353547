//===- Degrade.cpp - Plans for less of the machine ------------------------===//

#include "Degrade.h"
#include "../Tool.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Pipelines/Pipelines.h"
#include "fsdp/Planner/Hardware.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

using namespace fsdp;
using llvm::StringRef;

/// Of a host less: as many replicas as there are still ranks for, or all ranks
/// that there are in one group. Returns what is wrong, or nothing.
static std::string removeHost(FSDPPipelineOptions &options) {
  auto hardware = planner::loadHardware(getHardware(options), options.whatIf);
  if (!hardware)
    return hardware.error().message;
  if (!hardware->hasNetwork || hardware->nodeRanks >= options.ranks)
    return "the " + std::to_string(options.ranks) + " ranks are on one host";
  int64_t ranks = options.ranks - hardware->nodeRanks;
  if (options.mesh.replicate > 1) {
    options.mesh.replicate = ranks / options.mesh.shard;
    ranks = options.mesh.replicate * options.mesh.shard;
    if (!ranks)
      return "a copy of the parameters needs " +
             std::to_string(options.mesh.shard) + " ranks";
    // One copy is no hybrid.
    if (options.mesh.replicate == 1 &&
        options.strategy == Strategy::HybridShard)
      options.strategy = Strategy::FullShard;
    if (options.mesh.replicate == 1 &&
        options.strategy == Strategy::HybridShardZero2)
      options.strategy = Strategy::ShardGradOp;
  } else if (options.mesh.shard) {
    options.mesh.shard = ranks;
  }
  options.ranks = ranks;
  return "";
}

static std::string removeMemory(FSDPPipelineOptions &options) {
  if (!options.budget)
    return "there is no --budget";
  options.budget.bytes -= options.budget.bytes / 10;
  return "";
}

/// One plan, of options that are changed; a line about it.
static void writeOne(const CommandLine &line, mlir::ModuleOp module,
                     StringRef what,
                     std::string (*change)(FSDPPipelineOptions &),
                     mlir::TimingScope &timing) {
  std::string path = getDegradedPath(line.output, what);
  CompileRequest request{line.options, path, line.unproved};
  std::string error = change(request.options);
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
  writeOne(line, module, "budget", removeMemory, timing);
  writeOne(line, module, "hosts", removeHost, timing);
}
