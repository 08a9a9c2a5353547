//===- Translation.cpp - fsdp-translate's side of plan files --------------===//

#include "fsdp/InitAllDialects.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/Tools/mlir-translate/Translation.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"

using namespace mlir;

void fsdp::registerPlanTranslations() {
  static TranslateFromMLIRRegistration exporter(
      "export-plan", "write the plan file of a plan.module",
      [](mlir::ModuleOp module, raw_ostream &output) -> LogicalResult {
        FailureOr<planfile::PlanFile> file = exportPlan(module, "plan");
        if (failed(file))
          return failure();
        output.write(reinterpret_cast<const char *>(file->bytes().data()),
                     file->bytes().size());
        return success();
      },
      [](DialectRegistry &registry) { registerAllDialects(registry); });

  static TranslateToMLIRRegistration importer(
      "import-plan", "read a plan file",
      [](const std::shared_ptr<llvm::SourceMgr> &source,
         MLIRContext *context) -> OwningOpRef<Operation *> {
        const llvm::MemoryBuffer &buffer =
            *source->getMemoryBuffer(source->getMainFileID());
        planfile::Expected<planfile::PlanFile> file =
            planfile::PlanFile::fromBytes(
                buffer.getBufferIdentifier().str(),
                std::vector<uint8_t>(buffer.getBufferStart(),
                                     buffer.getBufferEnd()));
        if (!file) {
          emitError(UnknownLoc::get(context)) << file.error().message;
          return nullptr;
        }
        OwningOpRef<mlir::ModuleOp> module = importPlan(*file, context);
        return module ? OwningOpRef<Operation *>(module.release()) : nullptr;
      },
      [](DialectRegistry &registry) { registerAllDialects(registry); });
}
