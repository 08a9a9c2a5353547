//===- fsdp-mutate.cpp - Mistakes in schedules and plans ------------------===//
//
// Makes mutants of a model's schedule or plan and asks all verifiers about
// each: one process for thousands. Prints a line for each, `operation,
// mutation, verifier, sentence, what`; the plans of those that nobody objects
// to go into a folder, and instead of the verifier the line has the name of the
// file there
// (`same` if it is the plan of the model itself).
//
//===----------------------------------------------------------------------===//

#include "Judge.h"
#include "Mutants.h"

#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/InitLLVM.h"

#include <map>

using namespace mlir;
using namespace fsdp;
using namespace fsdp::test;
namespace cl = llvm::cl;

static int reject(const Twine &sentence) {
  llvm::errs() << "fsdp-mutate: error: " << sentence << "\n";
  return 1;
}

int main(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  cl::opt<std::string> input(cl::Positional, cl::Required,
                             cl::desc("<model.pt2>"));
  cl::opt<std::string> pipeline("pipeline", cl::init("ranks=2"),
                                cl::desc("The options of --fsdp-pipeline"));
  cl::opt<std::string> folder("o", cl::Required,
                              cl::desc("Where the plans of survivors go"));
  cl::opt<bool> ofPlan("plan", cl::desc("Damage the plan, not the schedule"));
  cl::opt<unsigned> every("every", cl::init(1), cl::desc("Try one in so many"));
  cl::opt<unsigned> pairs("pairs", cl::init(0),
                          cl::desc("Try so many pairs of mistakes as well"));
  cl::opt<unsigned> seed("seed", cl::init(1), cl::desc("Of the choice"));
  cl::ParseCommandLineOptions(argc, argv);

  DialectRegistry registry;
  registerAllDialects(registry);
  MLIRContext context(registry, MLIRContext::Threading::DISABLED);
  FSDPPipelineOptions options;
  if (std::string error = parsePipelineOptions(pipeline, options);
      !error.empty() || every == 0)
    return reject("bad options: " + error);
  OwningOpRef<ModuleOp> module = importPT2(input, {}, &context);
  PassManager schedule(&context), lower(&context);
  buildSchedulePipeline(schedule, options);
  buildLoweringPipeline(lower, options.device, options.strategy);
  if (!module || failed(schedule.run(*module)) ||
      (ofPlan && failed(lower.run(*module))))
    return 1;

  Judge judge(&context, options);
  OwningOpRef<ModuleOp> original = module->clone();
  Verdict legal = judge.judge(*original);
  if (!legal.plan)
    return reject("the program itself is rejected: " + legal.sentence);
  if (auto written = legal.plan->write(folder + "/original.plan"); !written)
    return reject(written.error().message);

  std::map<std::vector<uint8_t>, std::string> plans = {
      {legal.plan->bytes(), "same"}};
  std::vector<Mutant> all = makeMutants(*module, seed);
  std::vector<Mutant> chosen = pairUp(all, pairs, seed);
  for (Mutant &mutant : choose(std::move(all), every, seed))
    chosen.push_back(std::move(mutant));
  for (const Mutant &mutant : chosen) {
    OwningOpRef<ModuleOp> copy = module->clone();
    mutant.apply(listOperations(*copy));
    Verdict verdict = judge.judge(*copy);
    if (verdict.plan) {
      auto [plan, isNew] = plans.try_emplace(
          verdict.plan->bytes(), std::to_string(plans.size()) + ".plan");
      verdict.verifier = plan->second;
      if (isNew)
        if (auto written = verdict.plan->write(folder + "/" + plan->second);
            !written)
          return reject(written.error().message);
    }
    std::string sentence =
        verdict.sentence.substr(0, verdict.sentence.find('\n'));
    llvm::outs() << mutant.op << "\t" << mutant.mutation << "\t"
                 << verdict.verifier << "\t" << sentence << "\t" << mutant.what
                 << "\n";
    llvm::outs().flush();
  }
  return 0;
}
