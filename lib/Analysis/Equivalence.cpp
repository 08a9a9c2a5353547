//===- Equivalence.cpp - Does a sharded step compute its source? ----------===//
//
// Equal numbers are equal values: a number stands for an operator, its
// arguments and the numbers of its operands. Gathers, views, reductions and
// waits get the number of what they carry; what they must satisfy besides is
// checked on the way.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Equivalence.h"

#include "VerifyUpdates.h"
#include "fsdp/Analysis/Reductions.h"
#include "fsdp/Dialect/FSDP/IR/Layout.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace fsdp;
using fsdp::aten::ATenDialect;

namespace {

/// What a result of the source is: the name and value of its attribute.
using Role = std::pair<StringAttr, Attribute>;

class Equivalence {
public:
  Equivalence(func::FuncOp step, func::FuncOp source, func::FuncOp init)
      : step(step), source(source), init(init),
        symbols(step->getParentOfType<ModuleOp>()) {}

  LogicalResult verify();

private:
  /// A sum over ranks, divided.
  struct Reduction {
    Operation *op;
    Value input;
    FlatSymbolRefAttr unit, mesh;
    ArrayAttr axes;
    DivideAttr divide;
  };
  /// Effects of a function, in order.
  using Effects = SmallVector<std::pair<unsigned, Operation *>>;

  // The first words of keys. Those of calls start with a pointer.
  enum Tag : uintptr_t {
    Argument,
    Parameter,
    State,
    Kept,
    Flat,
    Reduced,
    Accumulated,
    Fresh
  };

  unsigned intern(ArrayRef<uintptr_t> key, unsigned numResults = 1);
  template <typename... Words> unsigned internWords(Tag tag, Words... words) {
    return intern({tag, reinterpret_cast<uintptr_t>(words)...});
  }
  static const void *word(Attribute attr) { return attr.getAsOpaquePointer(); }
  static const void *word(Type type) { return type.getAsOpaquePointer(); }

  // Numbering.
  LogicalResult checkLayouts();
  LogicalResult numberArguments(func::FuncOp func);
  LogicalResult numberBody(func::FuncOp func, Effects &effects);
  LogicalResult numberGather(CollectiveOpInterface gather);
  void numberPiece(PieceOp piece);
  LogicalResult numberView(ViewOp view);
  LogicalResult numberFlat(FlattenGradsOp flatten);
  LogicalResult numberReduction(Reduction reduction);
  LogicalResult numberAccumulation(AccumulateOp op);
  void numberOther(Operation &op, Effects &effects);
  void forward(Value from, Value to) { numbers[to] = numbers.lookup(from); }

  // State.
  LogicalResult numberUpdate(UpdateOpInterface update);
  LogicalResult checkUpdates();

  // Comparison.
  Value getAccumulated(Value value, unsigned &count);
  FailureOr<Value> getReduced(Value value, MeshOp mesh, int64_t ranks,
                              double divisor, const Twine &what,
                              bool isFirst = false);
  LogicalResult compareEffects();
  LogicalResult compareResults();
  LogicalResult addGradients(Value value, StateAttr state,
                             llvm::MapVector<Role, Value> &found);
  LogicalResult reportDifference(Role role, Value found, Value expected);
  Value resolve(Value value);
  Value getCopied(Value value);
  std::string describe(Value value);
  MeshOp getMesh(FlatSymbolRefAttr unit);

  func::FuncOp step, source, init;
  SymbolTable symbols;

  llvm::BumpPtrAllocator allocator;
  DenseMap<ArrayRef<uintptr_t>, unsigned> table;
  unsigned numNumbers = 0;
  DenseMap<Value, unsigned> numbers;
  Effects sourceEffects, stepEffects;

