//===- Meaning.cpp - What a model computes, as numbers --------------------===//

#include "fsdp/Target/Plan/Meaning.h"

#include "Arguments.h"

#include "fsdp/Archive/PlanFile.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"
#include "fsdp/Dialect/FSDP/IR/Layout.h"
#include "fsdp/Symbolic/VerifyPlan.h"
#include "fsdp/Target/Plan/ClipFactor.h"

#include "llvm/ADT/MapVector.h"

#include <deque>
#include <xxhash.h>

using namespace mlir;
using namespace fsdp;
using fsdp::aten::ATenDialect;
namespace pf = fsdp::planfile;
namespace sy = fsdp::symbolic;

namespace {

class SourceRun {
public:
  SourceRun(func::FuncOp source, func::FuncOp step, const sy::Ranks &ranks)
      : source(source), step(step), symbols(step->getParentOfType<ModuleOp>()),
        machine(ranks) {
    machine.values.isRecording = true;
  }

  FailureOr<PlanMeaning> run();

private:
  /// Where a value lies, and where the tensor starts whose storage it shares.
  struct Place {
    sy::Window window;
    uint64_t storage = 0;
  };
  /// A call without its operands.
  struct Call {
    const sy::Operator *op = nullptr;
    std::vector<MatchedArgument> arguments;
    std::vector<sy::Literal> literals;

    std::vector<sy::Argument>
    getArguments(ArrayRef<const sy::Window *> operands) const;
  };

  LogicalResult readUnits();
  LogicalResult addArgument(BlockArgument argument);
  LogicalResult addCall(aten::CallOp op);
  FailureOr<const Call *> getCall(Operation *op, aten::OpNameAttr callee,
                                  aten::ArgsAttr args, size_t numResults);
  void meanOverRanks(sy::Content &content, const sy::Window &window);
  LogicalResult addResults();
  void readOptimizer();
  std::map<uint64_t, std::vector<sy::Range>> getGroups(UnitOp unit,
                                                       const sy::Unit &own);
  void readStates();
  std::pair<uint64_t, int64_t> getGroup(UnitOp unit);
  std::optional<sy::Content> addGradient(UnitOp unit,
                                         ArrayRef<Value> gradients);
  LogicalResult addClipFactor();
  void addStates(UnitOp unit);

  const sy::Layout *getLayout(RankedTensorType type);
  FailureOr<Place> place(Location loc, Type type);
  sy::Window place(const sy::Layout &layout, pf::DType dtype);

  func::FuncOp source, step;
  SymbolTable symbols;
  sy::Machine machine;
  std::deque<sy::Layout> layouts;
  DenseMap<Type, const sy::Layout *> layoutOf;
  DenseMap<Value, Place> places;
  DenseMap<std::pair<Attribute, Attribute>, Call> calls;
  uint64_t end = 0; // of the memory in use
  uint32_t numRoots = 0;

  uint64_t axes = 0; // of more than one rank, as bits
  int64_t numRanks = 1;
  StringRef rule;               // of the update; empty if there is none
  SmallVector<StringRef> kinds; // of the states that it changes
  bool isScaled = false;        // by what nothing says
  PartAttr part;                // of a step of several micro-batches
  StringRef accumulated;        // what it sums; empty if nothing
  /// The decay groups of elements of a unit.
  struct DecayGroup {
    uint64_t begin, end, number;
  };
  llvm::SmallDenseSet<uint64_t> withoutDecay; // groups
  DenseMap<Attribute, SmallVector<DecayGroup>> groups;
  /// The kinds of state that some program has of each unit.
  DenseMap<Attribute, SmallVector<StringRef>> states;
  DenseMap<StringAttr, std::pair<UnitOp, ParameterAttr>> parameters;
  llvm::MapVector<Operation *, sy::Unit> units;
  DenseMap<Operation *, sy::Content> reduced; // gradients, of units
  std::optional<sy::Content> clipFactor;
  sy::Meanings meanings, whole; // of the program, and of the plan
};

} // namespace

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

const sy::Layout *SourceRun::getLayout(RankedTensorType type) {
  const sy::Layout *&layout = layoutOf[type];
  if (!layout) {
    SmallVector<int64_t> strides = aten::getStrides(type);
    layout = &layouts.emplace_back(
        std::vector<int64_t>(type.getShape().begin(), type.getShape().end()),
        std::vector<int64_t>(strides.begin(), strides.end()));
  }
  return layout;
}

