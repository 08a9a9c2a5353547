//===- fsdp-opt.cpp - Run passes on a program -----------------------------===//
//
// The project's mlir-opt: reads a program of any level, runs passes, prints.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/InitAllDialects.h"

#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  mlir::registerTransformsPasses();
  fsdp::registerFSDPPasses();
  fsdp::registerFSDPPipeline();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "fsdp-mlir optimizer driver\n", registry));
}
