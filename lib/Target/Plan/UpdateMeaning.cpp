//===- UpdateMeaning.cpp - What a step makes of its gradients -------------===//
//
// Reductions, what scales gradients, and updates: by what the program says, not
// by its commands.
//
//===----------------------------------------------------------------------===//

#include "SourceRun.h"

#include "fsdp/Dialect/FSDP/IR/ClipFactor.h"
#include "fsdp/Dialect/FSDP/IR/Layout.h"
#include "fsdp/PlanFile/PlanFile.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;
using fsdp::aten::ATenDialect;

/// The axes of these names that are of more than one rank, as bits.
static uint64_t getAxes(MeshOp mesh, ArrayAttr names) {
  uint64_t axes = 0;
  for (auto [index, axis] :
       llvm::enumerate(mesh.getAxes().getAsRange<AxisAttr>()))
    if (axis.getSize() != 1 && llvm::is_contained(names, axis.getName()))
      axes |= uint64_t(1) << index;
  return axes;
}

/// What the optimizer of the step does to whatever has a gradient.
void SourceRun::readOptimizer() {
  kinds = {StateAttr::getParameterKind()};
  for (auto update : step.getBody().front().getOps<UpdateOpInterface>()) {
    if (rule.empty()) {
      rule = update.getRule();
      kinds = update.getStateKinds();
    }
    auto argument = dyn_cast<BlockArgument>(update.getHyper());
    auto group =
        argument ? step.getArgAttrOfType<IntegerAttr>(
                       argument.getArgNumber(), FSDPDialect::getHyperAttrName())
                 : IntegerAttr();
    if (group && step.getArgAttr(argument.getArgNumber(),
                                 FSDPDialect::getNoDecayAttrName()))
      withoutDecay.insert(uint64_t(group.getInt()));
    ArrayRef<int64_t> intervals = update.getIntervals();
    for (size_t i = 0; i + 1 < intervals.size(); i += 2)
      groups[update.getUnitAttr()].push_back(
          {uint64_t(intervals[i]), uint64_t(intervals[i + 1]),
           group ? uint64_t(group.getInt()) : 0});
    // The clip factor is there by one option, the others by another.
    auto [factor, scale, found, skips] = update.getScalars();
    isScaled |= (factor && !getClipGradNorm(step)) ||
                ((scale || found || skips) && !getGradScaler(step)) ||
                update.getGradient().getDefiningOp<ScaleOp>();
  }
}

/// The elements of a unit that train, by the decay group that they are in.
std::map<uint64_t, std::vector<sy::Range>>
SourceRun::getGroups(UnitOp unit, const sy::Unit &own) {
  SmallVector<DecayGroup> found = groups.lookup(FlatSymbolRefAttr::get(unit));
  llvm::sort(found, [](const DecayGroup &left, const DecayGroup &right) {
    return left.begin < right.begin;
  });
  std::map<uint64_t, std::vector<sy::Range>> ranges;
  for (const sy::Unit::Parameter &parameter : own.parameters) {
    if (!parameter.isTrainable)
      continue;
    uint64_t at = parameter.offset, end = parameter.offset + parameter.numel;
    auto add = [&](uint64_t to, uint64_t group) {
      to = std::min(to, end);
      if (at < to)
        ranges[group].emplace_back(at, to);
      at = std::max(at, to);
    };
    for (const DecayGroup &group : found) {
      add(group.begin, 0); // by no update: what trains all the same
      if (group.end > at)
        add(group.end, group.number);
    }
    add(end, 0);
  }
  return ranges;
}

