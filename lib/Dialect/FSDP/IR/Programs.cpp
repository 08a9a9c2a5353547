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
  auto name = program->getAttrOfType<FlatSymbolRefAttr>(
      FSDPDialect::getSourceAttrName());
  return name
             ? SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(program, name)
             : func::FuncOp();
}

bool isSource(func::FuncOp function) {
  auto name = FlatSymbolRefAttr::get(function);
  auto functions = function->getParentOfType<ModuleOp>().getOps<func::FuncOp>();
  return llvm::any_of(functions, [&](func::FuncOp program) {
    return program->getAttr(FSDPDialect::getSourceAttrName()) == name;
  });
}

aten::CallOp getGradientSeed(func::FuncOp func) {
  for (auto call : func.getBody().front().getOps<aten::CallOp>())
    if (call->hasAttr(aten::ATenDialect::getGradientSeedAttrName()))
      return call;
  return {};
}

SeedFactor getSeedFactor(func::FuncOp program) {
  auto module = program->getParentOfType<ModuleOp>();
  SeedFactor factor;
  factor.isScaled = bool(getGradScaler(program));
  StringRef part = FSDPDialect::getPartAttrName();
  if (!program->hasAttr(part))
    return factor;
  auto steps = module->getAttrOfType<IntegerAttr>(
      FSDPDialect::getMicroBatchesAttrName());
  if (steps && module->hasAttr(FSDPDialect::getMeanLossAttrName()))
    factor.divisor = steps.getInt();
  for (auto other : module.getOps<func::FuncOp>())
    factor.isScaled |= other->hasAttr(part) && getGradScaler(other);
  return factor;
}

FailureOr<aten::ArgsAttr> getSeedArgs(aten::CallOp seed, int64_t divisor) {
  if (divisor == 1)
    return seed.getArgs();
  SmallVector<Attribute> values(seed.getArgs().getValues());
  StringRef name = seed.getCallee().getName();
  bool isFill = name == "full" || name == "full_like";
  auto one = isFill && values.size() > 1 ? dyn_cast<FloatAttr>(values[1])
                                         : FloatAttr();
  if (!one)
    return seed.emitError("expected the backward to start with full(1.0), "
                          "found another operator");
  values[1] =
      FloatAttr::get(one.getType(), one.getValueAsDouble() / double(divisor));
  return aten::ArgsAttr::get(seed.getContext(), values,
                             seed.getArgs().getKeywords());
}

} // namespace fsdp
