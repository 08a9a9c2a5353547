//===- Reductions.cpp - How gradients become means ------------------------===//
//
// At the logical and at the scheduled level: collectives that are of a unit,
// but for all-gathers.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Reductions.h"

using namespace mlir;
using namespace fsdp;

llvm::MapVector<StringAttr, SmallVector<std::pair<Operation *, ReductionAttr>>>
fsdp::findReductions(func::FuncOp program) {
  llvm::MapVector<StringAttr,
                  SmallVector<std::pair<Operation *, ReductionAttr>>>
      reductions;
  for (auto op : program.getBody().front().getOps<CollectiveOpInterface>())
    if (!op.isGather() && op.getUnitAttr())
      reductions[op.getUnitAttr().getAttr()].emplace_back(
          op, ReductionAttr::get(op.getContext(), op.getAxes(),
                                 op.getDivideAttr(), op.getWireType(),
                                 getElementType(op->getResult(0).getType())));
  return reductions;
}

LogicalResult fsdp::verifyReductions(func::FuncOp program) {
  SymbolTable symbols(program->getParentOfType<ModuleOp>());
  for (auto &[name, found] : findReductions(program)) {
    auto unit = symbols.lookup<UnitOp>(name);
    auto named =
        unit->getAttrOfType<ArrayAttr>(FSDPDialect::getReductionsAttrName());
    for (auto [index, reduction] : llvm::enumerate(found)) {
      auto [op, is] = reduction;
      if (!named && is.getVia() != unit.getReduce())
        return op->emitError("expected a sum in ")
               << unit.getReduce() << ", the reduce type of unit " << name
               << ", unless its 'fsdp.reductions' say otherwise; got "
               << is.getVia();
      if (!named)
        continue;
      if (index >= named.size())
        return op->emitError("expected ")
               << named.size() << " reductions of unit " << name
               << ", as its 'fsdp.reductions' say, got another one";
      if (named[index] != is)
        return op->emitError("expected ")
               << named[index] << ", as 'fsdp.reductions' of unit " << name
               << " say, got " << is;
    }
  }
  return success();
}