  DenseMap<unsigned, PieceOp> pieces;
  DenseMap<unsigned, FlattenGradsOp> flats;
  DenseMap<unsigned, Reduction> reductions;
  DenseMap<unsigned, AccumulateOp> accumulations;
  DenseMap<Attribute, AccumulateOp> accumulated; // by the state that it adds to
  /// The last value of each state, and which elements are updated by whom.
  DenseMap<Attribute, Value> states;
  DenseMap<Attribute, SmallVector<UnitInterval>> updates;
};

/// How a role is called in a diagnostic.
std::string getName(Role role) {
  auto text = dyn_cast<StringAttr>(role.second);
  std::string quoted = text ? ("'" + text.getValue() + "'").str() : "";
  if (role.first == ATenDialect::getLossAttrName())
    return "loss";
  if (role.first == ATenDialect::getGradOfAttrName())
    return "gradient of " + quoted;
  if (role.first == ATenDialect::getBufferMutationAttrName())
    return "new content of buffer " + quoted;
  auto number = dyn_cast<IntegerAttr>(role.second);
  return (role.first == ATenDialect::getOutputAttrName()
              ? "output "
              : "gradient of input ") +
         std::to_string(number ? number.getInt() : 0);
}

/// A number as people write it: 2, not 2.000000e+00.
std::string spell(double number) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%g", number);
  return text;
}

/// The state that is in memory: gathered parameters are the parameters.
StateAttr getGathered(StateAttr state) {
  if (state.getKind() != StateAttr::getUnshardedParameterKind())
    return state;
  MLIRContext *context = state.getContext();
  return StateAttr::get(
      context, state.getUnit(),
      StringAttr::get(context, StateAttr::getParameterKind()));
}

/// Whether the program is for a micro-batch after the first of a step.
bool isLater(func::FuncOp program) {
  auto part = program->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  return part && part.getValue() != Part::First;
}

/// The role of a result or argument at the aten level, if it has one.
std::optional<Role> getRole(DictionaryAttr dict) {
  for (NamedAttribute attr : dict ? dict : DictionaryAttr())
    if (llvm::is_contained(
            {ATenDialect::getParamAttrName(), ATenDialect::getBufferAttrName(),
             ATenDialect::getConstantAttrName(),
             ATenDialect::getInputAttrName(), ATenDialect::getLossAttrName(),
             ATenDialect::getGradOfAttrName(),
             ATenDialect::getGradOfInputAttrName(),
             ATenDialect::getBufferMutationAttrName(),
             ATenDialect::getOutputAttrName()},
            attr.getName().getValue()))
      return Role(attr.getName(), attr.getValue());
  return std::nullopt;
}

} // namespace

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

unsigned Equivalence::intern(ArrayRef<uintptr_t> key, unsigned numResults) {
  auto found = table.find(key);
  if (found != table.end())
    return found->second;
  unsigned number = numNumbers;
  numNumbers += std::max(numResults, 1u);
  table[key.copy(allocator)] = number;
  return number;
}

/// Parameters of the source belong to one unit each, with the same shape.
LogicalResult Equivalence::checkLayouts() {
  DenseMap<StringAttr, UnitOp> owners;
  for (auto unit : step->getParentOfType<ModuleOp>().getOps<UnitOp>())
    for (ParameterAttr parameter : unit.getLayout().getParameters())
      if (auto [entry, isNew] = owners.try_emplace(parameter.getName(), unit);
          !isNew)
        return unit.emitError("parameter ")
               << parameter.getName() << " is in unit '"
               << entry->second.getSymName() << "' as well";
  for (BlockArgument argument : source.getArguments()) {
    auto name = source.getArgAttrOfType<StringAttr>(
        argument.getArgNumber(), ATenDialect::getParamAttrName());
    if (!name)
      continue;
    UnitOp unit = owners.lookup(name);
    if (!unit)
      return emitError(argument.getLoc())
             << "parameter " << name << " is in no unit";
    auto expected = dyn_cast<RankedTensorType>(argument.getType());
    ArrayRef<int64_t> sizes = unit.getLayout().find(name).getSizes();
    if (!expected || expected.getShape() != sizes)
      return unit.emitError("expected parameter ")
             << name << " to have the sizes of " << argument.getType();
  }
  return success();
}

