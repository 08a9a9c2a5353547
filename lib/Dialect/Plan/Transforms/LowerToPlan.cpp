//===- LowerToPlan.cpp - From the scheduled level to a plan ---------------===//
//
// The pipeline of all passes that make a plan.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Conversion/FSDPToPlan/FSDPToPlan.h"
#include "fsdp/Dialect/Plan/IR/Plan.h"
#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"

using namespace mlir;
using namespace fsdp;

void plan::buildLowerToPlanPipeline(OpPassManager &pm,
                                    const ConvertFSDPToPlanOptions &options) {
  pm.addPass(createConvertFSDPToPlan(options));
  OpPassManager &nested = pm.nest<plan::ModuleOp>();
  nested.addPass(createFoldViews());
  nested.addPass(createSelectKernels());
  nested.addPass(createFoldCopies());
  nested.addPass(createInsertSync());
  nested.addPass(createAssignMemory());
}

namespace {
struct Options : PassPipelineOptions<Options> {
  PassOptions::Option<aten::Device> device{
      *this, "device", llvm::cl::init(aten::Device::CPU),
      llvm::cl::desc("The device that the plan runs on."),
      llvm::cl::values(clEnumValN(aten::Device::CPU, "cpu", ""),
                       clEnumValN(aten::Device::CUDA, "cuda", ""))};
  PassOptions::Option<Strategy> strategy{
      *this, "strategy", llvm::cl::init(Strategy::FullShard),
      llvm::cl::desc("How the step was sharded, for people to read.")};
};
} // namespace

void plan::registerLowerToPlanPipeline() {
  PassPipelineRegistration<Options>(
      "lower-to-plan", "From the scheduled level to a plan.",
      [](OpPassManager &pm, const Options &options) {
        buildLowerToPlanPipeline(pm, {options.device, options.strategy});
      });
}
