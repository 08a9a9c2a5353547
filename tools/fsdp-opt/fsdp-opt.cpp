//===- fsdp-opt.cpp - Run passes on a program -----------------------------===//
//
// The project's mlir-opt: reads a program of any level, runs passes, prints.
//
//===----------------------------------------------------------------------===//

#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  // For tests of what follows control flow.
  registry.insert<mlir::arith::ArithDialect, mlir::scf::SCFDialect>();
  fsdp::registerAllPasses();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "fsdp-mlir optimizer driver\n", registry));
}