LogicalResult Equivalence::numberArguments(func::FuncOp func) {
  for (BlockArgument argument : func.getArguments()) {
    unsigned index = argument.getArgNumber();
    unsigned &number = numbers[argument];
    if (auto result = func.getArgAttrOfType<IntegerAttr>(
            index, FSDPDialect::getResultAttrName())) {
      Operation *end = init ? init.getBody().front().getTerminator() : nullptr;
      int64_t k = result.getInt();
      if (!end || k < 0 || k >= end->getNumOperands())
        return emitError(argument.getLoc())
               << "expected result " << k << " of '@init', found none";
      number = numbers.lookup(end->getOperand(k));
    } else if (auto state = func.getArgAttrOfType<StateAttr>(
                   index, FSDPDialect::getStateAttrName())) {
      number = internWords(State, word(getGathered(state)));
      if (state.getKind() == StateAttr::getUnshardedParameterKind() &&
          !isLater(func))
        return emitError(argument.getLoc())
               << "expected " << state
               << " in programs of later micro-batches alone";
      if (!states.try_emplace(state, argument).second)
        return emitError(argument.getLoc())
               << "two arguments are the state " << state;
    } else if (auto role = getRole(func.getArgAttrDict(index))) {
      bool isParameter = role->first == ATenDialect::getParamAttrName();
      number =
          internWords(isParameter ? Parameter : Argument, word(role->first),
                      word(role->second), word(argument.getType()));
    } else {
      number = internWords(Fresh, argument.getAsOpaquePointer());
    }
  }
  return success();
}

LogicalResult Equivalence::numberBody(func::FuncOp func, Effects &effects) {
  if (failed(numberArguments(func)))
    return failure();
  for (Operation &op : func.getBody().front().without_terminator()) {
    auto reduce = [&](auto op, FlatSymbolRefAttr unit, FlatSymbolRefAttr mesh) {
      return numberReduction(
          {op, op->getOperand(0), unit, mesh, op.getAxes(), op.getDivide()});
    };
    LogicalResult result =
        TypeSwitch<Operation *, LogicalResult>(&op)
            .Case<UnshardOp, AsyncUnshardOp>(
                [&](auto op) { return numberGather(op); })
            .Case<AsyncWaitOp, CopyOp, AsyncCopyOp>([&](auto op) {
              forward(op->getOperand(0), op->getResult(0));
              return success();
            })
            .Case([&](AsyncReshardOp) { return success(); })
            .Case([&](PieceOp op) {
              numberPiece(op);
              return success();
            })
            .Case([&](ViewOp op) { return numberView(op); })
            .Case([&](FlattenGradsOp op) { return numberFlat(op); })
            .Case<ReduceScatterOp, AsyncReduceScatterOp>(
                [&](auto op) { return reduce(op, op.getUnitAttr(), {}); })
            .Case<AllReduceOp, AsyncAllReduceOp>([&](auto op) {
              return reduce(op, op.getUnitAttr(), op.getMeshAttr());
            })
            .Case([&](AccumulateOp op) { return numberAccumulation(op); })
            .Case([&](UpdateOpInterface op) { return numberUpdate(op); })
            .Default([&](Operation *op) {
              numberOther(*op, effects);
              return success();
            });
    if (failed(result))
      return failure();
  }
  return success();
}

/// Phase and scope of a call play no part: recomputation is equal.
void Equivalence::numberOther(Operation &op, Effects &effects) {
  SmallVector<uintptr_t, 16> key;
  auto add = [&](const void *pointer) {
    key.push_back(reinterpret_cast<uintptr_t>(pointer));
  };
  if (auto call = dyn_cast<aten::CallOp>(op)) {
    add(word(call.getCallee()));
    add(word(call.getArgs()));
  } else {
    add(op.getName().getAsOpaquePointer());
    add(word(op.getAttrDictionary()));
  }
  for (Value operand : op.getOperands())
    key.push_back(numbers.lookup(operand));
  for (Type type : op.getResultTypes())
    add(word(type));
  bool hasEffect = !isMemoryEffectFree(&op);
  if (hasEffect)
    key.push_back(effects.size());
  unsigned number = intern(key, op.getNumResults());
  if (hasEffect)
    effects.emplace_back(number, &op);
  for (OpResult result : op.getResults())
    numbers[result] = number + result.getResultNumber();
}

