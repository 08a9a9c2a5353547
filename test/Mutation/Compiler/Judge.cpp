//===- Judge.cpp - Who objects to a program -------------------------------===//

#include "Judge.h"

#include "fsdp/InitAllPasses.h"
#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Verifier.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::test;

Judge::Judge(MLIRContext *context, const FSDPPipelineOptions &options)
    : context(context) {
  auto add = [&](const char *name) -> PassManager & {
    passes.emplace_back(name, std::make_unique<PassManager>(context));
    passes.back().second->enableVerifier(false);
    return *passes.back().second;
  };
  add("scheduled").addPass(createVerifyScheduledPass());
  add("futures").addPass(createVerifyFuturesPass());
  add("order").addPass(createVerifyOrderPass());
  add("equivalence").addPass(createVerifyEquivalencePass());
  buildLoweringPipeline(add("lowering"), options.device, options.strategy);
}

Verdict Judge::judge(ModuleOp module) {
  Verdict verdict;
  ScopedDiagnosticHandler handler(context, [&](Diagnostic &diagnostic) {
    if (verdict.sentence.empty())
      verdict.sentence = diagnostic.str();
    return success();
  });
  auto reject = [&](const char *verifier) {
    verdict.verifier = verifier;
    return std::move(verdict);
  };
  if (failed(verify(module)))
    return reject(verdict.sentence.find("does not dominate") ==
                          std::string::npos
                      ? "MLIR"
                      : "parser");
  if (module.getOps<plan::ModuleOp>().empty()) {
    for (auto &[name, pass] : passes)
      if (failed(pass->run(module)))
        return reject(name.c_str());
    if (failed(verify(module)))
      return reject("lowering");
  }
  FailureOr<planfile::PlanFile> file = exportPlan(module, "plan");
  if (failed(file))
    return reject("plan file");
  verdict.sentence = symbolic::verifyPlan(file->plan()).message;
  if (!verdict.sentence.empty())
    return reject("plan-verify");
  verdict.plan = std::move(*file);
  return verdict;
}
