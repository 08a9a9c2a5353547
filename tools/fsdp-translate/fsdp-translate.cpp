//===- fsdp-translate.cpp - Between MLIR and files of other kinds ---------===//
//
// The project's mlir-translate: one registered translation per direction.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"

#include "fsdp/Import/PT2/ImportPT2.h"
#include "fsdp/Target/Plan/PlanTarget.h"

#include "mlir/IR/AsmState.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Tools/mlir-translate/Translation.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/SourceMgr.h"

namespace cl = llvm::cl;

int main(int argc, char **argv) {
  fsdp::initTool("fsdp-translate");
  fsdp::registerImportPT2Translation();
  fsdp::registerPlanTranslations();
  mlir::registerAsmPrinterCLOptions();
  mlir::registerMLIRContextCLOptions();
  mlir::registerTranslationCLOptions();
  cl::opt<std::string> input(cl::Positional, cl::desc("<input file>"),
                             cl::init("-"));
  cl::opt<std::string> output("o", cl::desc("Where the result goes"),
                              cl::value_desc("file"), cl::init("-"));
  cl::opt<const mlir::Translation *, false, mlir::TranslationParser>
      translation("", cl::desc("What to translate"), cl::Required);
  if (mlir::failed(
          fsdp::parseOptions(argc, argv, "fsdp-mlir translation driver\n")))
    return 1;
  return mlir::failed(fsdp::filterFile(
      input, output,
      [&](std::unique_ptr<llvm::MemoryBuffer> buffer, llvm::raw_ostream &os) {
        mlir::MLIRContext context;
        auto sources = std::make_shared<llvm::SourceMgr>();
        sources->AddNewSourceBuffer(std::move(buffer), llvm::SMLoc());
        mlir::SourceMgrDiagnosticHandler handler(*sources, &context);
        return (*translation)(sources, os, &context);
      }));
}