sy::Window SourceRun::place(const sy::Layout &layout, pf::DType dtype) {
  sy::Window window{numRoots, numRoots, pf::Space::Device, dtype, end, &layout};
  ++numRoots;
  end = llvm::alignTo(window.end() + 1, 64);
  return window;
}

FailureOr<SourceRun::Place> SourceRun::place(Location loc, Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  std::optional<pf::DType> dtype =
      tensor ? toPlanDType(tensor.getElementType()) : std::nullopt;
  if (!dtype || !tensor.hasStaticShape())
    return emitError(loc) << "expected a tensor of known sizes, found " << type;
  sy::Window window = place(*getLayout(tensor), *dtype);
  // The storage may start ahead of the first element.
  uint64_t ahead = aten::getOffset(tensor) * pf::getItemSize(*dtype);
  return Place{window, window.begin - ahead};
}

//===----------------------------------------------------------------------===//
// Units and arguments
//===----------------------------------------------------------------------===//

static std::vector<int64_t> getStrides(ParameterAttr parameter) {
  if (!parameter.getStrides().empty())
    return parameter.getStrides().vec();
  SmallVector<int64_t> strides = aten::getDenseStrides(parameter.getSizes());
  return {strides.begin(), strides.end()};
}

static sy::ParameterFacts getFacts(ParameterAttr parameter) {
  sy::ParameterFacts facts{parameter.getName().str(),
                           {},
                           parameter.getSizes().vec(),
                           getStrides(parameter),
                           !parameter.getFrozen()};
  for (StringAttr alias : parameter.getAliases())
    facts.aliases.push_back(alias.str());
  return facts;
}

LogicalResult SourceRun::readUnits() {
  auto module = step->getParentOfType<ModuleOp>();
  for (auto mesh : module.getOps<MeshOp>()) {
    std::vector<std::pair<std::string, uint64_t>> named;
    for (auto [index, axis] :
         llvm::enumerate(mesh.getAxes().getAsRange<AxisAttr>())) {
      if (axis.getSize() != 1)
        axes |= uint64_t(1) << index;
      named.emplace_back(axis.getName().getValue(), axis.getSize());
    }
    numRanks = mesh.getNumRanks();
    whole["mesh"] = {sy::getMeshNumber(named)};
  }
  std::vector<sy::ParameterFacts> facts;
  for (auto unit : module.getOps<UnitOp>()) {
    sy::Unit &own = units[unit];
    std::optional<pf::DType> storage = toPlanDType(unit.getStorage()),
                             reduce = toPlanDType(unit.getReduce());
    if (!storage || !reduce)
      return unit.emitError("expected element types that a plan file knows");
    own.name = unit.getSymName();
    own.storage = *storage;
    own.reduce = *reduce;
    own.numel = unit.getLayout().getPadded();
    own.shards = 1;
    for (auto [index, axis] :
         llvm::enumerate(symbols.lookup<MeshOp>(unit.getMesh())
                             .getAxes()
                             .getAsRange<AxisAttr>()))
      if (axis.getSize() != 1 &&
          llvm::is_contained(unit.getShardAxes(), axis.getName())) {
        own.axes |= uint64_t(1) << index;
        own.shards *= uint64_t(axis.getSize());
      }
    own.same = getGroup(unit).first;
    for (ParameterAttr parameter : unit.getLayout().getParameters()) {
      own.parameters.push_back(
          {parameter.getName().getValue(), uint64_t(parameter.getOffset()),
           uint64_t(parameter.getEnd() - parameter.getOffset()),
           !parameter.getFrozen()});
      parameters[parameter.getName()] = {unit, parameter};
      facts.push_back(getFacts(parameter));
    }
  }
  whole["parameters"] = {sy::getParametersNumber(std::move(facts))};
  return success();
}