//===----------------------------------------------------------------------===//
// Parameters and gradients
//===----------------------------------------------------------------------===//

/// Pieces make a whole again when those ranks gather that had sharded it.
LogicalResult Equivalence::numberGather(CollectiveOpInterface gather) {
  Value shard = gather->getOperand(0), full = gather->getResult(0);
  PieceOp piece = pieces.lookup(numbers.lookup(shard));
  if (!piece) {
    forward(shard, full);
    return success();
  }
  if (llvm::to_vector(piece.getAxes().getAsValueRange<StringAttr>()) !=
      gather.getGroupAxes()) {
    InFlightDiagnostic diagnostic =
        gather->emitError("expected to gather pieces over the axes ")
        << piece.getAxes() << " over which they were sharded, found other axes";
    diagnostic.attachNote(piece.getLoc()) << "sharded here";
    return diagnostic;
  }
  forward(piece.getFull(), full);
  return success();
}

void Equivalence::numberPiece(PieceOp piece) {
  unsigned number = internWords(
      Kept, uintptr_t(numbers.lookup(piece.getFull())), word(piece.getAxes()));
  numbers[piece.getPiece()] = number;
  pieces.try_emplace(number, piece);
}

LogicalResult Equivalence::numberView(ViewOp view) {
  auto state = StateAttr::get(
      view.getContext(), view.getUnitAttr(),
      StringAttr::get(view.getContext(), StateAttr::getParameterKind()));
  if (numbers.lookup(view.getFull()) != internWords(State, word(state)))
    return view.emitError("expected a view of the gathered parameters of unit ")
           << view.getUnitAttr() << ", found one of "
           << describe(resolve(view.getFull()));
  auto name =
      StringAttr::get(view.getContext(), ATenDialect::getParamAttrName());
  numbers[view.getTensor()] =
      internWords(Parameter, word(name), word(view.getParameterAttr()),
                  word(view.getTensor().getType()));
  return success();
}

LogicalResult Equivalence::numberFlat(FlattenGradsOp flatten) {
  SmallVector<uintptr_t> key = {
      Flat, reinterpret_cast<uintptr_t>(word(flatten.getUnitAttr()))};
  for (Value gradient : flatten.getGradients())
    key.push_back(numbers.lookup(gradient));
  unsigned number = intern(key);
  numbers[flatten.getFlat()] = number;
  flats.try_emplace(number, flatten);
  return success();
}

LogicalResult Equivalence::numberReduction(Reduction reduction) {
  unsigned input = numbers.lookup(reduction.input);
  unsigned number = internWords(Reduced, uintptr_t(input));
  auto [entry, isNew] = reductions.try_emplace(number, reduction);
  if (!isNew) {
    InFlightDiagnostic diagnostic = reduction.op->emitError(
        "expected each value to be reduced once, found a second reduction");
    diagnostic.attachNote(entry->second.op->getLoc()) << "the first is here";
    return diagnostic;
  }
  FlattenGradsOp flat = flats.lookup(input);
  if (flat && flat.getUnitAttr() != reduction.unit)
    return reduction.op->emitError("expected to reduce the gradient of unit ")
           << reduction.unit << ", found that of unit " << flat.getUnitAttr();
  numbers[reduction.op->getResult(0)] = number;
  return success();
}

/// One of the two is the argument of the step that has what was summed before,
/// which is taken once; the other one is this micro-batch's gradient.
LogicalResult Equivalence::numberAccumulation(AccumulateOp op) {
  for (auto [before, gradient] : {std::pair(op.getSum(), op.getGradient()),
                                  std::pair(op.getGradient(), op.getSum())}) {
    auto argument = dyn_cast<BlockArgument>(before);
    auto state =
        argument ? step.getArgAttrOfType<StateAttr>(
                       argument.getArgNumber(), FSDPDialect::getStateAttrName())
                 : StateAttr();
    if (!state || !state.isAccumulated() || state.getUnit() != op.getUnitAttr())
      continue;
    if (auto [entry, isNew] = accumulated.try_emplace(state, op); !isNew) {
      InFlightDiagnostic diagnostic = op.emitError("expected to add to ")
                                      << state << " once, found twice";
      diagnostic.attachNote(entry->second.getLoc()) << "the first is here";
      return diagnostic;
    }
    unsigned inner = numbers.lookup(gradient);
    unsigned number = internWords(Accumulated, uintptr_t(inner));
    numbers[op.getTotal()] = number;
    accumulations.try_emplace(number, op);
    if (states.lookup(state) == op.getSum())
      states[state] = op.getTotal();
    return success();
  }
  return op.emitError("expected an argument with what unit ")
         << op.getUnitAttr() << " has accumulated";
}

