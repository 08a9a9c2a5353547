//===- fsdp-opt.cpp - Run passes on a program -----------------------------===//
//
// The project's mlir-opt: reads a program of any level, runs passes, prints.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Conversion/FSDPToPlan/FSDPToPlan.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/Plan/Transforms/Passes.h"
#include "fsdp/InitAllDialects.h"

#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  fsdp::registerFSDPToPlanPasses();
  fsdp::plan::registerPlanPasses();
  fsdp::plan::registerLowerToPlanPipeline();
  mlir::registerTransformsPasses();
  fsdp::registerFSDPPasses();
  fsdp::registerFSDPPipeline();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "fsdp-mlir optimizer driver\n", registry));
}
