//===- fuzz-pt2.cpp - Archives through the whole compiler -----------------===//
//
// Import, every pass to a plan with a few sets of options, export, proof.
//
//===----------------------------------------------------------------------===//

#include "ArchiveMutator.h"
#include "Compiler.h"
#include "InputFile.h"
#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/IR/Verifier.h"

using namespace fsdp;
using namespace fsdp::fuzz;

// Together they reach every pass.
static constexpr const char *pipelines[] = {
    "fsdp-pipeline{ranks=4}",
    "fsdp-pipeline{ranks=3 strategy=shard_grad_op wrap=size:64 optimizer=sgd "
    "keep-output=true storage-dtype=bf16 remat=scope:.* "
    "schedule=list}",
    ("fsdp-pipeline{ranks=4 device=cuda reshard-after-forward=2 "
     "bucket=copy:units:2 remat=budget:1000}"),
};

static void compile(Compiler &compiler, mlir::ModuleOp module,
                    const char *pipeline) {
  mlir::OwningOpRef<mlir::ModuleOp> copy = module.clone();
  mlir::PassManager &passes = compiler.passes(pipeline);
  passes.enableVerifier(false); // as fsdp-plan: at the end
  mlir::FailureOr<planfile::PlanFile> plan = mlir::failure();
  if (compiler.succeeds([&] { return passes.run(*copy); }) &&
      compiler.succeeds([&] { return mlir::verify(*copy); }) &&
      compiler.succeeds([&] { return plan = exportPlan(*copy, "plan"); }))
    static_cast<void>(symbolic::verifyPlan(plan->plan()));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const InputFile file("model.pt2");
  file.write(data, size);
  Compiler &compiler = Compiler::get();
  for (const char *bind : {"", "hint"}) {
    mlir::OwningOpRef<mlir::ModuleOp> module;
    if (!compiler.succeeds([&] {
          module = importPT2(file.path(), {bind}, &compiler.context);
          return mlir::success(bool(module));
        }))
      return 0;
    // With symbols there is nothing to compile until they are bound.
    if (!*bind && (*module)->hasAttr(aten::ATenDialect::getSymbolsAttrName()))
      continue;
    for (const char *pipeline : pipelines)
      compile(compiler, *module, pipeline);
    break;
  }
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t maxSize,
                               unsigned seed) {
  Random random(seed);
  std::string file(reinterpret_cast<const char *>(data), size);
  return putInput(data, maxSize, mutateArchive(file, random, maxSize));
}

size_t LLVMFuzzerCustomCrossOver(const uint8_t *data1, size_t size1,
                                 const uint8_t *data2, size_t size2,
                                 uint8_t *out, size_t maxSize, unsigned seed) {
  Random random(seed);
  std::string file(reinterpret_cast<const char *>(data1), size1);
  std::string result = spliceArchive(
      file, {reinterpret_cast<const char *>(data2), size2}, random);
  return putInput(out, maxSize, result.size() > maxSize ? file : result);
}