MeshOp Equivalence::getMesh(FlatSymbolRefAttr unit) {
  return symbols.lookup<MeshOp>(
      symbols.lookup<UnitOp>(unit.getValue()).getMesh());
}

/// Looks through the reductions that make `value` a sum over so many ranks,
/// divided, or what the first of them has.
FailureOr<Value> Equivalence::getReduced(Value value, MeshOp mesh,
                                         int64_t ranks, double divisor,
                                         const Twine &what, bool isFirst) {
  int64_t summed = 1;
  double divided = 1;
  llvm::StringSet<> axes;
  Operation *last = nullptr;
  for (auto found = reductions.find(numbers.lookup(value));
       found != reductions.end();
       found = reductions.find(numbers.lookup(value))) {
    const Reduction &reduction = found->second;
    last = last ? last : reduction.op;
    if (reduction.op->hasAttr("first") != isFirst)
      return reduction.op->emitError("expected ")
             << what << (isFirst ? " of the first rank" : " to be summed")
             << ", found another reduction";
    for (auto axis : reduction.axes.getAsRange<StringAttr>()) {
      if (!axes.insert(axis).second)
        return reduction.op->emitError("expected ")
               << what << " to be summed once over axis " << axis
               << ", found it twice";
      summed *= mesh.getAxisSize(axis).value_or(1);
    }
    divided *= reduction.divide.getPre() * reduction.divide.getPost();
    value = reduction.input;
  }
  if (summed != ranks)
    return (last ? last->emitError() : emitError(value.getLoc()))
           << "expected " << what << " to be summed over " << ranks
           << " ranks, found " << (last ? std::to_string(summed) : "no sum");
  if (isFirst)
    return value;
  if (std::abs(divided - divisor) > 1e-9 * divisor)
    return (last ? last->emitError() : emitError(value.getLoc()))
           << "expected " << what << " to be divided by " << spell(divisor)
           << ", found a division by " << spell(divided);
  return value;
}

//===----------------------------------------------------------------------===//
// State
//===----------------------------------------------------------------------===//

LogicalResult Equivalence::numberUpdate(UpdateOpInterface op) {
  MLIRContext *context = op->getContext();
  FlatSymbolRefAttr unit = op.getUnitAttr();
  for (auto [kind, before, after] : op.getStates()) {
    auto state = StateAttr::get(context, unit, StringAttr::get(context, kind));
    Value &current = states[state];
    if (current != skipCopies(before))
      return op->emitError("expected to update the current value of ")
             << state << ", found " << describe(before);
    current = after;
    numbers[after] = internWords(Fresh, after.getAsOpaquePointer());
  }
  // The source does not say by what gradients are scaled.
  Value gradient = op.getGradient();
  while (auto scale = gradient.getDefiningOp<ScaleOp>())
    gradient = scale.getShard();
  ArrayRef<int64_t> intervals = op.getIntervals();
  for (size_t i = 0; i + 1 < intervals.size(); i += 2)
    updates[unit].push_back({intervals[i], intervals[i + 1], op, gradient});
  return success();
}

/// Each trainable element of a unit that is updated is updated once.
LogicalResult Equivalence::checkUpdates() {
  for (auto unit : step->getParentOfType<ModuleOp>().getOps<UnitOp>())
    if (auto own = updates.find(FlatSymbolRefAttr::get(unit));
        own != updates.end() &&
        (failed(verifyCovered(unit, own->second, "updated")) ||
         failed(verifyDecay(step, unit, own->second))))
      return failure();
  return success();
}

