//===- NameReductions.cpp - Write down how gradients are reduced ----------===//
//
// After passes that replace reductions: what they have decided is what all that
// follows is compared with.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Reductions.h"
#include "fsdp/Dialect/FSDP/IR/Programs.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_NAMEREDUCTIONSPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
struct NameReductionsPass : impl::NameReductionsPassBase<NameReductionsPass> {
  void runOnOperation() override {
    auto programs = getPrograms(getOperation());
    if (failed(programs))
      return signalPassFailure();
    SymbolTable symbols(getOperation());
    StringRef name = FSDPDialect::getReductionsAttrName();
    for (func::FuncOp program : *programs)
      for (auto &[unit, reductions] : findReductions(program)) {
        auto op = symbols.lookup<UnitOp>(unit);
        SmallVector<Attribute> found(
            llvm::make_second_range(ArrayRef(reductions)));
        // A program that accumulates has the first ones only.
        auto known = op->getAttrOfType<ArrayAttr>(name);
        if (!known || known.size() < found.size())
          op->setAttr(name, ArrayAttr::get(&getContext(), found));
      }
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
