//===- Gathers.cpp - The gathers of a scheduled step ----------------------===//
//
// Launches are matched with waits and ends.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Gathers.h"

using namespace mlir;

namespace fsdp {

int64_t Gather::getBytes() {
  auto type = cast<GatheredType>(wait.getValue().getType());
  return type.getNumel() * aten::getItemSize(type.getElementType());
}

Gathers::Gathers(Block &block) {
  for (auto wait : block.getOps<AsyncWaitOp>()) {
    LaunchOpInterface launch = wait.getLaunch();
    if (!launch || !launch.isGather())
      continue;
    for (Operation *user : wait.getValue().getUsers())
      if (auto reshard = dyn_cast<AsyncReshardOp>(user);
          reshard || isa<func::ReturnOp>(user)) {
        indices[wait.getValue()] = gathers.size();
        gathers.push_back({launch, wait, reshard});
        break;
      }
  }
}

Gather *Gathers::lookup(Value value) {
  auto found = indices.find(aten::getViewRoot(value));
  return found == indices.end() ? nullptr : &gathers[found->second];
}

Operation *getPlaceAfter(const IssueOrder &order, Operation *op) {
  LaunchOpInterface launch;
  do {
    op = order.getNext(op);
    launch = dyn_cast<LaunchOpInterface>(op);
  } while (launch && !launch.isReduction());
  return op;
}

void bringCopies(IssueOrder &order, ArrayRef<LaunchOpInterface> launches) {
  for (LaunchOpInterface launch : launches)
    if (LaunchOpInterface copy = launch.getCopyInFlight())
      order.moveBefore(copy, launches.front());
}

} // namespace fsdp