void SourceRun::readStates() {
  part = step->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  for (auto func : step->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    for (unsigned i = 0; i != func.getNumResults(); ++i)
      if (auto state = func.getResultAttrOfType<StateAttr>(
              i, FSDPDialect::getStateAttrName());
          state && state.isAccumulated())
        accumulated[state.getUnit()] = state.getKind();
      else if (state &&
               state.getKind() == StateAttr::getUnshardedParameterKind())
        kept[state.getUnit()] = getElementType(func.getResultTypes()[i]);
  for (auto func : step->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    for (unsigned i = 0; i != func.getNumArguments(); ++i)
      if (auto state = func.getArgAttrOfType<StateAttr>(
              i, FSDPDialect::getStateAttrName());
          state && !state.isAccumulated() &&
          state.getKind() != StateAttr::getUnshardedParameterKind())
        if (SmallVector<StringRef> &list = states[state.getUnit()];
            !llvm::is_contained(list, state.getKind().getValue()))
          list.push_back(state.getKind());
}

/// The axes of more than one rank over which the gradients of a unit are means,
/// as bits, and how many ranks that are.
std::pair<uint64_t, int64_t> SourceRun::getGroup(UnitOp unit) {
  auto mesh = symbols.lookup<MeshOp>(unit.getMesh());
  return {getAxes(mesh, unit.getShardAxes()) |
              getAxes(mesh, unit.getReplicateAxes()),
          mesh.getGroupSize(unit.getShardAxes()) *
              mesh.getGroupSize(unit.getReplicateAxes())};
}

/// How the gradients of a unit become means over the ranks that share it: as
/// its `fsdp.reductions` say, or as PyTorch does it.
FailureOr<SmallVector<SourceRun::Reduction>>
SourceRun::getReductions(UnitOp unit) {
  const sy::Unit &own = units[unit];
  auto mesh = symbols.lookup<MeshOp>(unit.getMesh());
  auto [over, size] = getGroup(unit);
  auto named =
      unit->getAttrOfType<ArrayAttr>(FSDPDialect::getReductionsAttrName());
  SmallVector<Reduction> reductions;
  if (!named) {
    DivideFactors divide = getDivideFactors(size);
    bool isHybrid = own.axes && over != own.axes;
    if (isHybrid)
      reductions.push_back({own.axes, divide.pre, 1, own.reduce, own.reduce});
    reductions.push_back({isHybrid ? over & ~own.axes : over,
                          isHybrid ? 1 : divide.pre, divide.post, own.reduce,
                          own.storage});
    return reductions;
  }
  uint64_t summed = 0;
  double divided = 1;
  for (auto reduction : named.getAsRange<ReductionAttr>()) {
    std::optional<pf::DType> via = toPlanDType(reduction.getVia()),
                             result = toPlanDType(reduction.getResult());
    uint64_t axes = getAxes(mesh, reduction.getAxes());
    DivideAttr divide = reduction.getDivide();
    if (!via || !result || (axes & summed))
      return unit.emitError("expected reductions over each axis once, in types "
                            "that a plan file knows, got ")
             << named;
    reductions.push_back(
        {axes, divide.getPre(), divide.getPost(), *via, *result});
    summed |= axes;
    divided *= divide.getPre() * divide.getPost();
  }
  if (summed != over || std::abs(divided - double(size)) > 1e-9 * double(size))
    return unit.emitError("expected reductions to a mean over ")
           << size << " ranks, got " << named;
  return reductions;
}

/// The reduced gradient of a unit, from one for each parameter or null.
LogicalResult SourceRun::addGradient(UnitOp unit, ArrayRef<Value> gradients) {
  const sy::Unit &own = units[unit];
  const Value *first = llvm::find_if(gradients, [](Value v) { return !!v; });
  if (first == gradients.end())
    return success();
  const sy::Layout &whole = layouts.emplace_back(sy::Layout::vector(own.numel));
  sy::Window flat = place(whole, own.reduce);
  machine.zero(flat);
  for (auto [parameter, value] :
       llvm::zip_equal(unit.getLayout().getParameters(), gradients)) {
    if (!value)
      continue;
    sy::Layout layout(parameter.getSizes().vec(), getStrides(parameter));
    machine.copy(places[value].window, flat.at(parameter.getOffset(), layout));
  }
  sy::Content gradient = machine.memory.read(flat);
  // What is summed over micro-batches is summed where it is of this kind.
  auto accumulate = [&](StringRef kind, pf::DType dtype) {
    if (!part || accumulated.lookup(FlatSymbolRefAttr::get(unit)) != kind)
      return;
    if (part.getValue() != Part::First)
      gradient = machine.accumulate(own, machine.accumulated(own, kind),
                                    gradient, dtype);
    if (part.getValue() != Part::Last)
      machine.describe(own, kind, gradient, /*skipsZeros=*/true, meanings);
  };
  accumulate(StateAttr::getUnshardedGradientKind(), own.reduce);
  auto reductions = getReductions(unit);
  if (failed(reductions))
    return failure();
  pf::DType dtype = own.reduce;
  auto cast = [&](pf::DType to) {
    if (to != dtype)
      gradient = machine.values.cast(gradient, to);
    dtype = to;
  };
  for (const Reduction &reduction : *reductions) {
    cast(reduction.via);
    if (reduction.axes)
      gradient =
          machine.values.sum(gradient, reduction.axes,
                             {reduction.pre, reduction.post}, dtype, own.numel);
    cast(reduction.result);
    if (reduction.axes == own.axes)
      accumulate(StateAttr::getPartialGradientKind(), own.reduce);
  }
  cast(own.storage);
  accumulate(StateAttr::getShardedGradientKind(), own.storage);
  if (!part || part.getValue() == Part::Last)
    machine.describe(own, "gradient", gradient, /*skipsZeros=*/true, meanings);
  reduced[unit] = std::move(gradient);
  return success();
}

/// One number of all gradients, in the order of units: those together that are
/// sharded along the same axes.
SmallVector<sy::Window> SourceRun::measure(MeasureKind kind) {
  llvm::MapVector<uint64_t, std::optional<sy::Content>> sums; // by axes
  for (auto &[unit, own] : units) {
    auto gradient = reduced.find(unit);
    if (gradient == reduced.end())
      continue;
    std::vector<sy::Range> ranges;
    for (const sy::Unit::Parameter &parameter : own.parameters)
      if (parameter.isTrainable)
        ranges.emplace_back(parameter.offset,
                            parameter.offset + parameter.numel);
    std::optional<sy::Content> &sum = sums[own.axes];
    sum = machine.measure(own, pf::EnumNameMeasureKind(pf::MeasureKind(kind)),
                          gradient->second, own.storage, sum, ranges);
  }
  SmallVector<sy::Window> measures;
  for (auto &[group, sum] : sums) {
    if (group)
      sum = machine.values.sum(*sum, group, {}, pf::DType::F64, 1,
                               isMaximum(kind) ? pf::ReduceKind::Max
                                               : pf::ReduceKind::Sum);
    measures.push_back(place(number, pf::DType::F64));
    machine.memory.write(measures.back(), *sum);
  }
  return measures;
}

/// The results, of one number each, of an operator.
FailureOr<SmallVector<sy::Window>>
SourceRun::call(StringRef name, ArrayRef<sy::Window> operands,
                ArrayRef<Attribute> constants, ArrayRef<pf::DType> types) {
  MLIRContext *context = step.getContext();
  SmallVector<Attribute> values(operands.size(),
                                aten::OperandAttr::get(context));
  llvm::append_range(values, constants);
  auto known =
      getCall(step, aten::OpNameAttr::get(context, name),
              aten::ArgsAttr::get(context, values, ArrayRef<StringAttr>()),
              types.size());
  if (failed(known))
    return failure();
  SmallVector<sy::Window> results;
  for (pf::DType type : types)
    results.push_back(place(number, type));
  SmallVector<const sy::Window *> inputs;
  for (const sy::Window &window : operands)
    inputs.push_back(&window);
  std::vector<const sy::Window *> places;
  for (const sy::Window &window : results)
    places.push_back(&window);
  machine.launch(*(*known)->op, (*known)->getArguments(inputs), places);
  return results;
}

/// An argument of the step, which its source has not.
FailureOr<sy::Window> SourceRun::addScalerBuffer(StringRef buffer) {
  for (BlockArgument argument : step.getArguments()) {
    auto name = step.getArgAttrOfType<StringAttr>(
        argument.getArgNumber(), ATenDialect::getBufferAttrName());
    if (!name || name != buffer)
      continue;
    if (failed(addArgument(step, argument)))
      return failure();
    return places[argument].window;
  }
  return step.emitError("expected the buffer '")
         << buffer << "' of the grad-scaler, found none";
}

/// What stops updates and scales gradients, if the program says that its loss
/// is scaled.
LogicalResult SourceRun::addFoundInf() {
  if (!getGradScaler(step))
    return success();
  SmallVector<sy::Window> measures = measure(MeasureKind::FoundInf);
  if (measures.empty())
    return success();
  sy::Window all = measures.front();
  for (const sy::Window &other : ArrayRef(measures).drop_front()) {
    auto larger = call("maximum", {all, other}, {}, pf::DType::F64);
    if (failed(larger))
      return failure();
    all = larger->front();
  }
  sy::Window found = place(number, pf::DType::F32);
  machine.copy(all, found);
  scalar(UpdateScalar::FoundInf) = found;
  auto skips = addScalerBuffer(GradScaler::getSkippedName()),
       tracker = addScalerBuffer(GradScaler::getGrowthTrackerName());
  if (failed(skips) || failed(tracker))
    return failure();
  scalar(UpdateScalar::Skipped) = *skips;
  growthTracker = *tracker;
  if (scalar(UpdateScalar::LossScale))
    return success();
  return step.emitError("expected a source that says where the backward "
                        "starts, whose loss is scaled; found none");
}

/// What clips the norm of all gradients, if the program says that it is
/// clipped.
LogicalResult SourceRun::addClipFactor() {
  ClipGradNorm clip = getClipGradNorm(step);
  if (!clip)
    return success();
  SmallVector<sy::Window> measures = measure(clip.kind);
  if (measures.empty())
    return success();
  bool isKnown = true;
  auto callOne = [&](StringRef name, ArrayRef<sy::Window> operands,
                     Attribute constant) {
    auto results = call(name, operands,
                        constant ? ArrayRef(constant) : ArrayRef<Attribute>(),
                        pf::DType::F64);
    isKnown &= succeeded(results);
    return isKnown ? results->front() : operands.front();
  };
  sy::Window factor = makeClipFactor<sy::Window>(
      clip, measures, scalar(UpdateScalar::LossScale), step.getContext(),
      callOne);
  sy::Window narrow = place(number, pf::DType::F32);
  machine.copy(factor, narrow);
  scalar(UpdateScalar::ClipFactor) = narrow;
  return success(isKnown);
}

/// What becomes of the scale of the loss.
LogicalResult SourceRun::addScale() {
  auto [factor, lossScale, foundInf, skipped] = scalars;
  if (!foundInf)
    return success();
  GradScaler scaler = getGradScaler(step);
  Builder builder(step.getContext());
  auto next = call("_amp_update_scale", {*lossScale, *growthTracker, *foundInf},
                   {builder.getF64FloatAttr(scaler.growthFactor),
                    builder.getF64FloatAttr(scaler.backoffFactor),
                    builder.getI64IntegerAttr(scaler.growthInterval)},
                   {pf::DType::F32, pf::DType::I32});
  auto sum = call("add.Tensor", {*skipped, *foundInf}, {}, pf::DType::F32);
  if (failed(next) || failed(sum))
    return failure();
  auto describe = [&](StringRef buffer, const sy::Window &window) {
    sy::Content content = machine.memory.read(window);
    meanings[("buffer " + buffer).str()] =
        machine.describe(content, machine.getOperand(window, content));
  };
  describe(GradScaler::getScaleName(), (*next)[0]);
  describe(GradScaler::getGrowthTrackerName(), (*next)[1]);
  describe(GradScaler::getSkippedName(), sum->front());
  return success();
}

/// What the update makes of a unit's parameters and states.
void SourceRun::addStates(UnitOp unit) {
  const sy::Unit &own = units[unit];
  auto gradient = reduced.find(unit);
  // What other programs sum stays as it is.
  if (StringRef kind = accumulated.lookup(FlatSymbolRefAttr::get(unit));
      !part && !kind.empty())
    machine.describe(own, kind, machine.accumulated(own, kind),
                     /*skipsZeros=*/true, meanings);
  if (Type type = kept.lookup(FlatSymbolRefAttr::get(unit));
      type && part && part.getValue() != Part::Last)
    machine.describe(own, pf::unshardedParameter,
                     machine.unsharded(own, *toPlanDType(type)),
                     /*skipsZeros=*/false, meanings);
  if (gradient == reduced.end() || rule.empty()) {
    // What others train stays as it is.
    for (StringRef kind : states.lookup(FlatSymbolRefAttr::get(unit)))
      machine.describe(own, kind, machine.initial(own, kind),
                       /*skipsZeros=*/false, meanings);
    return;
  }
  std::vector<sy::Content> values;
  for (StringRef kind : kinds)
    values.push_back(machine.initial(own, kind));
  sy::Machine::ScalarContents contents;
  for (auto [window, content] : llvm::zip_equal(scalars, contents))
    if (window)
      content = machine.memory.read(*window);
  for (const auto &[group, ranges] : getGroups(unit, own)) {
    std::string_view name = withoutDecay.contains(group) ? pf::noDecay : "";
    values = machine.update(own, rule, gradient->second, values,
                            machine.hyper(group, name), contents, ranges);
  }
  for (auto [kind, value] : llvm::zip_equal(kinds, values)) {
    sy::Meanings updated;
    machine.describe(own, kind, value, /*skipsZeros=*/false, updated);
    if (isScaled)
      for (auto &[name, meaning] : updated) {
        meaning.number = sy::Key("scaled", meaning.number).number();
        meaning.unknown =
            "nothing says by what gradients are scaled, or when they are used";
      }
    meanings.merge(updated);
  }
}
