//===- fsdp-lsp-server.cpp - Editor support -------------------------------===//
//
// The project's mlir-lsp-server: diagnostics, definitions and hovers in
// editors.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"

#include "fsdp/InitAllDialects.h"

#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"

int main(int argc, char **argv) {
  fsdp::initTool("fsdp-lsp-server");
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  return mlir::failed(mlir::MlirLspServerMain(argc, argv, registry));
}
