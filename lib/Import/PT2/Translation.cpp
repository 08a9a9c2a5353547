//===- Translation.cpp - fsdp-translate --import-pt2 ----------------------===//
//
// Registers the importer with mlir-translate's registry.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Import/PT2/ImportPT2.h"

#include "mlir/IR/AsmState.h"
#include "mlir/Tools/mlir-translate/Translation.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/SourceMgr.h"

using namespace mlir;

void fsdp::registerImportPT2Translation() {
  static llvm::cl::opt<std::string> bind(
      "bind", llvm::cl::value_desc("hint|batch=16,..."),
      llvm::cl::desc("What --import-pt2 binds symbolic sizes to: the sizes of "
                     "the captured example, or these"));
  static TranslateRegistration registration(
      "import-pt2", "Import an exported program",
      [](const std::shared_ptr<llvm::SourceMgr> &sources, raw_ostream &output,
         MLIRContext *context) -> LogicalResult {
        // The file's own sentences have no place in a text to point at.
        ScopedDiagnosticHandler handler(context, [](Diagnostic &diagnostic) {
          llvm::errs() << (diagnostic.getSeverity() == DiagnosticSeverity::Error
                               ? "error: "
                               : "warning: ")
                       << diagnostic << '\n';
        });
        StringRef path = sources->getMemoryBuffer(sources->getMainFileID())
                             ->getBufferIdentifier();
        OwningOpRef<ModuleOp> module = importPT2(path, {bind}, context);
        if (!module)
          return failure();
        module->print(output, OpPrintingFlags().printNameLocAsPrefix());
        output << '\n';
        return success();
      });
}