//===----------------------------------------------------------------------===//
// Diagnostics
//===----------------------------------------------------------------------===//

/// What `value` is a copy of, with all its elements: a step returns its own.
Value Equivalence::getCopied(Value value) {
  auto call = value.getDefiningOp<aten::CallOp>();
  bool isCopy = call && call.getCallee().getName() == "clone" &&
                call.getInputs().size() == 1;
  return isCopy ? call.getInputs().front() : value;
}

/// The call, view, argument or such that `value` of the step is carried from.
Value Equivalence::resolve(Value value) {
  while (true) {
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
      auto result = func.getArgAttrOfType<IntegerAttr>(
          argument.getArgNumber(), FSDPDialect::getResultAttrName());
      if (!result || !init)
        return value;
      value =
          init.getBody().front().getTerminator()->getOperand(result.getInt());
    } else if (auto op = value.getDefiningOp<AccumulateOp>()) {
      value = isa<BlockArgument>(op.getSum()) ? op.getGradient() : op.getSum();
    } else if (isa<AsyncWaitOp, CopyOp, AsyncCopyOp, UnshardOp, AsyncUnshardOp,
                   PieceOp, ReduceScatterOp, AsyncReduceScatterOp, AllReduceOp,
                   AsyncAllReduceOp>(value.getDefiningOp())) {
      value = value.getDefiningOp()->getOperand(0);
    } else {
      return value;
    }
  }
}

std::string Equivalence::describe(Value value) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    auto func = cast<func::FuncOp>(argument.getOwner()->getParentOp());
    unsigned index = argument.getArgNumber();
    if (auto state = func.getArgAttr(index, FSDPDialect::getStateAttrName()))
      os << state;
    else if (auto role = getRole(func.getArgAttrDict(index)))
      os << role->first.getValue().split('.').second << ' ' << role->second;
    else
      os << "argument " << index;
  } else if (auto view = value.getDefiningOp<ViewOp>()) {
    os << "param " << view.getParameterAttr();
  } else if (auto call = value.getDefiningOp<aten::CallOp>()) {
    os << "a result of '" << call.getCallee().getName() << '\'';
  } else {
    os << "a result of '" << value.getDefiningOp()->getName() << '\'';
  }
  return text;
}

/// Reports where the two values begin to differ.
LogicalResult Equivalence::reportDifference(Role role, Value found,
                                            Value expected) {
  while (true) {
    found = resolve(found);
    auto left = found.getDefiningOp<aten::CallOp>();
    auto right = expected.getDefiningOp<aten::CallOp>();
    if (!left || !right || left.getCallee() != right.getCallee() ||
        left.getArgs() != right.getArgs())
      break;
    auto pairs = llvm::zip_equal(left.getInputs(), right.getInputs());
    auto different = llvm::find_if(pairs, [&](const auto &pair) {
      return numbers.lookup(std::get<0>(pair)) !=
             numbers.lookup(std::get<1>(pair));
    });
    if (different == pairs.end())
      break;
    std::tie(found, expected) = *different;
  }
  InFlightDiagnostic diagnostic =
      emitError(found.getLoc())
      << "the " << getName(role) << " depends on another value: expected "
      << describe(expected) << " of type " << expected.getType() << ", found "
      << describe(found) << " of type " << found.getType();
  diagnostic.attachNote(expected.getLoc()) << "in the source, it is this";
  return diagnostic;
}

//===----------------------------------------------------------------------===//
// Comparison
//===----------------------------------------------------------------------===//

LogicalResult Equivalence::compareEffects() {
  size_t common = std::min(stepEffects.size(), sourceEffects.size());
  for (size_t i = 0; i < common; ++i) {
    if (stepEffects[i].first == sourceEffects[i].first)
      continue;
    InFlightDiagnostic diagnostic = stepEffects[i].second->emitError(
        "expected the effects of the source in their order, found another");
    diagnostic.attachNote(sourceEffects[i].second->getLoc()) << "expected this";
    return diagnostic;
  }
  if (sourceEffects.size() > common)
    return sourceEffects[common].second->emitError(
        "expected this effect in the step as well, found none");
  if (stepEffects.size() > common)
    return stepEffects[common].second->emitError(
        "expected only effects of the source, found one more");
  return success();
}

