//===- fsdp-reduce.cpp - Make a failing program small ---------------------===//
//
// The project's mlir-reduce: shrinks a program while a script still objects.
//
//===----------------------------------------------------------------------===//

#include "Reduction.h"

#include "../Tool.h"

#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"

#include "mlir/IR/MLIRContext.h"
#include "mlir/Tools/mlir-reduce/MlirReduceMain.h"

int main(int argc, char **argv) {
  fsdp::initTool("fsdp-reduce");
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  fsdp::registerReduction();
  fsdp::registerAllPasses(); // for --opt-reduction-pass
  mlir::MLIRContext context(registry);
  return mlir::failed(mlir::mlirReduceMain(argc, argv, context));
}
