//===- fuzz-costs.cpp - Profiles, hardware files and decisions ------------===//
//
// One target for each: durations of a real step by the file, the schedule that
// follows from them, and the timeline's simulation inside of it; or a step made
// by the decisions of the file. What is read is FSDP_FUZZ_COSTS, an option of
// the pass that reads it.
//
//===----------------------------------------------------------------------===//

#include "Compiler.h"
#include "InputFile.h"
#include "fsdp/Import/PT2/ImportPT2.h"

using namespace fsdp;
using namespace fsdp::fuzz;

static const bool areDecisions =
    llvm::StringRef(FSDP_FUZZ_COSTS) == "decisions";

/// A step of the scheduled level, or of the logical one if there are decisions
/// to be made.
static mlir::OwningOpRef<mlir::ModuleOp> makeStep(mlir::MLIRContext *context) {
  mlir::OwningOpRef<mlir::ModuleOp> module =
      importPT2(FSDP_FIXTURES "/role_chain.pt2", {}, context);
  FSDPPipelineOptions options;
  options.ranks = 4;
  if (areDecisions)
    options.reshardAfterForward.group = 2; // pieces may be kept
  mlir::PassManager passes(context);
  if (areDecisions)
    buildLogicalPipeline(passes, options);
  else
    buildSchedulePipeline(passes, options);
  if (!module || mlir::failed(passes.run(*module)))
    report("a fixture that does not compile");
  return module;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const InputFile file("costs");
  static Compiler compiler;
  static mlir::OwningOpRef<mlir::ModuleOp> step = makeStep(&compiler.context);
  static const std::string pipeline =
      areDecisions
          ? "fsdp-auto{decisions=" + file.path() +
                "},fsdp-apply-schedule,fsdp-verify-scheduled,"
                "fsdp-verify-futures,fsdp-verify-order,fsdp-verify-equivalence"
          : "fsdp-annotate-costs{" FSDP_FUZZ_COSTS "=" + file.path() +
                "},fsdp-schedule{algorithm=list},"
                "fsdp-apply-schedule";
  file.write(data, size);
  mlir::OwningOpRef<mlir::ModuleOp> copy = step->clone();
  compiler.succeeds([&] { return compiler.passes(pipeline).run(*copy); });
  return 0;
}
