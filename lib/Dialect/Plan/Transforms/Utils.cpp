//===- Utils.cpp - What the passes of the plan dialect share --------------===//

#include "Utils.h"

using namespace mlir;

namespace fsdp::plan {

void tidyBuffers(ModuleOp plan) {
  Block &body = plan.getBody().front();
  DenseMap<std::tuple<Value, int64_t, Type>, ViewOp> views;
  for (auto view : llvm::make_early_inc_range(body.getOps<ViewOp>())) {
    if (!view->use_empty()) {
      auto [first, isNew] = views.try_emplace(
          {view.getRoot(), static_cast<int64_t>(view.getOffset()),
           view.getTensorType()},
          view);
      if (isNew)
        continue;
      view.replaceAllUsesWith(first->second.getView());
    }
    view.erase();
  }
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (auto buffer = dyn_cast<BufferOp>(op))
      if (op.use_empty() && buffer.getRole() == BufferRole::Transient)
        op.erase();
}

Value createView(Location loc, Value base, int64_t offset,
                 RankedTensorType type) {
  if (offset == 0 && type == getTensorType(base))
    return base;
  OpBuilder builder(base.getContext());
  builder.setInsertionPointAfterValue(base);
  return ViewOp::create(builder, loc, getRoot(base),
                        getRootOffset(base) + offset, type);
}

Accesses::Accesses(ProgramOp program) {
  std::optional<uint64_t> group;
  for (Operation &op : program.getBody().front()) {
    auto command = cast<CommandOpInterface>(op);
    // Collectives of a group run at once.
    if (!group || command.getGroup() != group)
      ++numCommands;
    group = command.getGroup();
    uint32_t position = numCommands - 1;
    positions[&op] = position;
    auto add = [&](Value buffer, bool isWrite) {
      int64_t begin = getRootOffset(buffer);
      accesses[getRoot(buffer)].push_back(
          {position, isWrite, command.getStream(), begin,
           begin + getExtent(getTensorType(buffer))});
    };
    for (Value buffer : command.getReads())
      add(buffer, /*isWrite=*/false);
    for (Value buffer : command.getWrites())
      add(buffer, /*isWrite=*/true);
  }
}

void Accesses::move(BufferOp from, BufferOp to, int64_t offset) {
  SmallVector<Access, 4> moved = std::move(accesses[from]);
  accesses.erase(from);
  SmallVector<Access, 4> &target = accesses[to];
  for (Access access : moved) {
    access.begin += offset;
    access.end += offset;
    target.push_back(access);
  }
}

} // namespace fsdp::plan