LogicalResult SourceRun::addArgument(BlockArgument argument) {
  FailureOr<Place> placed = place(argument.getLoc(), argument.getType());
  if (failed(placed))
    return failure();
  places[argument] = *placed;
  const sy::Window &window = placed->window;
  auto get = [&](StringRef name) {
    return source.getArgAttr(argument.getArgNumber(), name);
  };
  auto set = [&](const sy::Key &key, const Twine &words, uint64_t same) {
    machine.values.note(key.number(), words.str());
    machine.memory.write(
        window, sy::Content::vector(key.number(), window.layout->numel, same));
    return success();
  };
  if (auto name =
          dyn_cast_or_null<StringAttr>(get(ATenDialect::getParamAttrName()))) {
    if (!window.layout->isGapless && !window.isEmpty())
      return emitError(argument.getLoc()) << "expected a dense parameter";
    // Elements are numbered in the order of the flat parameter.
    sy::Layout flat = sy::Layout::vector(window.layout->numel);
    sy::Key key("initial", sy::hashText("parameter"),
                sy::hashText(name.getValue()), window.dtype);
    machine.values.note(key.number(), ("parameter " + name.getValue()).str());
    machine.memory.write(window.at(0, flat),
                         sy::Content::vector(key.number(), window.layout->numel,
                                             sy::everywhere));
    return success();
  }
  uint64_t hash = 0;
  auto content =
      dyn_cast_or_null<ElementsAttr>(get(ATenDialect::getValueAttrName()));
  if (content) {
    auto bytes =
        getBytes(source, content, cast<RankedTensorType>(argument.getType()));
    if (failed(bytes))
      return failure();
    hash = XXH3_64bits(bytes->data(), bytes->size());
  }
  // The content is that of a buffer which the weights do not have.
  if (auto name =
          dyn_cast_or_null<StringAttr>(get(ATenDialect::getBufferAttrName())))
    return set(
        sy::Key("buffer", sy::hashText(name.getValue()), hash, window.dtype),
        "buffer " + name.getValue(), 0);
  if (auto index =
          dyn_cast_or_null<IntegerAttr>(get(ATenDialect::getInputAttrName()))) {
    auto name =
        dyn_cast_or_null<StringAttr>(get(ATenDialect::getInputNameAttrName()));
    std::string text = name ? name.str() : "";
    return set(
        sy::Key("input", uint64_t(index.getInt()), sy::hashText(text),
                window.dtype),
        "input " + (text.empty() ? std::to_string(index.getInt()) : text), 0);
  }
  if (!content)
    return emitError(argument.getLoc())
           << "expected a parameter, a buffer, an input or a constant";
  return set(sy::Key("constant", hash, window.dtype), "a constant",
             sy::everywhere);
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// Operator and constants, found once for all calls that share them. `op` is
/// what a diagnostic is about.
FailureOr<const SourceRun::Call *> SourceRun::getCall(Operation *op,
                                                      aten::OpNameAttr callee,
                                                      aten::ArgsAttr args,
                                                      size_t numResults) {
  auto [entry, isNew] = calls.try_emplace({callee, args});
  Call &call = entry->second;
  if (!isNew)
    return &call;
  std::string text = getSchemaText(callee, args, numResults);
  std::optional<pf::OperatorSchema> schema = pf::parseOperatorSchema(text);
  if (!schema)
    return op->emitOpError()
           << "expected an operator with a schema, found '" << text << "'";
  auto arguments = matchArguments(op, *schema, args);
  if (failed(arguments))
    return failure();
  call.op = &machine.getOperator(callee.getQualifiedName(), text);
  call.arguments = std::move(*arguments);
  for (const MatchedArgument &argument : call.arguments)
    call.literals.push_back({argument.constant.kind, argument.constant.integers,
                             argument.constant.floats, argument.constant.text});
  return &call;
}

std::vector<sy::Argument>
SourceRun::Call::getArguments(ArrayRef<const sy::Window *> operands) const {
  std::vector<sy::Argument> result;
  result.reserve(arguments.size());
  for (auto [match, literal] : llvm::zip_equal(arguments, literals)) {
    sy::Argument &argument = result.emplace_back();
    if (match.kind == MatchedArgument::Constant &&
        match.constant.kind != pf::Value::Refs)
      argument.literal = &literal;
    const auto *operand = operands.begin() + match.firstOperand;
    for (bool isPresent : match.present)
      argument.tensors.push_back(isPresent ? *operand++ : nullptr);
  }
  return result;
}

LogicalResult SourceRun::addCall(aten::CallOp op) {
  if (op.getNumResults() == 0)
    return success();
  if (Value source = aten::getViewSource(op)) {
    const Place &from = places[source];
    Place place = from;
    for (Value result : op.getResults()) {
      auto type = cast<RankedTensorType>(result.getType());
      place.window.dtype =
          toPlanDType(type.getElementType()).value_or(from.window.dtype);
      place.window.layout = getLayout(type);
      place.window.begin =
          place.storage +
          aten::getOffset(type) * pf::getItemSize(place.window.dtype);
      places[result] = place;
    }
    return success();
  }
  auto call =
      getCall(op, op.getCalleeAttr(), op.getArgsAttr(), op.getNumResults());
  if (failed(call))
    return failure();
  SmallVector<const sy::Window *> operands;
  for (Value input : op.getInputs())
    operands.push_back(&places.find(input)->second.window);
  std::vector<sy::Window> windows(op.getNumResults());
  std::vector<const sy::Window *> results;
  for (auto [result, window] : llvm::zip_equal(op.getResults(), windows)) {
    results.push_back(nullptr);
    if (isa<NoneType>(result.getType()))
      continue;
    FailureOr<Place> placed = place(op.getLoc(), result.getType());
    if (failed(placed))
      return failure();
    window = placed->window;
    results.back() = &window;
  }
  std::string maker = op.getCallee().getName().str();
  if (auto name = dyn_cast<NameLoc>(op.getLoc());
      name && name.getName().getValue() != maker)
    maker = (name.getName().getValue() + " (" + op.getCallee().getName() + ")")
                .str();
  machine.values.maker = std::move(maker);
  machine.launch(*(*call)->op, (*call)->getArguments(operands), results);
  for (auto [result, window] : llvm::zip_equal(op.getResults(), windows))
    if (auto type = dyn_cast<RankedTensorType>(result.getType()))
      places[result] = {window,
                        window.begin - aten::getOffset(type) *
                                           pf::getItemSize(window.dtype)};
  if (machine.memory.getProblem())
    return op.emitOpError("expected operands that have been computed");
  return success();
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

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
    isScaled |= (update.getClipFactor() && !getClipGradNorm(step)) ||
                update.getLossScale() || update.getFoundInf() ||
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
        accumulated = state.getKind();
  for (auto func : step->getParentOfType<ModuleOp>().getOps<func::FuncOp>())
    for (unsigned i = 0; i != func.getNumArguments(); ++i)
      if (auto state = func.getArgAttrOfType<StateAttr>(
              i, FSDPDialect::getStateAttrName());
          state && !state.isAccumulated())
        if (SmallVector<StringRef> &list = states[state.getUnit()];
            !llvm::is_contained(list, state.getKind().getValue()))
          list.push_back(state.getKind());
}

/// The axes of more than one rank over which the gradients of a unit are means,
/// as bits, and how many ranks that are.
std::pair<uint64_t, int64_t> SourceRun::getGroup(UnitOp unit) {
  auto mesh = symbols.lookup<MeshOp>(unit.getMesh());
  uint64_t group = 0;
  int64_t size = 1;
  for (auto [index, axis] :
       llvm::enumerate(mesh.getAxes().getAsRange<AxisAttr>()))
    if (axis.getSize() != 1 &&
        (llvm::is_contained(unit.getShardAxes(), axis.getName()) ||
         llvm::is_contained(unit.getReplicateAxes(), axis.getName()))) {
      group |= uint64_t(1) << index;
      size *= axis.getSize();
    }
  return {group, size};
}

/// The reduced gradient of a unit, from one for each parameter or null.
std::optional<sy::Content> SourceRun::addGradient(UnitOp unit,
                                                  ArrayRef<Value> gradients) {
  const sy::Unit &own = units[unit];
  const Value *first = llvm::find_if(gradients, [](Value v) { return !!v; });
  if (first == gradients.end())
    return std::nullopt;
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
  bool isUnsharded =
      part && accumulated == StateAttr::getUnshardedGradientKind();
  auto accumulate = [&](pf::DType dtype) {
    if (part.getValue() != Part::First)
      gradient = machine.accumulate(own, machine.accumulated(own, accumulated),
                                    gradient, dtype);
    if (part.getValue() != Part::Last)
      machine.describe(own, accumulated, gradient, /*skipsZeros=*/true,
                       meanings);
  };
  if (isUnsharded)
    accumulate(own.reduce);
  auto [group, size] = getGroup(unit);
  DivideFactors divide = getDivideFactors(size);
  if (group)
    gradient = machine.values.sum(gradient, group, {divide.pre, divide.post},
                                  own.reduce, own.numel);
  if (own.reduce != own.storage)
    gradient = machine.values.cast(gradient, own.storage);
  if (part && !isUnsharded)
    accumulate(own.storage);
  if (!part || part.getValue() == Part::Last)
    machine.describe(own, "gradient", gradient, /*skipsZeros=*/true, meanings);
  return gradient;
}

/// What clips the norm of all gradients, if the program says that it is
/// clipped: measured in the order of units, those together that are sharded
/// along the same axes.
LogicalResult SourceRun::addClipFactor() {
  ClipGradNorm clip = getClipGradNorm(step);
  if (!clip)
    return success();
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
    sum = machine.measure(own,
                          pf::EnumNameMeasureKind(pf::MeasureKind(clip.kind)),
                          gradient->second, own.storage, sum, ranges);
  }
  if (sums.empty())
    return success();
  MLIRContext *context = step.getContext();
  auto number = RankedTensorType::get({}, Float64Type::get(context));
  auto add = [&] { return place(*getLayout(number), pf::DType::F64); };
  std::vector<sy::Window> measures;
  for (auto &[group, sum] : sums) {
    if (group)
      sum = machine.values.sum(*sum, group, {}, pf::DType::F64, 1,
                               clip.kind == MeasureKind::AbsMax
                                   ? pf::ReduceKind::Max
                                   : pf::ReduceKind::Sum);
    measures.push_back(add());
    machine.memory.write(measures.back(), *sum);
  }
  bool isKnown = true;
  auto call = [&](StringRef name, ArrayRef<sy::Window> operands,
                  Attribute constant) {
    SmallVector<Attribute> values(operands.size(),
                                  aten::OperandAttr::get(context));
    if (constant)
      values.push_back(constant);
    auto known = getCall(
        step, aten::OpNameAttr::get(context, name),
        aten::ArgsAttr::get(context, values, ArrayRef<StringAttr>()), 1);
    sy::Window result = add();
    if (failed(known)) {
      isKnown = false;
      return result;
    }
    auto windows = llvm::map_to_vector(
        operands, [](const sy::Window &window) { return &window; });
    machine.launch(*(*known)->op, (*known)->getArguments(windows), {&result});
    return result;
  };
  sy::Window factor =
      makeClipFactor<sy::Window>(clip, measures, std::nullopt, context, call);
  sy::Window target = place(*getLayout(number), pf::DType::F32);
  machine.copy(factor, target);
  clipFactor = machine.memory.read(target);
  return success(isKnown);
}

