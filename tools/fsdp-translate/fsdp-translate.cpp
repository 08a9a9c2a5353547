//===- fsdp-translate.cpp - Between MLIR and files of other kinds ---------===//
//
// The project's mlir-translate: one registered translation per direction.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/Tools/mlir-translate/MlirTranslateMain.h"

int main(int argc, char **argv) {
  fsdp::registerImportPT2Translation();
  fsdp::registerPlanTranslations();
  return mlir::failed(
      mlir::mlirTranslateMain(argc, argv, "fsdp-mlir translation driver"));
}
