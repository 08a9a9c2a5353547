//===- ReductionPlace.cpp - Where reductions leave their results ----------===//

#include "fsdp/Analysis/ReductionPlace.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;

namespace fsdp {

namespace {
/// What becomes of a reduced gradient.
struct Fate {
  OpOperand *returned = nullptr; ///< Null: it is not.
  bool isSummed = false;         ///< What was accumulated is added on the way.
  bool goesToHost = false;

  void follow(Value value) {
    for (OpOperand &use : value.getUses()) {
      Operation *user = use.getOwner();
      if (isa<func::ReturnOp>(user) && !returned)
        returned = &use;
      goesToHost |= isCopy(user);
      auto launch = dyn_cast<LaunchOpInterface>(user);
      if (!isa<AsyncWaitOp, AccumulateOp>(user) &&
          !(launch && launch.getStream() == Stream::AllReduce))
        continue;
      isSummed |= isa<AccumulateOp>(user);
      follow(user->getResult(0));
    }
  }
};
} // namespace

ReductionPlace getReductionPlace(CollectiveOpInterface reduction, UnitOp unit) {
  Value result = reduction->getResult(0);
  Fate fate;
  fate.follow(result);
  StateAttr state;
  if (fate.returned)
    state =
        reduction->getParentOfType<func::FuncOp>()
            .getResultAttrOfType<StateAttr>(fate.returned->getOperandNumber(),
                                            FSDPDialect::getStateAttrName());
  bool isStored = getElementType(result.getType()) == unit.getStorage();
  bool isAccumulated = state && state.isAccumulated();
  bool isPartial =
      isAccumulated && state.getKind() == StateAttr::getPartialGradientKind();
  if (fate.goesToHost && isStored && !isPartial)
    return {ReductionPlace::ToHost};
  auto isOfType = [&](Type type) {
    return getLocalNumel(type) == getLocalNumel(result.getType()) &&
           getElementType(type) == getElementType(result.getType());
  };
  if (isAccumulated && !fate.isSummed && !fate.goesToHost &&
      isOfType(fate.returned->get().getType()))
    return {ReductionPlace::Kept, state};
  return {isStored && !isAccumulated ? ReductionPlace::Gradient
                                     : ReductionPlace::Own};
}

} // namespace fsdp