/// What the update makes of a unit's parameters and states.
void SourceRun::addStates(UnitOp unit) {
  const sy::Unit &own = units[unit];
  auto gradient = reduced.find(unit);
  // What other programs sum stays as it is.
  if (!part && !accumulated.empty())
    machine.describe(own, accumulated, machine.accumulated(own, accumulated),
                     /*skipsZeros=*/true, meanings);
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
  for (const auto &[group, ranges] : getGroups(unit, own)) {
    std::string_view name = withoutDecay.contains(group) ? pf::noDecay : "";
    values = machine.update(own, rule, gradient->second, values,
                            {machine.hyper(group, name), clipFactor}, ranges);
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

/// Of what is in `window`. Sums of narrow types lose digits.
void SourceRun::meanOverRanks(sy::Content &content, const sy::Window &window) {
  if (!axes)
    return;
  pf::DType via =
      pf::getItemSize(window.dtype) < 4 ? pf::DType::F32 : window.dtype;
  if (via != window.dtype)
    content = machine.values.cast(content, via);
  content = machine.values.sum(content, axes, {1, double(numRanks)}, via,
                               window.layout->numel);
  if (via != window.dtype)
    content = machine.values.cast(content, window.dtype);
}

LogicalResult SourceRun::addResults() {
  DenseMap<Operation *, SmallVector<Value>> gradients;
  for (auto &[unit, own] : units)
    gradients[unit].resize(own.parameters.size());
  llvm::SmallDenseSet<Attribute> kept; // outputs of the step
  for (unsigned i = 0; i != step.getNumResults(); ++i)
    if (Attribute index =
            step.getResultAttr(i, ATenDialect::getOutputAttrName()))
      kept.insert(index);

  for (auto [index, value] : llvm::enumerate(
           source.getBody().front().getTerminator()->getOperands())) {
    auto get = [&, i = unsigned(index)](StringRef name) {
      return source.getResultAttr(i, name);
    };
    auto found = places.find(value);
    if (found == places.end())
      continue;
    const sy::Window &window = found->second.window;
    sy::Content content = machine.memory.read(window);
    if (auto name = dyn_cast_or_null<StringAttr>(
            get(ATenDialect::getGradOfAttrName()))) {
      auto owner = parameters.find(name);
      if (owner == parameters.end() || owner->second.second.getFrozen())
        continue;
      UnitOp unit = owner->second.first;
      auto position =
          llvm::find(unit.getLayout().getParameters(), owner->second.second) -
          unit.getLayout().getParameters().begin();
      gradients[unit][position] = value;
    } else if (get(ATenDialect::getLossAttrName())) {
      meanOverRanks(content, window);
      meanings["loss"] =
          machine.describe(content, machine.getOperand(window, content));
    } else if (auto name = dyn_cast_or_null<StringAttr>(
                   get(ATenDialect::getBufferMutationAttrName()))) {
      SyncBuffers sync = getSyncBuffers(step);
      if (sync == SyncBuffers::Mean &&
          isa<FloatType>(getElementTypeOrSelf(value)))
        meanOverRanks(content, window);
      if (sync == SyncBuffers::Broadcast && axes)
        content =
            machine.values.sum(content, axes, {}, window.dtype,
                               window.layout->numel, pf::ReduceKind::First);
      sy::Key old("buffer", sy::hashText(name.getValue()), window.dtype);
      if (machine.values.getNumber(content) !=
          machine.values.getNumber(
              sy::Content::vector(old.number(), window.layout->numel)))
        meanings["buffer " + name.str()] =
            machine.describe(content, machine.getOperand(window, content));
    } else if (auto number = dyn_cast_or_null<IntegerAttr>(
                   get(ATenDialect::getOutputAttrName()))) {
      if (kept.contains(number))
        meanings["output " + std::to_string(number.getInt())] =
            machine.describe(content, machine.getOperand(window, content));
    }
  }
  readOptimizer();
  readStates();
  for (auto &[unit, own] : units)
    if (auto gradient = addGradient(cast<UnitOp>(unit), gradients[unit]))
      reduced[unit] = std::move(*gradient);
  machine.values.isRecording = false; // what follows follows from these
  if (failed(addClipFactor()))
    return failure();
  for (auto &[unit, own] : units) {
    machine.values.isRecording = !reduced.contains(unit);
    addStates(cast<UnitOp>(unit));
  }
  if (machine.memory.getProblem())
    return source.emitError("expected results that have been computed");
  return success();
}

FailureOr<PlanMeaning> SourceRun::run() {
  if (failed(readUnits()))
    return failure();
  for (BlockArgument argument : source.getArguments())
    if (failed(addArgument(argument)))
      return failure();
  for (auto call : source.getBody().front().getOps<aten::CallOp>())
    if (failed(addCall(call)))
      return failure();
  machine.describeEffects(meanings);
  if (failed(addResults()))
    return failure();
  return PlanMeaning{std::move(whole), std::move(meanings)};
}

FailureOr<PlanMeaning> fsdp::getMeaning(func::FuncOp source,
                                        func::FuncOp step) {
  std::vector<uint64_t> sizes;
  for (auto mesh : step->getParentOfType<ModuleOp>().getOps<MeshOp>())
    for (AxisAttr axis : mesh.getAxes().getAsRange<AxisAttr>())
      sizes.push_back(uint64_t(axis.getSize()));
  std::optional<sy::Ranks> ranks = sy::Ranks::get(sizes);
  if (!ranks)
    return step.emitError("expected a mesh of at most four million ranks");
  return SourceRun(source, step, *ranks).run();
}
