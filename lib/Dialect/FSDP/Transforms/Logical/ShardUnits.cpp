//===- ShardUnits.cpp - The units of all programs -------------------------===//
//
// Collected by name, laid out as FSDP's flat parameters, made symbols.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/ShardUnits.h"

#include "fsdp/Dialect/FSDP/IR/Layout.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace fsdp {

std::optional<unsigned> ShardUnits::find(StringRef name) const {
  auto found = byName.find(name);
  return found == byName.end() ? std::nullopt : std::optional(found->second);
}

LogicalResult ShardUnits::addParameter(func::FuncOp program,
                                       BlockArgument argument) {
  auto get = [&](StringRef attribute) {
    return program.getArgAttr(argument.getArgNumber(), attribute);
  };
  auto name = cast<StringAttr>(get(aten::ATenDialect::getParamAttrName()));
  auto type = dyn_cast<RankedTensorType>(argument.getType());
  if (!type || !isa<FloatType>(type.getElementType()))
    return emitError(argument.getLoc())
           << "expected parameter " << name << " to be a tensor of floats, got "
           << argument.getType()
           << "; a complex one can be kept as its real view "
              "(torch.view_as_real)";
  if (std::optional<unsigned> known = find(name)) {
    RankedTensorType first = parameters[*known].type;
    if (type.getShape() != first.getShape() ||
        aten::getStrides(type) != aten::getStrides(first))
      return emitError(argument.getLoc())
             << "expected parameter " << name
             << " to have the sizes and strides that it has in another "
                "program, "
             << first << ", got " << type;
    return success();
  }

  auto unitName =
      dyn_cast_or_null<StringAttr>(get(FSDPDialect::getUnitAttrName()));
  auto getDtype = [&](StringRef attribute) {
    auto dtype = dyn_cast_or_null<TypeAttr>(get(attribute));
    return dtype ? dtype.getValue() : type.getElementType();
  };
  auto [entry, isNew] = unitByName.try_emplace(
      unitName ? unitName.getValue() : "root", units.size());
  if (isNew)
    units.emplace_back().name = entry->first();
  Unit &unit = units[entry->second];
  byName[name] = parameters.size();
  unit.parameters.push_back(parameters.size());
  unit.isIgnored |= bool(get(FSDPDialect::getIgnoredAttrName()));
  unit.isRoot |= !unitName || get(FSDPDialect::getRootAttrName());
  parameters.push_back({name, type,
                        getDtype(aten::ATenDialect::getStorageDtypeAttrName()),
                        getDtype(aten::ATenDialect::getReduceDtypeAttrName()),
                        dyn_cast_or_null<ArrayAttr>(
                            get(aten::ATenDialect::getAliasesAttrName())),
                        argument.getLoc(), entry->second,
                        static_cast<unsigned>(unit.parameters.size() - 1)});
  return success();
}

LogicalResult ShardUnits::add(func::FuncOp program) {
  for (BlockArgument argument : program.getArguments())
    if (program.getArgAttr(argument.getArgNumber(),
                           aten::ATenDialect::getParamAttrName()) &&
        failed(addParameter(program, argument)))
      return failure();
  for (unsigned i = 0, e = program.getNumResults(); i != e; ++i)
    if (auto name = program.getResultAttrOfType<StringAttr>(
            i, aten::ATenDialect::getGradOfAttrName()))
      if (std::optional<unsigned> parameter = find(name))
        parameters[*parameter].isTrainable = true;
  return success();
}

/// The strides of a parameter that is not row-major; nothing for one that is.
static SmallVector<int64_t> getLayoutStrides(RankedTensorType type) {
  return aten::isDense(type) ? SmallVector<int64_t>() : aten::getStrides(type);
}

