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

#include <deque>

/// Lines, each for a terminal.
static std::string escapeLines(llvm::StringRef text) {
  return llvm::join(llvm::map_range(llvm::split(text, '\n'),
                                    [](llvm::StringRef line) {
                                      return fsdp::archive::escape(line);
                                    }),
                    "\n");
}

/// Passes speak of names that come from outside.
static void escapeDiagnostics(mlir::MLIRContext &context) {
  using Kind = mlir::DiagnosticArgument::DiagnosticArgumentKind;
  context.getDiagEngine().registerHandler(
      [texts = std::deque<std::string>()](
          mlir::Diagnostic &diagnostic) mutable -> mlir::LogicalResult {
        texts.clear();
        auto escape = [&](mlir::Diagnostic &part) {
          for (mlir::DiagnosticArgument &argument : part.getArguments())
            if (argument.getKind() == Kind::String)
              argument = mlir::DiagnosticArgument(llvm::StringRef(
                  texts.emplace_back(escapeLines(argument.getAsString()))));
        };
        escape(diagnostic);
        for (mlir::Diagnostic &note : diagnostic.getNotes())
          escape(note);
        return mlir::failure(); // MLIR's own handler shows it
      });
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
  auto [input, output] = mlir::parseCLIOptions(argc, argv, header);
  auto config = mlir::MlirOptMainConfig::createFromCLOptions();
  config.setPassPipelineSetupFn([options = config](mlir::PassManager &passes) {
    escapeDiagnostics(*passes.getContext());
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
