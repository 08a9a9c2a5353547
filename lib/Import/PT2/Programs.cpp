//===- Programs.cpp - Several captured graphs in one module ---------------===//
//
// Programs share parameters and buffers by name. Constants are a program's own,
// whatever they are called.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Import/PT2/ImportPT2.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using fsdp::aten::ATenDialect;

/// An embedded buffer: no checkpoint has it.
static Attribute getContent(func::FuncOp program, unsigned argument) {
  return program.getArgAttr(argument, ATenDialect::getValueAttrName());
}

/// Names after `program` what is its own: constants, and embedded buffers whose
/// content is another one in a program before it, such as the positions of a
/// model in another dtype. A buffer that somebody changes is everybody's.
static void renameOwn(func::FuncOp program, ArrayRef<func::FuncOp> before) {
  DenseMap<Attribute, std::pair<Type, Attribute>> known;
  DenseSet<Attribute> changed;
  auto note = [&](func::FuncOp func) {
    for (unsigned i = 0, e = func.getNumResults(); i != e; ++i)
      changed.insert(
          func.getResultAttr(i, ATenDialect::getBufferMutationAttrName()));
  };
  for (func::FuncOp other : before) {
    note(other);
    for (auto [i, type] : llvm::enumerate(other.getArgumentTypes()))
      if (Attribute name =
              other.getArgAttr(i, ATenDialect::getBufferAttrName()))
        known.try_emplace(name, type, getContent(other, i));
  }
  note(program);
  SmallVector<DictionaryAttr> arguments;
  for (auto [i, type] : llvm::enumerate(program.getArgumentTypes())) {
    NamedAttrList attrs(program.getArgAttrDict(i));
    auto rename = [&](StringRef key) {
      auto name = cast<StringAttr>(attrs.get(key));
      attrs.set(key,
                StringAttr::get(program.getContext(),
                                name.getValue() + "." + program.getSymName()));
    };
    if (attrs.get(ATenDialect::getConstantAttrName()))
      rename(ATenDialect::getConstantAttrName());
    Attribute buffer = attrs.get(ATenDialect::getBufferAttrName());
    auto found = known.find(buffer);
    Attribute content = getContent(program, i);
    if (buffer && content && found != known.end() &&
        !changed.contains(buffer) && found->second != std::pair(type, content))
      rename(ATenDialect::getBufferAttrName());
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
  SmallVector<func::FuncOp> before(module.getOps<func::FuncOp>());
  for (auto func : llvm::make_early_inc_range(other.getOps<func::FuncOp>())) {
    if (!func->hasAttr(ATenDialect::getProgramAttrName()))
      continue;
    func->remove();
    func.setSymName(name);
    module.push_back(func);
    renameOwn(func, before);
  }
  return success();
}
