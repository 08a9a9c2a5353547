//===- Program.cpp - What passes share about programs ---------------------===//
//
// Levels, signatures, and following gathered parameters.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/Support/FormatVariadic.h"

using namespace mlir;

namespace fsdp {

static StringRef getName(Level level) {
  switch (level) {
  case Level::ATen:
    return "aten level";
  case Level::Logical:
    return "logical level";
  case Level::Scheduled:
    return "scheduled level";
  }
  llvm_unreachable("all levels have a name");
}

/// By the first thing that tells; nothing where nothing does.
static std::optional<Level> getLevel(func::FuncOp program) {
  for (unsigned i = 0, e = program.getNumArguments(); i != e; ++i)
    if (program.getArgAttr(i, aten::ATenDialect::getParamAttrName()))
      return Level::ATen;
  for (Operation &op : program.getOps()) {
    if (op.hasTrait<LogicalOp>())
      return Level::Logical;
    if (op.hasTrait<ScheduledOp>())
      return Level::Scheduled;
  }
  return std::nullopt;
}

LogicalResult checkLevel(func::FuncOp program, ArrayRef<Level> levels) {
  std::optional<Level> level = getLevel(program);
  if (!level || llvm::is_contained(levels, *level))
    return success();
  std::string expected;
  for (Level candidate : levels)
    expected +=
        (expected.empty() ? "the " : " or the ") + getName(candidate).str();
  return program.emitError("expected a program of ")
         << expected << ", found one of the " << getName(*level);
}

std::string spellTime(int64_t nanoseconds) {
  if (nanoseconds < 1000000)
    return llvm::formatv("{0:f1} us", double(nanoseconds) / 1e3);
  return llvm::formatv("{0:f2} ms", double(nanoseconds) / 1e6);
}

remark::RemarkOpts getRemark(StringRef pass, StringRef name, Operation *op) {
  auto program = dyn_cast<func::FuncOp>(op);
  if (!program)
    program = op->getParentOfType<func::FuncOp>();
  return remark::RemarkOpts::name(name).category(pass).function(
      program.getSymName());
}

Ports getArguments(func::FuncOp func) {
  Ports ports;
  for (auto [index, type] : llvm::enumerate(func.getArgumentTypes()))
    ports.add(type, func.getArgAttrDict(index));
  return ports;
}

Ports getResults(func::FuncOp func) {
  Ports ports;
  for (auto [index, type] : llvm::enumerate(func.getResultTypes()))
    ports.add(type, func.getResultAttrDict(index));
  return ports;
}

void setSignature(func::FuncOp func, const Ports &arguments,
                  const Ports &results) {
  func.setFunctionType(
      FunctionType::get(func.getContext(), arguments.types, results.types));
  func.setAllArgAttrs(arguments.attrs);
  func.setAllResultAttrs(results.attrs);
}

LogicalResult copyUnits(func::FuncOp from, func::FuncOp to) {
  StringRef param = aten::ATenDialect::getParamAttrName();
  DenseMap<Attribute, unsigned> units;
  for (unsigned i = 0, e = from.getNumArguments(); i != e; ++i)
    if (Attribute name = from.getArgAttr(i, param))
      units[name] = i;
  Ports arguments = getArguments(to);
  for (DictionaryAttr &dict : arguments.attrs) {
    Attribute name = dict ? dict.get(param) : Attribute();
    if (!name)
      continue;
    auto unit = units.find(name);
    if (unit == units.end())
      return to.emitError("program '")
             << to.getSymName() << "' has the parameter " << name
             << ", which program '" << from.getSymName()
             << "' has not: expected programs over the same parameters";
    NamedAttrList attrs(dict);
    for (StringRef own :
         {FSDPDialect::getUnitAttrName(), FSDPDialect::getRootAttrName(),
          FSDPDialect::getIgnoredAttrName()})
      if (Attribute value = from.getArgAttr(unit->second, own))
        attrs.set(own, value);
    dict = attrs.getDictionary(to.getContext());
  }
  to.setAllArgAttrs(arguments.attrs);
  return success();
}

DenseMap<Attribute, Attribute>
getParameterTypes(ArrayRef<func::FuncOp> programs) {
  using aten::ATenDialect;
  DenseMap<Attribute, SmallVector<Attribute>> types;
  for (size_t number = 0; number != programs.size(); ++number) {
    func::FuncOp program = programs[number];
    for (BlockArgument argument : program.getArguments()) {
      auto get = [&](StringRef attribute) {
        return program.getArgAttr(argument.getArgNumber(), attribute);
      };
      Attribute name = get(ATenDialect::getParamAttrName());
      if (!name)
        continue;
      Attribute element =
          TypeAttr::get(mlir::getElementTypeOrSelf(argument.getType()));
      SmallVector<Attribute> &own = types[name];
      if (own.empty()) {
        Attribute storage = get(ATenDialect::getStorageDtypeAttrName()),
                  reduce = get(ATenDialect::getReduceDtypeAttrName());
        own = {storage ? storage : element, reduce ? reduce : element};
        // In programs without it, nobody asks.
        own.resize(2 + programs.size(), element);
      }
      own[2 + number] = element;
    }
  }
  DenseMap<Attribute, Attribute> result;
  for (auto &[name, own] : types)
    result[name] = ArrayAttr::get(name.getContext(), own);
  return result;
}

SmallVector<int64_t>
getIntervals(LayoutAttr layout, llvm::function_ref<bool(ParameterAttr)> isIn) {
  SmallVector<int64_t> intervals;
  bool inside = false;
  for (ParameterAttr parameter : layout.getParameters()) {
    if (parameter.getNumel() != 0 && inside != isIn(parameter)) {
      intervals.push_back(parameter.getOffset());
      inside = !inside;
    }
  }
  if (inside)
    intervals.push_back(layout.getPadded());
  return intervals;
}

DictionaryAttr getStateDict(UnitOp unit, StringRef kind) {
  Builder builder(unit.getContext());
  auto state = StateAttr::get(unit.getContext(), FlatSymbolRefAttr::get(unit),
                              builder.getStringAttr(kind));
  return builder.getDictionaryAttr(
      builder.getNamedAttr(FSDPDialect::getStateAttrName(), state));
}

StateAttr getState(DictionaryAttr port) {
  return port ? port.getAs<StateAttr>(FSDPDialect::getStateAttrName())
              : StateAttr();
}

SmallVector<unsigned> getGradients(func::FuncOp program) {
  Block &block = program.getBody().front();
  DenseMap<Value, unsigned> returned;
  for (auto [index, value] :
       llvm::enumerate(block.getTerminator()->getOperands()))
    if (StateAttr state = getState(program.getResultAttrDict(index));
        state && state.getKind() == StateAttr::getGradientKind())
      returned[value] = index;
  SmallVector<unsigned> gradients;
  for (Operation &op : block)
    for (Value result : op.getResults())
      if (auto found = returned.find(result); found != returned.end())
        gradients.push_back(found->second);
  return gradients;
}

aten::Phase getGatherPhase(aten::Phase phase) {
  return phase == aten::Phase::Forward ? phase : aten::Phase::Backward;
}

aten::Phase getGatherPhase(Operation *op) {
  auto call = dyn_cast<aten::CallOp>(op);
  return getGatherPhase(call ? call.getPhase().value_or(aten::Phase::Forward)
                             : aten::Phase::Forward);
}

Attribute getCopyKey(CollectiveOpInterface launch) {
  auto getElement = [](Value value) {
    return TypeAttr::get(getElementType(value.getType()));
  };
  TypeAttr target = getElement(launch->getResult(0));
  if (launch.isGather())
    return target;
  return ArrayAttr::get(launch.getContext(),
                        {getElement(launch->getOperand(0)), target,
                         TypeAttr::get(launch.getWireType()),
                         launch.getDivideAttr()});
}

//===----------------------------------------------------------------------===//
// Verification
//===----------------------------------------------------------------------===//

namespace {
/// The gather that a gathered value comes from, at either level.
struct SourceGather {
  explicit SourceGather(Value full) {
    if (auto argument = dyn_cast<BlockArgument>(full)) {
      auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
      if (auto state = func.getArgAttrOfType<StateAttr>(
              argument.getArgNumber(), FSDPDialect::getStateAttrName()))
        unit = state.getUnit(); // which is gathered for all phases
      return;
    }
    Operation *op = full.getDefiningOp();
    if (auto wait = dyn_cast_or_null<AsyncWaitOp>(op))
      op = wait.getFuture().getDefiningOp();
    auto gather = dyn_cast_or_null<CollectiveOpInterface>(op);
    if (!gather || !gather.isGather())
      return;
    unit = gather.getUnitAttr();
    phase = getGatherPhase(gather.getPhaseAttr().getValue());
    loc = gather.getLoc();
  }