FailureOr<LayoutAttr> ShardUnits::getLayout(func::FuncOp first,
                                            const Unit &unit,
                                            int64_t shards) const {
  MLIRContext *context = first.getContext();
  SmallVector<int64_t> numels;
  for (unsigned index : unit.parameters)
    numels.push_back(parameters[index].type.getNumElements());
  Type element = parameters[unit.parameters.front()].type.getElementType();
  FlatLayout flat = getAlignedLayout(
      numels, getAlignment(aten::getItemSize(element)), shards);
  SmallVector<ParameterAttr> attrs;
  for (auto [index, offset] : llvm::zip_equal(unit.parameters, flat.offsets)) {
    const Parameter &parameter = parameters[index];
    SmallVector<StringAttr> aliases;
    if (parameter.aliases)
      llvm::append_range(aliases, parameter.aliases.getAsRange<StringAttr>());
    SmallVector<int64_t> strides = getLayoutStrides(parameter.type);
    auto emitHere = [&] { return emitError(parameter.loc); };
    if (failed(ParameterAttr::verify(emitHere, parameter.name,
                                     parameter.type.getShape(), offset,
                                     !parameter.isTrainable, strides, aliases)))
      return failure();
    attrs.push_back(
        ParameterAttr::get(context, parameter.name, parameter.type.getShape(),
                           offset, !parameter.isTrainable, strides, aliases));
  }
  auto emitHere = [&] { return first.emitError(); };
  if (failed(LayoutAttr::verify(emitHere, attrs, flat.numel, flat.padded)))
    return failure();
  return LayoutAttr::get(context, attrs, flat.numel, flat.padded);
}

void ShardUnits::nameSymbols(ModuleOp module) {
  llvm::StringSet<> taken;
  for (Operation &op : *module.getBody())
    if (auto symbol = dyn_cast<SymbolOpInterface>(op))
      taken.insert(symbol.getName());
  for (Unit &unit : units) {
    unit.symbol = unit.name.str();
    for (unsigned i = 0;
         taken.contains(unit.symbol) || (i && unitByName.contains(unit.symbol));
         ++i)
      unit.symbol = (unit.name + "_" + Twine(i)).str();
    taken.insert(unit.symbol);
  }
}

LogicalResult ShardUnits::create(func::FuncOp first, MeshOp mesh,
                                 ArrayRef<UnitDecision> decisions) {
  if (parameters.empty())
    return first.emitError("expected at least one parameter to shard");
  OpBuilder builder(first);
  SymbolTable symbols(first->getParentOfType<ModuleOp>());
  for (auto [unit, decision] : llvm::zip_equal(units, decisions)) {
    ArrayAttr shard = builder.getStrArrayAttr(decision.shardAxes),
              replicate = builder.getStrArrayAttr(decision.replicateAxes);
    int64_t shards = mesh.getGroupSize(shard);
    FailureOr<LayoutAttr> layout = getLayout(first, unit, shards);
    if (failed(layout))
      return failure();
    const Parameter &front = parameters[unit.parameters.front()];
    for (unsigned index : unit.parameters)
      if (const Parameter &own = parameters[index];
          (!decision.storage && own.storage != front.storage) ||
          (!decision.reduce && own.reduce != front.reduce))
        return emitError(own.loc)
               << "unit '" << unit.name
               << "' has parameters of two types: " << front.name
               << ", stored as " << front.storage << " and reduced as "
               << front.reduce << ", and " << own.name << ", stored as "
               << own.storage << " and reduced as " << own.reduce;
    unit.op = UnitOp::create(
        builder, first.getLoc(), unit.symbol, mesh.getSymName(), shard,
        replicate, decision.storage ? decision.storage : front.storage,
        decision.reduce ? decision.reduce : front.reduce, *layout, unit.isRoot,
        decision.reshard, decision.keep, /*piece_axes=*/ArrayAttr());
    symbols.insert(unit.op, Block::iterator(first));
    remark::passed(first.getLoc(), getRemark("fsdp-shard", "unit", first))
        << remark::metric("Unit", unit.op.getSymName())
        << remark::metric("Parameters", int64_t(unit.parameters.size()))
        << remark::metric("Elements", layout->getNumel())
        << remark::metric("ElementsPerRank", layout->getPadded() / shards);
  }
  return success();
}

} // namespace fsdp
