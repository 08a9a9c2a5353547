//===- Programs.cpp - Which functions are programs ------------------------===//

#include "fsdp/Dialect/FSDP/IR/Programs.h"

using namespace mlir;

namespace fsdp {

FailureOr<SmallVector<func::FuncOp>> getPrograms(ModuleOp module) {
  SmallVector<func::FuncOp> programs;
  for (auto func : module.getOps<func::FuncOp>()) {
    if (!func->hasAttr(aten::ATenDialect::getProgramAttrName()))
      continue;
    if (!func.getBody().hasOneBlock())
      return func.emitError("expected a program of one block, found ")
             << func.getBody().getBlocks().size();
    programs.push_back(func);
  }
  if (programs.empty())
    return module.emitError("expected a program, which is a function with "
                            "'aten.program'; found none");
  return programs;
}

func::FuncOp getInit(ModuleOp module) {
  for (auto func : module.getOps<func::FuncOp>())
    if (func->hasAttr(FSDPDialect::getInitAttrName()))
      return func;
  return {};
}

func::FuncOp getSource(func::FuncOp program) {
  auto name = FlatSymbolRefAttr::get(program);
  for (auto func : program->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    if (func->getAttr(FSDPDialect::getSourceAttrName()) == name)
      return func;
  return {};
}

} // namespace fsdp
