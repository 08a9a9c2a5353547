//===- ValueNumbers.cpp - The number of each value ------------------------===//

#include "EquivalenceImpl.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace fsdp;
using fsdp::aten::ATenDialect;

/// Whether the program is for a micro-batch after the first of a step.
bool Equivalence::isLater(func::FuncOp program) {
  auto part = program->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  return part && part.getValue() != Part::First;
}

/// The state that is in memory: gathered parameters are the parameters.
StateAttr Equivalence::getGathered(StateAttr state) {
  if (state.getKind() != StateAttr::getUnshardedParameterKind())
    return state;
  MLIRContext *context = state.getContext();
  return StateAttr::get(
      context, state.getUnit(),
      StringAttr::get(context, StateAttr::getParameterKind()));
}

/// The role of a result or argument at the aten level, if it has one.
std::optional<Equivalence::Role> Equivalence::getRole(DictionaryAttr dict) {
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
  aten::CallOp seed = func == source ? getGradientSeed(func) : aten::CallOp();
  for (Operation &op : func.getBody().front().without_terminator()) {
    LogicalResult result =
        TypeSwitch<Operation *, LogicalResult>(&op)
            .Case([&](CollectiveOpInterface op) {
              return op.isGather() ? numberGather(op) : numberReduction(op);
            })
            .Case<AsyncWaitOp, CopyOp, LaunchOpInterface>([&](auto op) {
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
            .Case([&](AccumulateOp op) { return numberAccumulation(op); })
            .Case([&](UpdateOpInterface op) { return numberUpdate(op); })
            .Default([&](Operation *op) {
              if (seed && op == seed)
                return numberSeed(seed);
              numberOther(*op, effects);
              return success();
            });
    if (failed(result))
      return failure();
  }
  return success();
}

/// Phase and scope of a call play no part: recomputation is equal.
unsigned Equivalence::internCall(aten::OpNameAttr callee, aten::ArgsAttr args,
                                 ArrayRef<unsigned> inputs, TypeRange types) {
  SmallVector<uintptr_t, 16> key = {reinterpret_cast<uintptr_t>(word(callee)),
                                    reinterpret_cast<uintptr_t>(word(args))};
  llvm::append_range(key, inputs);
  for (Type type : types)
    key.push_back(reinterpret_cast<uintptr_t>(word(type)));
  return intern(key, types.size());
}

/// The gradient of the loss by the loss, in the types of
/// `torch.amp.GradScaler.scale` where it is scaled.
LogicalResult Equivalence::numberSeed(aten::CallOp seed) {
  MLIRContext *context = seed.getContext();
  SeedFactor factor = getSeedFactor(step);
  FailureOr<aten::ArgsAttr> args = getSeedArgs(seed, factor.divisor);
  if (failed(args))
    return failure();
  SmallVector<unsigned> inputs;
  for (Value input : seed.getInputs())
    inputs.push_back(numbers.lookup(input));
  unsigned number =
      internCall(seed.getCalleeAttr(), *args, inputs, seed.getResultTypes());
  auto type = dyn_cast<RankedTensorType>(seed.getResult(0).getType());
  if (factor.isScaled && type) {
    Type element = type.getElementType();
    Type f32 = Float32Type::get(context),
         wide = element.isF64() ? element : f32;
    auto call = [&](StringRef callee, ArrayRef<Attribute> values,
                    ArrayRef<StringAttr> keywords, ArrayRef<unsigned> inputs,
                    Type result) {
      number = internCall(aten::OpNameAttr::get(context, callee),
                          aten::ArgsAttr::get(context, values, keywords),
                          inputs, result);
    };
    unsigned scale = internWords(
        Argument,
        word(StringAttr::get(context, ATenDialect::getBufferAttrName())),
        word(StringAttr::get(context, GradScaler::getScaleName())),
        word(RankedTensorType::get({}, f32)));
    Attribute operand = aten::OperandAttr::get(context);
    call("mul.Tensor", {operand, operand}, {}, {number, scale},
         type.clone(wide));
    if (wide != element)
      call("_to_copy", {operand, TypeAttr::get(element)},
           StringAttr::get(context, "dtype"), number, type);
  }
  numbers[seed.getResult(0)] = number;
  return success();
}

void Equivalence::numberOther(Operation &op, Effects &effects) {
  SmallVector<unsigned> inputs;
  for (Value operand : op.getOperands())
    inputs.push_back(numbers.lookup(operand));
  bool hasEffect = !isMemoryEffectFree(&op);
  if (hasEffect)
    inputs.push_back(effects.size());
  unsigned number;
  if (auto call = dyn_cast<aten::CallOp>(op)) {
    number = internCall(call.getCalleeAttr(), call.getArgsAttr(), inputs,
                        op.getResultTypes());
  } else {
    SmallVector<uintptr_t, 16> key = {
        reinterpret_cast<uintptr_t>(op.getName().getAsOpaquePointer()),
        reinterpret_cast<uintptr_t>(word(op.getAttrDictionary()))};
    llvm::append_range(key, inputs);
    for (Type type : op.getResultTypes())
      key.push_back(reinterpret_cast<uintptr_t>(word(type)));
    number = intern(key, op.getNumResults());
  }
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

/// A gradient is reduced once. The loss and buffers may be one value, and each
/// of them has a reduction of its own.
LogicalResult Equivalence::numberReduction(CollectiveOpInterface reduction) {
  FlatSymbolRefAttr unit = reduction.getUnitAttr();
  unsigned input = numbers.lookup(reduction->getOperand(0));
  if (!unit) {
    unsigned number = internWords(Reduced, uintptr_t(input),
                                  word(reduction->getAttrDictionary()));
    reductions.try_emplace(number, reduction);
    numbers[reduction->getResult(0)] = number;
    return success();
  }
  unsigned number = internWords(Reduced, uintptr_t(input));
  auto [entry, isNew] = reductions.try_emplace(number, reduction);
  if (!isNew) {
    InFlightDiagnostic diagnostic = reduction->emitError(
        "expected each value to be reduced once, found a second reduction");
    diagnostic.attachNote(entry->second->getLoc()) << "the first is here";
    return diagnostic;
  }
  FlattenGradsOp flat = flats.lookup(input);
  if (flat && flat.getUnitAttr() != unit)
    return reduction->emitError("expected to reduce the gradient of unit ")
           << unit << ", found that of unit " << flat.getUnitAttr();
  numbers[reduction->getResult(0)] = number;
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
