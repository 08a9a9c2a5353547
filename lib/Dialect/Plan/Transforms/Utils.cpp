//===- Utils.cpp - What the passes of the plan dialect share --------------===//

#include "Utils.h"

#include "fsdp/Operators/OpFacts.h"

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

std::optional<double> getExponent(LaunchOp launch) {
  const operators::OpFacts *facts = launch.getCallee().getFacts();
  if (!facts || facts->equivalent != operators::Equivalent::Power)
    return std::nullopt;
  aten::ArgsAttr args = launch.getArgs();
  unsigned index = args.find("exponent").value_or(1);
  if (index >= args.getValues().size())
    return std::nullopt;
  Attribute value = args.getValues()[index];
  if (auto integer = dyn_cast<IntegerAttr>(value))
    return static_cast<double>(integer.getInt());
  if (auto number = dyn_cast<FloatAttr>(value))
    return number.getValueAsDouble();
  return std::nullopt;
}

bool isCopy(LaunchOp launch) {
  const operators::OpFacts *facts = launch.getCallee().getFacts();
  if (!facts || launch.getInputs().empty() || launch.getOutputs().empty())
    return false;
  if (facts->equivalent == operators::Equivalent::Copy)
    return true;
  return getExponent(launch) == 1 &&
         getTensorType(launch.getInputs().front()).getElementType() ==
             getTensorType(launch.getOutputs().front()).getElementType();
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
          {&op, position, isWrite, command.getStream(), begin,
           begin + getExtent(getTensorType(buffer))});
    };
    for (Value buffer : command.getReads())
      add(buffer, /*isWrite=*/false);
    for (Value buffer : command.getWrites())
      add(buffer, /*isWrite=*/true);
  }
}

} // namespace fsdp::plan