/// The gradient of this micro-batch that is in `value`, with those before it if
/// the step is a part that has them.
Value Equivalence::getAccumulated(Value value, unsigned &count) {
  auto found = accumulations.find(numbers.lookup(value));
  if (found == accumulations.end())
    return value;
  ++count;
  AccumulateOp op = found->second;
  return isa<BlockArgument>(op.getSum()) ? op.getGradient() : op.getSum();
}

/// Adds the gradients of which `value` is the mean over ranks, or, where it is
/// summed before it is reduced, those of this rank.
LogicalResult Equivalence::addGradients(Value value, StateAttr state,
                                        llvm::MapVector<Role, Value> &found) {
  UnitOp unit = symbols.lookup<UnitOp>(state.getUnit().getValue());
  MeshOp mesh = getMesh(state.getUnit());
  int64_t ranks = mesh.getGroupSize(unit.getShardAxes()) *
                  mesh.getGroupSize(unit.getReplicateAxes());
  int64_t shards = mesh.getGroupSize(unit.getShardAxes());
  auto part = step->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  unsigned count = 0;
  FailureOr<Value> flat = getAccumulated(value, count);
  auto look = [&](int64_t ranks, double divisor) {
    flat = getReduced(*flat, mesh, ranks, divisor,
                      "the gradient of unit '" + unit.getSymName() + "'");
    if (succeeded(flat))
      flat = getAccumulated(*flat, count);
    return LogicalResult(flat);
  };
  // Sums of what is reduced over shards are reduced further in the last part.
  auto partial = StateAttr::get(
      step.getContext(), state.getUnit(),
      StringAttr::get(step.getContext(), StateAttr::getPartialGradientKind()));
  double pre = getDivideFactors(ranks).pre;
  bool isUnsharded = state.getKind() == StateAttr::getUnshardedGradientKind();
  bool isPartial = state == partial;
  if (!isPartial && states.contains(partial)) {
    if (failed(look(ranks / shards, double(ranks) / pre)))
      return failure();
    isPartial = true;
  }
  if (isPartial ? failed(look(shards, pre))
                : !isUnsharded && failed(look(ranks, double(ranks))))
    return failure();
  bool hasBefore = part && part.getValue() != Part::First;
  if (count != unsigned(hasBefore))
    return emitError(value.getLoc())
           << "expected the gradient of unit " << state.getUnit()
           << (hasBefore ? " to be added once to those of the micro-batches "
                           "before, found "
                         : " of one micro-batch, found sums of ")
           << count;
  auto flatten = flats.lookup(numbers.lookup(*flat));
  if (!flatten || flatten.getUnitAttr() != state.getUnit())
    return emitError(flat->getLoc())
           << "expected the flat gradient of unit " << state.getUnit()
           << ", found " << describe(*flat);
  auto name =
      StringAttr::get(step.getContext(), ATenDialect::getGradOfAttrName());
  auto next = flatten.getGradients().begin();
  for (auto [parameter, present] :
       llvm::zip_equal(unit.getLayout().getParameters(), flatten.getPresent()))
    if (present)
      found[{name, parameter.getName()}] = *next++;

  for (const UnitInterval &interval : updates.lookup(state.getUnit()))
    if (numbers.lookup(interval.gradient) != numbers.lookup(value))
      return interval.op->emitError("expected the gradient of unit ")
             << state.getUnit() << " that the step returns, found another";
  return success();
}

