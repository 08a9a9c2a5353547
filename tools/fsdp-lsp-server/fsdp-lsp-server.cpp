//===- fsdp-lsp-server.cpp - Editor support -------------------------------===//
//
// The project's mlir-lsp-server: diagnostics, definitions and hovers in
// editors.
//
//===----------------------------------------------------------------------===//

#include "fsdp/InitAllDialects.h"

#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  return mlir::failed(mlir::MlirLspServerMain(argc, argv, registry));
}
