//===- Diagnostics.cpp - Errors and remarks as sentences ------------------===//

#include "Diagnostics.h"
#include "../Tool.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/ModulePaths.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Remarks.h"

using namespace fsdp;
using llvm::StringRef;
using mlir::LogicalResult;
using mlir::success;

LogicalResult fsdp::printDiagnostic(mlir::Diagnostic &diagnostic) {
  auto print = [](mlir::Diagnostic &part, StringRef kind) {
    llvm::errs() << "fsdp-plan: " << kind << ": "
                 << archive::escape(part.str());
    if (auto node = llvm::dyn_cast<mlir::NameLoc>(part.getLocation()))
      llvm::errs() << " (at '" << archive::escape(node.getName().getValue())
                   << "')";
    llvm::errs() << "\n";
  };
  switch (diagnostic.getSeverity()) {
  case mlir::DiagnosticSeverity::Error:
    print(diagnostic, "error");
    break;
  case mlir::DiagnosticSeverity::Warning:
    print(diagnostic, "warning");
    break;
  case mlir::DiagnosticSeverity::Note:
    print(diagnostic, "note");
    break;
  case mlir::DiagnosticSeverity::Remark:
    return success();
  }
  for (mlir::Diagnostic &note : diagnostic.getNotes())
    print(note, "note");
  return success();
}

namespace {
/// Prints each decision on a line: who, what, by how much, and why.
class RemarkPrinter : public mlir::remark::detail::MLIRRemarkStreamerBase {
  void
  streamOptimizationRemark(const mlir::remark::detail::Remark &remark) final {
    llvm::errs() << "fsdp-plan: remark: " << remark.getCategoryName() << ": "
                 << remark.getRemarkName();
    for (const auto &argument : remark.getArgs())
      llvm::errs() << ", " << archive::escape(argument.key) << " = "
                   << archive::escape(argument.val);
    llvm::errs() << "\n";
  }
};
} // namespace

LogicalResult fsdp::enableRemarks(mlir::MLIRContext &context,
                                  StringRef filter) {
  if (filter.empty())
    return success();
  if (std::string error = findRegexError(filter); !error.empty())
    return reject("--remarks-filter: " + error);
  return mlir::remark::enableOptimizationRemarks(
      context, std::make_unique<RemarkPrinter>(),
      std::make_unique<mlir::remark::RemarkEmittingPolicyAll>(),
      {filter.str(), "", "", "", ""}); // a kind that is not there is off
}
