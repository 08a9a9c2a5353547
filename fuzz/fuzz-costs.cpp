//===- fuzz-costs.cpp - Profiles and hardware files -----------------------===//
//
// One target for each: durations of a real step by the file, the schedule that
// follows from them, and the timeline's simulation inside of it. What is read
// is FSDP_FUZZ_COSTS, an option of the pass that reads it.
//
//===----------------------------------------------------------------------===//

#include "Compiler.h"
#include "InputFile.h"
#include "fsdp/Import/PT2/ImportPT2.h"

using namespace fsdp;
using namespace fsdp::fuzz;

/// A step of the scheduled level.
static mlir::OwningOpRef<mlir::ModuleOp> makeStep(mlir::MLIRContext *context) {
  mlir::OwningOpRef<mlir::ModuleOp> module =
      importPT2(FSDP_FIXTURES "/role_chain.pt2", {}, context);
  FSDPPipelineOptions options;
  options.ranks = 2;
  mlir::PassManager passes(context);
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
      "fsdp-annotate-costs{" FSDP_FUZZ_COSTS "=" + file.path() +
      "},fsdp-schedule{algorithm=list},"
      "fsdp-apply-schedule";
  file.write(data, size);
  mlir::OwningOpRef<mlir::ModuleOp> copy = step->clone();
  compiler.succeeds([&] { return compiler.passes(pipeline).run(*copy); });
  return 0;
}
