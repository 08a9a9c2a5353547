//===- Compiler.h - The compiler, ready for one input after the other -----===//

#ifndef FSDP_FUZZ_COMPILER_H
#define FSDP_FUZZ_COMPILER_H

#include "Target.h"
#include "fsdp/InitAllDialects.h"
#include "fsdp/InitAllPasses.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"

#include <optional>

namespace fsdp::fuzz {

/// A context whose diagnostics are spelled and counted, but not shown.
class Compiler {
public:
  Compiler()
      : context(makeRegistry(), mlir::MLIRContext::Threading::DISABLED),
        handler(&context, [this](mlir::Diagnostic &diagnostic) {
          static_cast<void>(diagnostic.str());
          numErrors +=
              diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error;
          return mlir::success();
        }) {
    context.printOpOnDiagnostic(false);
  }

  /// The context, made anew now and then: it never forgets an attribute.
  static Compiler &get() {
    static std::optional<Compiler> compiler;
    static unsigned numUses;
    constexpr unsigned mostUses = 512;
    if (numUses++ % mostUses == 0)
      compiler.emplace();
    return *compiler;
  }

  /// What fails says why.
  template <typename Function> bool succeeds(Function &&function) {
    numErrors = 0;
    if (mlir::succeeded(function()))
      return true;
    if (numErrors == 0)
      report("a failure without a diagnostic");
    return false;
  }

  /// Passes by their text; the verifier runs after each.
  mlir::PassManager &passes(llvm::StringRef text) {
    auto &manager = managers[text];
    if (!manager) {
      manager = std::make_unique<mlir::PassManager>(&context);
      if (mlir::failed(mlir::parsePassPipeline(text, *manager)))
        report("passes that do not exist");
    }
    return *manager;
  }

  mlir::MLIRContext context;

private:
  static const mlir::DialectRegistry &makeRegistry() {
    static const mlir::DialectRegistry registry = [] {
      registerAllPasses();
      mlir::DialectRegistry result;
      registerAllDialects(result);
      return result;
    }();
    return registry;
  }

  mlir::ScopedDiagnosticHandler handler;
  unsigned numErrors = 0;
  llvm::StringMap<std::unique_ptr<mlir::PassManager>> managers;
};

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_COMPILER_H
