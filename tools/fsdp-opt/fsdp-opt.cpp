//===- fsdp-opt.cpp - Run passes on a program -----------------------------===//
//
// The project's mlir-opt: reads a program of any level, runs passes, prints.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"

#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"

#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  fsdp::initTool("fsdp-opt");
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  fsdp::registerAllPasses();
  auto [input, output] = mlir::registerAndParseCLIOptions(
      argc, argv, "fsdp-mlir optimizer driver\n", registry);
  auto config = mlir::MlirOptMainConfig::createFromCLOptions();
  if (config.shouldShowDialects() || config.shouldListPasses()) // reads nothing
    return mlir::failed(mlir::MlirOptMain(argc, argv, input, output, registry));
  return mlir::failed(fsdp::filterFile(
      input, output,
      [&](std::unique_ptr<llvm::MemoryBuffer> buffer, llvm::raw_ostream &os) {
        return mlir::MlirOptMain(os, std::move(buffer), registry, config);
      }));
}
