//===- fsdp-opt.cpp - Run passes on a program -----------------------------===//
//
// The project's mlir-opt: reads a program of any level, runs passes, prints.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "llvm/ADT/StringExtras.h"

/// Lines, each for a terminal: passes speak of names that come from outside.
static std::string escapeLines(llvm::StringRef text) {
  return llvm::join(llvm::map_range(llvm::split(text, '\n'),
                                    [](llvm::StringRef line) {
                                      return fsdp::archive::escape(line);
                                    }),
                    "\n");
}

/// A place and a sentence, without the line of the program: that of a function
/// has all of its arguments.
static void print(mlir::Diagnostic &diagnostic) {
  constexpr const char *kinds[] = {"note", "warning", "error", "remark"};
  if (auto place =
          diagnostic.getLocation()->findInstanceOf<mlir::FileLineColLoc>())
    llvm::errs() << fsdp::archive::escape(place.getFilename().getValue()) << ":"
                 << place.getLine() << ":" << place.getColumn() << ": ";
  llvm::errs() << kinds[unsigned(diagnostic.getSeverity())] << ": "
               << escapeLines(diagnostic.str()) << "\n";
  for (mlir::Diagnostic &note : diagnostic.getNotes())
    print(note);
}

/// An error is a sentence and a place. MLIR would print the operation as well,
/// and with it the whole step.
static void printNoOperations() {
  auto *option = static_cast<llvm::cl::opt<bool> *>(
      llvm::cl::getRegisteredOptions().lookup("mlir-print-op-on-diagnostic"));
  option->setValue(false);
}

int main(int argc, char **argv) {
  fsdp::initTool("fsdp-opt");
  mlir::DialectRegistry registry;
  fsdp::registerAllDialects(registry);
  fsdp::registerAllPasses();
  std::string header =
      mlir::registerCLIOptions("fsdp-mlir optimizer driver\n", registry);
  if (mlir::failed(fsdp::checkOptions(argc, argv)))
    return 1;
  printNoOperations();
  auto [input, output] = mlir::parseCLIOptions(argc, argv, header);
  auto config = mlir::MlirOptMainConfig::createFromCLOptions();
  config.setPassPipelineSetupFn([options = config](mlir::PassManager &passes) {
    if (!options.shouldVerifyDiagnostics())
      passes.getContext()->getDiagEngine().registerHandler(print);
    return options.setupPassPipeline(passes);
  });
  if (config.shouldShowDialects() || config.shouldListPasses()) // reads nothing
    return mlir::failed(mlir::MlirOptMain(argc, argv, input, output, registry));
  return mlir::failed(fsdp::filterFile(
      input, output,
      [&](std::unique_ptr<llvm::MemoryBuffer> buffer, llvm::raw_ostream &os) {
        return mlir::MlirOptMain(os, std::move(buffer), registry, config);
      }));
}
