//===- MergeUnits.cpp - Units that are gathered and reduced as one --------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace fsdp {

namespace {
/// A unit of the aten level: the parameters with its name.
struct NamedUnit {
  StringAttr name;
  Attribute types;
  int64_t bytes = 0;
  bool isRoot = false;
  SmallVector<unsigned> arguments;
};
} // namespace

/// Units as the step first reads them. What is in none is the root's.
static SmallVector<NamedUnit>
getNamedUnits(func::FuncOp step, const DenseMap<Attribute, Attribute> &types) {
  llvm::MapVector<Attribute, NamedUnit> units;
  Block &block = step.getBody().front();
  auto getName = [&](Value value) {
    auto argument = dyn_cast<BlockArgument>(value);
    // What is ignored is not communicated.
    return argument && !step.getArgAttr(argument.getArgNumber(),
                                        FSDPDialect::getIgnoredAttrName())
               ? step.getArgAttrOfType<StringAttr>(
                     argument.getArgNumber(), FSDPDialect::getUnitAttrName())
               : StringAttr();
  };
  for (Operation &op : block)
    for (Value operand : op.getOperands())
      if (StringAttr name = getName(operand))
        units[name];
  for (BlockArgument argument : block.getArguments()) {
    StringAttr name = getName(argument);
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    if (!name || !type)
      continue;
    NamedUnit &unit = units[name];
    unit.name = name;
    unit.isRoot |= step.getArgAttr(argument.getArgNumber(),
                                   FSDPDialect::getRootAttrName()) != nullptr;
    unit.types = types.lookup(step.getArgAttr(
        argument.getArgNumber(), aten::ATenDialect::getParamAttrName()));
    unit.bytes += getMemoryBytes(type);
    unit.arguments.push_back(argument.getArgNumber());
  }
  return llvm::map_to_vector(
      units.takeVector(), [](auto &entry) { return std::move(entry.second); });
}

/// Gives units that follow each other one name while there is room.
void mergeUnits(func::FuncOp step, const Bucket &limit,
                const DenseMap<Attribute, Attribute> &types) {
  SmallVector<NamedUnit> units = getNamedUnits(step, types);
  Ports arguments = getArguments(step);
  for (size_t begin = 0, end; begin < units.size(); begin = end) {
    int64_t sum = units[begin].bytes;
    for (end = begin + 1; end != units.size(); ++end) {
      const NamedUnit &next = units[end];
      if (next.types != units[begin].types || next.isRoot ||
          units[begin].isRoot ||
          (limit.units && int64_t(end - begin) >= limit.units) ||
          (limit.bytes && sum + next.bytes > limit.bytes))
        break;
      sum += next.bytes;
    }
    if (end - begin < 2)
      continue;
    ArrayRef<NamedUnit> merged = ArrayRef(units).slice(begin, end - begin);
    auto name = StringAttr::get(step.getContext(),
                                merged.front().name.getValue() + ".." +
                                    merged.back().name.getValue());
    for (const NamedUnit &unit : merged)
      for (unsigned argument : unit.arguments) {
        NamedAttrList attrs(arguments.attrs[argument]);
        attrs.set(FSDPDialect::getUnitAttrName(), name);
        arguments.attrs[argument] = attrs.getDictionary(step.getContext());
      }
    remark::passed(step.getLoc(), getRemark("fsdp-bucket", "merge", step))
        << remark::metric("Unit", name.getValue())
        << remark::metric("Units", merged.size())
        << remark::metric("Bytes", sum);
  }
  step.setAllArgAttrs(arguments.attrs);
}

} // namespace fsdp
