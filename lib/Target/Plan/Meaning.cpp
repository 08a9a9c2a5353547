//===- Meaning.cpp - What a model computes, as numbers --------------------===//

#include "fsdp/Target/Plan/Meaning.h"

#include "SourceRun.h"

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Symbolic/VerifyPlan.h"

#include <xxhash.h>

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;
using fsdp::aten::ATenDialect;

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

std::vector<int64_t> fsdp::detail::getStrides(ParameterAttr parameter) {
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
  if (auto count = module->getAttrOfType<IntegerAttr>(
          FSDPDialect::getMicroBatchesAttrName());
      count && count.getInt() != 1)
    whole["micro-batches"] = {
        sy::getMicroBatchesNumber(uint64_t(count.getInt()))};
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

LogicalResult SourceRun::addArgument(func::FuncOp func,
                                     BlockArgument argument) {
  FailureOr<Place> placed = place(argument.getLoc(), argument.getType());
  if (failed(placed))
    return failure();
  places[argument] = *placed;
  const sy::Window &window = placed->window;
  auto get = [&](StringRef name) {
    return func.getArgAttr(argument.getArgNumber(), name);
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
    // A cast of what is stored is the parameter in another type; one of what
    // was cast for the program is no more than that.
    sy::Key key("initial", sy::hashText("parameter"),
                sy::hashText(name.getValue()), window.dtype);
    sy::Number number = key.number();
    auto owner = parameters.find(name);
    if (owner != parameters.end() &&
        toPlanDType(owner->second.first.getStorage()) == window.dtype)
      number = machine.stored("parameter", name.getValue(), window.dtype);
    else
      machine.values.note(number, ("parameter " + name.getValue()).str());
    machine.memory.write(
        window.at(0, flat),
        sy::Content::vector(number, window.layout->numel, sy::everywhere));
    return success();
  }
  uint64_t hash = 0;
  auto content =
      dyn_cast_or_null<ElementsAttr>(get(ATenDialect::getValueAttrName()));
  if (content) {
    auto bytes =
        getBytes(func, content, cast<RankedTensorType>(argument.getType()));
    if (failed(bytes))
      return failure();
    hash = XXH3_64bits(bytes->data(), bytes->size());
  }
  // The content is that of a buffer which the weights do not have.
  if (auto name =
          dyn_cast_or_null<StringAttr>(get(ATenDialect::getBufferAttrName())))
    return set(
        sy::Key("buffer", sy::hashText(name.getValue()), hash, window.dtype),
        "buffer " + name.getValue(),
        GradScaler::isState(name) ? sy::everywhere : 0);
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
  std::optional<operators::OperatorSchema> schema =
      operators::parseOperatorSchema(text);
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

LogicalResult SourceRun::addCall(aten::CallOp op, aten::ArgsAttr args) {
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
  auto call = getCall(op, op.getCalleeAttr(), args, op.getNumResults());
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

/// The gradient of the loss by the loss, in the types of
/// `torch.amp.GradScaler.scale` where it is scaled.
LogicalResult SourceRun::addSeed(aten::CallOp seed) {
  SeedFactor factor = getSeedFactor(step);
  FailureOr<aten::ArgsAttr> args = getSeedArgs(seed, factor.divisor);
  if (failed(args) || failed(addCall(seed, *args)))
    return failure();
  if (!factor.isScaled)
    return success();
  auto scale = addScalerBuffer(GradScaler::getScaleName());
  if (failed(scale))
    return failure();
  scalar(UpdateScalar::LossScale) = *scale;
  Place &place = places[seed.getResult(0)];
  pf::DType own = place.window.dtype,
            wide = own == pf::DType::F64 ? own : pf::DType::F32;
  auto scaled = call("mul.Tensor", {place.window, *scale}, {}, wide);
  if (failed(scaled))
    return failure();
  sy::Window window = scaled->front();
  if (wide != own) {
    window = this->place(number, own);
    machine.copy(scaled->front(), window);
  }
  place = {window, window.begin};
  return success();
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

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
    if (failed(addGradient(cast<UnitOp>(unit), gradients[unit])))
      return failure();
  machine.values.isRecording = false; // what follows follows from these
  if (failed(addFoundInf()) || failed(addClipFactor()) || failed(addScale()))
    return failure();
  for (auto &[unit, own] : units) {
    machine.values.isRecording = !reduced.contains(unit);
    addStates(cast<UnitOp>(unit));
  }
  if (machine.memory.getProblem())
    return source.emitError("expected results that have been computed");
  return success();
}

LogicalResult SourceRun::runSource() {
  if (failed(readUnits()))
    return failure();
  for (BlockArgument argument : source.getArguments())
    if (failed(addArgument(source, argument)))
      return failure();
  aten::CallOp seed = getGradientSeed(source);
  for (auto call : source.getBody().front().getOps<aten::CallOp>())
    if (failed(call == seed ? addSeed(call)
                            : addCall(call, call.getArgsAttr())))
      return failure();
  effects = machine.effects;
  return success();
}

FailureOr<PlanMeaning> SourceRun::runStep(func::FuncOp next) {
  bool isFirst = next == step;
  std::optional<sy::Window> lossScale = scalar(UpdateScalar::LossScale);
  static_cast<StepRun &>(*this) = StepRun(next);
  machine.effects = effects;
  machine.values.isRecording = true;
  if (lossScale && !isFirst) {
    auto scale = addScalerBuffer(GradScaler::getScaleName());
    if (failed(scale))
      return failure();
    lossScale = *scale;
  }
  scalar(UpdateScalar::LossScale) = lossScale;
  machine.describeEffects(meanings);
  if (failed(addResults()))
    return failure();
  return PlanMeaning{whole, std::move(meanings)};
}

FailureOr<SmallVector<PlanMeaning>>
fsdp::getMeanings(func::FuncOp source, ArrayRef<func::FuncOp> steps) {
  func::FuncOp first = steps.front();
  std::vector<uint64_t> sizes;
  for (auto mesh : first->getParentOfType<ModuleOp>().getOps<MeshOp>())
    for (AxisAttr axis : mesh.getAxes().getAsRange<AxisAttr>())
      sizes.push_back(uint64_t(axis.getSize()));
  std::optional<sy::Ranks> ranks = sy::Ranks::get(sizes);
  if (!ranks)
    return first.emitError("expected a mesh of at most four million ranks");
  SourceRun run(source, first, *ranks);
  if (failed(run.runSource()))
    return failure();
  SmallVector<PlanMeaning> meanings;
  for (func::FuncOp step : steps) {
    FailureOr<PlanMeaning> meaning = run.runStep(step);
    if (failed(meaning))
      return failure();
    meanings.push_back(std::move(*meaning));
  }
  return meanings;
}
