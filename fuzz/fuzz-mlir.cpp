//===- fuzz-mlir.cpp - Text of our dialects through every pass ------------===//
//
// Parser and verifier, then each pass and pipeline on the program as it is, and
// what becomes of a plan: export, proof, and import again.
//
//===----------------------------------------------------------------------===//

#include "Compiler.h"
#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/Parser/Parser.h"
#include "llvm/Support/Regex.h"

using namespace fsdp;
using namespace fsdp::fuzz;

static constexpr const char *pipelines[] = {
    // The aten level.
    "aten-chunk-loss{chunks=3}",
    "aten-retarget-device",
    "fsdp-assign-units",
    "fsdp-assign-units{wrap=size:8}",
    "fsdp-assign-units{wrap=scope:.*}",
    "fsdp-assign-units{wrap=class:Block}",
    "fsdp-shard{ranks=4}",
    "fsdp-shard{ranks=3 strategy=no_shard storage-dtype=bf16 keep-output=true}",
    // The logical level.
    "fsdp-bucket{bucket=merge:units:2}",
    "fsdp-reshard-policy{reshard-after-forward=2}",
    "fsdp-reshard-policy{reshard-after-forward=false}",
    "fsdp-insert-optimizer",
    "fsdp-insert-optimizer{optimizer=sgd momentum=true}",
    "fsdp-hoist-constants{max-bytes=64}",
    "fsdp-price-decisions{hardware=h100}",
    "fsdp-remat{remat=scope:.*}",
    "fsdp-remat{remat=budget:64}",
    "fsdp-verify-logical",
    "fsdp-async",
    "fsdp-auto{auto=true evaluations=50 hardware=h100}",
    ("fsdp-reshard-policy{reshard-after-forward=2},"
     "fsdp-auto{auto=true evaluations=50 hardware=h100}"),
    // The scheduled level.
    "fsdp-prefetch{forward-prefetch=2}",
    "fsdp-prefetch{backward-prefetch=backward_post}",
    "fsdp-bucket{bucket=units:2}",
    "fsdp-bucket{bucket=copy:bytes:64}",
    "fsdp-limit-in-flight",
    "fsdp-limit-in-flight{bytes=64}",
    "fsdp-place-reduce-waits{reduce-wait=backward}",
    "fsdp-place-reduce-waits{reduce-wait=next}",
    "fsdp-annotate-costs{hardware=h100}",
    "fsdp-schedule{algorithm=program}",
    "fsdp-schedule{algorithm=list budget=1024}",
    "fsdp-apply-schedule",
    "fsdp-verify-scheduled",
    "fsdp-verify-futures",
    "fsdp-verify-order",
    "fsdp-verify-memory{budget=1024}",
    "fsdp-verify-equivalence",
    "plan-compute-meaning",
    "convert-fsdp-to-plan",
    "lower-to-plan",
    // The plan.
    "plan.module(plan-fold-copies)",
    "plan.module(plan-fold-views)",
    "plan.module(plan-select-kernels)",
    "plan.module(plan-assign-memory)",
    "plan.module(plan-insert-sync)",
    "plan.module(plan-verify)",
    // From one end to the other.
    "fsdp-pipeline{ranks=4 schedule=list}",
    "fsdp-pipeline{ranks=4 auto=true evaluations=50}",
    "fsdp-pipeline{ranks=2 reshard-after-forward=2 bucket=copy:units:2}",
};

/// A plan that can be exported can be imported again, and is the same then.
static void exportAndImport(Compiler &compiler, mlir::ModuleOp module) {
  auto plans = module.getOps<plan::ModuleOp>();
  if (plans.empty())
    return;
  mlir::FailureOr<planfile::PlanFile> file = mlir::failure();
  if (!compiler.succeeds([&] { return file = exportPlan(module, "plan"); }))
    return;
  static_cast<void>(symbolic::verifyPlan(file->plan()));
  mlir::OwningOpRef<mlir::ModuleOp> imported;
  if (!compiler.succeeds([&] {
        imported = importPlan(*file, &compiler.context);
        return mlir::success(bool(imported));
      }))
    return; // a schema that the file check does not read
  mlir::FailureOr<planfile::PlanFile> again = exportPlan(*imported, "plan");
  if (mlir::failed(again) || again->bytes() != file->bytes())
    report("a plan that is another after import and export");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Compiler &compiler = Compiler::get();
  // With a zero after it, as files are read.
  std::string text(reinterpret_cast<const char *>(data), size);
  if (llvm::StringRef(text).starts_with("ML\xefR"))
    return -1; // MLIR's own bytecode
  // The parser of MLIR 22 asks for the width of `index` here, which has none:
  // llvm/llvm-project#179045.
  if (llvm::Regex("array[[:space:]]*<[[:space:]]*index").match(text))
    return -1;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  if (!compiler.succeeds([&] {
        module = mlir::parseSourceString<mlir::ModuleOp>(
            text, mlir::ParserConfig(&compiler.context));
        return mlir::success(bool(module));
      }))
    return 0;
  for (const char *pipeline : pipelines) {
    mlir::OwningOpRef<mlir::ModuleOp> copy = module->clone();
    if (compiler.succeeds([&] { return compiler.passes(pipeline).run(*copy); }))
      exportAndImport(compiler, *copy);
  }
  return 0;
}
