//===- ReshardPolicy.cpp - What stays gathered behind the forward ---------===//
//
// One gather for both phases, or one for each: what the backward reads of a
// unit is made anew from a gather of its own.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/ReshardPolicy.h"
#include "fsdp/Dialect/FSDP/Transforms/BackwardCopies.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

#include "mlir/IR/Remarks.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_RESHARDPOLICYPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

bool isRoot(StringRef unit) {
  return unit == "root" || unit == "root.f16" || unit == "root.bf16" ||
         unit == "root.f32" || unit == "root.f64";
}

/// Gives the backward a gather of its own, of each unit that is resharded.
static void splitGathers(func::FuncOp step) {
  BackwardCopies copies(step);
  BackwardCopies::Operations parameters = copies.findParameters(
      [](UnitOp unit) { return unit.getReshardAfterForward(); });
  IRMapping mapping;
  for (OpOperand *use : copies.getUses(parameters))
    copies.replace(
        *use, aten::Phase::Backward,
        [&](Operation *op) { return parameters.contains(op); }, mapping);
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(step.getBody().front())))
    if (parameters.contains(&op) && op.use_empty())
      op.erase();
}

/// Lets the gather of the forward serve the backward, of each unit that is not.
static void mergeGathers(func::FuncOp step, const SymbolTable &symbols) {
  DenseMap<Attribute, UnshardOp> first;
  for (auto gather : llvm::make_early_inc_range(step.getOps<UnshardOp>())) {
    if (symbols.lookup<UnitOp>(gather.getUnit()).getReshardAfterForward())
      continue;
    auto [entry, isNew] = first.try_emplace(gather.getUnitAttr(), gather);
    if (isNew)
      continue;
    gather.replaceAllUsesWith(entry->second.getFull());
    gather.erase();
  }
}

void setReshardAfterForward(func::FuncOp step, bool reshard) {
  auto module = step->getParentOfType<ModuleOp>();
  SymbolTable symbols(module);
  // The backward starts where the forward ends, with the root: freeing it in
  // between would only mean to gather it at once again.
  for (auto unit : module.getOps<UnitOp>())
    unit.setReshardAfterForward(reshard && !isRoot(unit.getSymName()));
  splitGathers(step);
  mergeGathers(step, symbols);
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
class ReshardPolicyPass
    : public impl::ReshardPolicyPassBase<ReshardPolicyPass> {
  using ReshardPolicyPassBase::ReshardPolicyPassBase;

  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step))
      return signalPassFailure();
    if (afterForward != "true" && afterForward != "false") {
      emitError(step->getLoc())
          << "expected after-forward to be 'true' or 'false', got '"
          << afterForward.getValue()
          << "': resharding to a group of fewer ranks is not built";
      return signalPassFailure();
    }
    bool reshard = afterForward == "true";
    setReshardAfterForward(*step, reshard);
    for (auto unit : getOperation().getOps<UnitOp>()) {
      int64_t bytes = getMemoryBytes(unit.getGatheredType());
      bool isFreed = unit.getReshardAfterForward();
      remark::passed(step->getLoc(), remark::RemarkOpts::name("reshard")
                                         .category("fsdp-reshard-policy")
                                         .function("step"))
          << remark::metric("Unit", unit.getSymName())
          << remark::metric(isFreed ? "BytesGatheredAgain" : "BytesKept", bytes)
          << remark::reason(isFreed   ? "freed behind the forward"
                            : reshard ? "the backward starts with it"
                                      : "gathered once for both phases");
    }
  }
};
} // namespace

} // namespace fsdp