LogicalResult Equivalence::compareResults() {
  llvm::MapVector<Role, Value> expected, found;
  Operation *sourceEnd = source.getBody().front().getTerminator();
  for (auto [index, value] : llvm::enumerate(sourceEnd->getOperands()))
    if (auto role = getRole(source.getResultAttrDict(index)))
      expected[*role] = value;

  auto units = step->getParentOfType<ModuleOp>().getOps<UnitOp>();
  Operation *stepEnd = step.getBody().front().getTerminator();
  for (auto [index, value] : llvm::enumerate(stepEnd->getOperands())) {
    auto state = step.getResultAttrOfType<StateAttr>(
        index, FSDPDialect::getStateAttrName());
    if (state && (state.getKind() == StateAttr::getGradientKind() ||
                  state.isAccumulated())) {
      if (failed(addGradients(value, state, found)))
        return failure();
      continue;
    }
    if (state && state.getKind() == StateAttr::getUnshardedParameterKind()) {
      if (isLater(step) ||
          numbers.lookup(value) != internWords(State, word(getGathered(state))))
        return emitError(value.getLoc())
               << "expected what the first micro-batch gathers as " << state
               << ", found " << describe(resolve(value));
      continue;
    }
    if (state && states.lookup(state) != skipCopies(value))
      return emitError(value.getLoc())
             << "expected the last value of " << state
             << " as a result of the step, found another";
    std::optional<Role> role = getRole(step.getResultAttrDict(index));
    if (state || !role)
      continue;
    // The source scales the loss; what becomes of the scale, it does not have.
    if (auto name = dyn_cast<StringAttr>(role->second);
        name && role->first == ATenDialect::getBufferMutationAttrName() &&
        GradScaler::isState(name) && getGradScaler(step))
      continue;
    found[*role] = value;
    if (units.empty())
      continue;
    MeshOp mesh = getMesh(FlatSymbolRefAttr::get(*units.begin()));
    // The loss is a mean over ranks, and buffers may be.
    bool isBuffer = role->first == ATenDialect::getBufferMutationAttrName();
    SyncBuffers sync = isBuffer ? getSyncBuffers(step) : SyncBuffers::None;
    bool isFirst = sync == SyncBuffers::Broadcast;
    bool isMean = role->first == ATenDialect::getLossAttrName() ||
                  (sync == SyncBuffers::Mean &&
                   isa<FloatType>(getElementTypeOrSelf(value)));
    if (!isFirst && !isMean)
      continue;
    FailureOr<Value> own =
        getReduced(value, mesh, mesh.getNumRanks(), double(mesh.getNumRanks()),
                   "the " + getName(*role), isFirst);
    if (failed(own))
      return failure();
    found[*role] = *own;
  }

  for (auto [role, value] : expected) {
    auto entry = found.find(role);
    bool isOptional = role.first == ATenDialect::getOutputAttrName() ||
                      role.first == ATenDialect::getGradOfInputAttrName();
    if (entry == found.end()) {
      if (isOptional)
        continue;
      return step.emitError("expected the step to return the ")
             << getName(role) << ", found no such result";
    }
    unsigned number = numbers.lookup(value);
    if (numbers.lookup(entry->second) != number &&
        numbers.lookup(getCopied(entry->second)) != number)
      return reportDifference(role, entry->second, value);
  }
  for (auto [role, value] : found)
    if (!expected.contains(role))
      return emitError(value.getLoc())
             << "the source has no " << getName(role) << ", found one here";
  return success();
}

LogicalResult Equivalence::verify() {
  Effects initEffects;
  if (failed(checkLayouts()) ||
      (init && failed(numberBody(init, initEffects))) ||
      failed(numberBody(source, sourceEffects)) ||
      failed(numberBody(step, stepEffects)))
    return failure();
  if (!initEffects.empty())
    return initEffects.front().second->emitError(
        "expected '@init' to have no effects, found one");
  if (failed(compareEffects()) || failed(compareResults()) ||
      failed(verifyUnsynchronised(step)) || failed(checkUpdates()) ||
      failed(verifyReductions(step)))
    return failure();
  auto areEqual = [&](Value left, Value right) {
    return numbers.lookup(left) == numbers.lookup(right);
  };
  MeasuredGradients measured(step, areEqual);
  return success(succeeded(verifyClipping(step, measured)) &&
                 succeeded(verifyScaling(step, measured)));
}

LogicalResult fsdp::verifyEquivalence(func::FuncOp step, func::FuncOp source,
                                      func::FuncOp init) {
  return Equivalence(step, source, init).verify();
}
