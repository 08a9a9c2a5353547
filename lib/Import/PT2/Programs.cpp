//===- Programs.cpp - Several captured graphs in one module ---------------===//
//
// Programs share parameters and buffers by name. Constants are the program's
// own, whatever they are called.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Import/PT2/ImportPT2.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using fsdp::aten::ATenDialect;

/// Names the constants of a program after it.
static void renameConstants(func::FuncOp program) {
  auto key =
      StringAttr::get(program.getContext(), ATenDialect::getConstantAttrName());
  SmallVector<DictionaryAttr> arguments;
  for (unsigned i = 0, e = program.getNumArguments(); i != e; ++i) {
    NamedAttrList attrs(program.getArgAttrDict(i));
    if (auto name = dyn_cast_or_null<StringAttr>(attrs.get(key)))
      attrs.set(key,
                StringAttr::get(program.getContext(),
                                program.getSymName() + "." + name.getValue()));
    arguments.push_back(attrs.getDictionary(program.getContext()));
  }
  program.setAllArgAttrs(arguments);
}

LogicalResult fsdp::addProgram(ModuleOp module, ModuleOp other,
                               StringRef name) {
  if (module.lookupSymbol(name))
    return module.emitError("expected programs of different names, found a "
                            "second one that is called '")
           << name << '\'';
  for (auto func : llvm::make_early_inc_range(other.getOps<func::FuncOp>())) {
    if (!func->hasAttr(ATenDialect::getProgramAttrName()))
      continue;
    func->remove();
    func.setSymName(name);
    module.push_back(func);
    renameConstants(func);
  }
  return success();
}