  FlatSymbolRefAttr unit; // null: not known
  aten::Phase phase = aten::Phase::Forward;
  std::optional<Location> loc;
};
} // namespace

LogicalResult verifyGathers(func::FuncOp step) {
  SymbolTable symbols(step->getParentOfType<ModuleOp>());
  Block &block = step.getBody().front();
  auto verifyShard = [&](CollectiveOpInterface op) -> LogicalResult {
    FlatSymbolRefAttr unit = op.getUnitAttr();
    Value shard = skipCopies(op->getOperand(0));
    if (auto piece = shard.getDefiningOp<PieceOp>();
        piece && piece.getUnitAttr() == unit &&
        SourceGather(piece.getFull()).unit == unit)
      return success();
    auto argument = dyn_cast<BlockArgument>(shard);
    auto state =
        argument ? step.getArgAttrOfType<StateAttr>(
                       argument.getArgNumber(), FSDPDialect::getStateAttrName())
                 : StateAttr();
    if (state && state.getUnit() == unit &&
        state.getKind() == StateAttr::getParameterKind())
      return success();
    return op->emitError("expected to gather the parameter argument of unit ")
           << unit << ", or a piece of it";
  };

  for (Operation &op : block) {
    if (auto gather = dyn_cast<CollectiveOpInterface>(op);
        gather && gather.isGather() && failed(verifyShard(gather)))
      return failure();
    if (auto view = dyn_cast<ViewOp>(op)) {
      SourceGather gather(view.getFull());
      if (gather.unit != view.getUnitAttr())
        return op.emitError("expected a view of a gather of unit ")
               << view.getUnitAttr() << ", got one of " << gather.unit;
      continue;
    }
    auto call = dyn_cast<aten::CallOp>(op);
    if (!call)
      continue;
    // A view of a view belongs to the gather of the first, and so does its
    // phase.
    for (Value input : call.getInputs()) {
      Value full = aten::getViewRoot(input);
      if (!isa<GatheredType>(full.getType()))
        continue;
      SourceGather gather(full);
      if (gather.phase == getGatherPhase(call))
        continue;
      auto unit = symbols.lookup<UnitOp>(gather.unit.getAttr());
      if (!unit || !unit.getReshardAfterForward())
        continue;
      InFlightDiagnostic diag = op.emitError("the ")
                                << aten::stringifyPhase(getGatherPhase(call))
                                << " reads unit " << gather.unit
                                << " as gathered for the "
                                << aten::stringifyPhase(gather.phase);
      diag.attachNote(gather.loc) << "gathered here";
      return diag;
    }
  }
  return success();
}

} // namespace fsdp
