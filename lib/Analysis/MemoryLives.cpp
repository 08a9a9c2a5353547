//===- MemoryLives.cpp - What of a scheduled step lies where, and when ----===//
//
// One walk along the order of issue. What the plan lays into the memory of
// something else is told here in terms of values, so that a schedule is priced
// by the memory that its plan takes.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Memory.h"

#include "fsdp/Analysis/ReductionPlace.h"
#include "fsdp/Operators/OpFacts.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace fsdp {

//===----------------------------------------------------------------------===//
// Gradients that are computed in the flat one
//===----------------------------------------------------------------------===//

/// True if each axis of `type` is one of `view`, in whatever order.
static bool isPermuted(RankedTensorType type, RankedTensorType view) {
  SmallVector<int64_t> strides = aten::getStrides(type),
                       viewStrides = aten::getStrides(view);
  return llvm::all_of(
      llvm::zip_equal(type.getShape(), strides), [&](auto axis) {
        auto [size, stride] = axis;
        return size == 1 ||
               llvm::is_contained(llvm::zip_equal(view.getShape(), viewStrides),
                                  axis);
      });
}

/// True if both have the same strides, apart from those of axes of one element.
static bool haveSameStrides(RankedTensorType left, RankedTensorType right) {
  return llvm::all_of(llvm::zip_equal(left.getShape(), aten::getStrides(left),
                                      aten::getStrides(right)),
                      [](auto axis) {
                        auto [size, left, right] = axis;
                        return size == 1 || left == right;
                      });
}

/// True if the result of a call has the same bits wherever its elements lie,
/// and nothing but the flat gradient reads it.
static bool mayLieAnyhow(aten::CallOp call, Value gradient) {
  const operators::OpFacts *facts = call.getFacts();
  if (!facts || !facts->isExact || call->getNumResults() != 1)
    return false;
  // add and sub have an alpha after their operands.
  aten::ArgsAttr args = call.getArgs();
  unsigned alpha = args.find("alpha").value_or(2);
  if (alpha < args.getValues().size()) {
    auto value = dyn_cast<IntegerAttr>(args.getValues()[alpha]);
    if (!value || value.getInt() != 1)
      return false;
  }
  while (gradient.hasOneUse() && gradient.getDefiningOp() != call)
    gradient = aten::getViewSource(gradient.getDefiningOp());
  return gradient.hasOneUse();
}

/// True if `value` has all elements of `memory`, and nothing but them.
static bool isWhole(Value value, Value memory) {
  auto type = dyn_cast<RankedTensorType>(memory.getType());
  auto view = dyn_cast<RankedTensorType>(value.getType());
  return type && view && aten::isGapless(type) && aten::isGapless(view) &&
         type.getNumElements() == view.getNumElements() &&
         aten::getOffset(type) == aten::getOffset(view);
}

/// True if `gradient` is the whole of `memory`, which may lie in the flat
/// gradient, where the parameter has type `to`.
static bool isComputedInPlace(Value memory, Value gradient,
                              RankedTensorType to) {
  auto call = memory.getDefiningOp<aten::CallOp>();
  if (!call || !isWhole(gradient, memory))
    return false;
  auto type = cast<RankedTensorType>(memory.getType());
  auto view = cast<RankedTensorType>(gradient.getType());
  if (type.getElementType() != to.getElementType())
    return false;
  return view.getShape() == to.getShape() &&
         (haveSameStrides(view, to) ||
          (isPermuted(type, view) && mayLieAnyhow(call, gradient)));
}

//===----------------------------------------------------------------------===//
// All memory
//===----------------------------------------------------------------------===//

/// The state as which the function returns an operand; null if it is none.
static StateAttr getReturnedState(OpOperand &use) {
  auto program = use.getOwner()->getParentOfType<func::FuncOp>();
  return program.getResultAttrOfType<StateAttr>(
      use.getOperandNumber(), FSDPDialect::getStateAttrName());
}

/// The value in whose memory a result lies; null if it has its own.
static Value getMemoryOf(OpResult result) {
  unsigned index = result.getResultNumber();
  return TypeSwitch<Operation *, Value>(result.getOwner())
      .Case([](AsyncWaitOp op) { return op.getFuture(); })
      .Case([](LaunchOpInterface op) {
        // A gather in a group of one rank: the shard is the whole.
        Value shard = op.getLaunched(), full = op.getFuture();
        return op.isGather() &&
                       getLocalNumel(shard.getType()) ==
                           getLocalNumel(full.getType()) &&
                       getElementType(shard.getType()) ==
                           getElementType(full.getType())
                   ? shard
                   : Value();
      })
      .Case([](AccumulateOp op) { return op.getSum(); })
      .Case([&](UpdateOpInterface op) { return op.getStates()[index].before; })
      .Default([](Operation *op) { return aten::getViewSource(op); });
}

/// A collective in flight; null for anything else, as for one of the logical
/// level, which takes no memory beside that of its values.
static CollectiveOpInterface getCollective(Operation *op) {
  return isa_and_nonnull<LaunchOpInterface>(op)
             ? dyn_cast<CollectiveOpInterface>(op)
             : CollectiveOpInterface();
}

static bool isGather(Operation *op) {
  CollectiveOpInterface launch = getCollective(op);
  return launch && launch.isGather();
}

namespace {
class Lives {
public:
  Lives(const StreamOrder &order, MemorySpace space)
      : order(order), space(space) {}
  SmallVector<MemoryLife, 0> find();

private:
  void findKept(func::ReturnOp op);
  void findFlatPlaces(FlattenGradsOp op);
  void findCopyOut(CollectiveOpInterface op);
  bool isInPlace(Operation *op, Value operand);
  void readOperands(Operation *op, unsigned place);
  ReductionPlace::Kind getPlace(CollectiveOpInterface launch);
  Value getHome(Value value);
  void take(OpResult result, unsigned begin, unsigned end);
  void takeForLaunch(CollectiveOpInterface launch, unsigned begin,
                     unsigned end);
  void copyOut(AsyncWaitOp wait, unsigned place);
  /// From here on, what the operation touches is free. A wait that copies out
  /// has waited before.
  unsigned getEnd(unsigned place) const {
    unsigned end = order.getEnd(place);
    return end > place && copyOuts.contains(end) ? end - 1 : end;
  }
  bool isSent(CollectiveOpInterface launch) {
    return !getRankGroup(launch, symbols).axes.empty();
  }

  const StreamOrder &order;
  MemorySpace space;
  SymbolTableCollection symbols;
  SmallVector<MemoryLife, 0> lives;
  DenseMap<Value, unsigned> owners; // to an index of lives
  DenseMap<std::pair<Attribute, unsigned>, unsigned> reduced; // of units
  DenseMap<Value, Value> flats; // by the memory of a gradient in one
  DenseSet<Value> kept;         // where the program leaves its results
  DenseSet<unsigned> copyOuts;  // the places of waits that copy out
  // Units that are gathered in one buffer, until they are copied out: the lives
  // of each, and of its part of the buffer.
  SmallVector<SmallVector<std::pair<unsigned, unsigned>, 1>, 0> gathers;
  DenseMap<Value, unsigned> gatherOf; // by the future
  Attribute bucket;                   // of the latest gather
};
} // namespace

/// The loss is computed where it is kept, and units and gradients that the next
/// micro-batch finds are gathered and laid out there.
void Lives::findKept(func::ReturnOp op) {
  auto program = op->getParentOfType<func::FuncOp>();
  for (OpOperand &use : op->getOpOperands()) {
    Value memory = aten::getViewRoot(use.get());
    auto wait = memory.getDefiningOp<AsyncWaitOp>();
    if (wait)
      memory = wait.getFuture();
    bool isKept = program.getResultAttr(use.getOperandNumber(),
                                        aten::ATenDialect::getLossAttrName())
                      ? wait || isWhole(use.get(), memory)
                      : getReturnedState(use) &&
                            (isGather(memory.getDefiningOp()) ||
                             (memory.getDefiningOp<FlattenGradsOp>() &&
                              memory.hasOneUse()));
    if (isKept)
      kept.insert(memory);
  }
}

void Lives::findFlatPlaces(FlattenGradsOp op) {
  auto unit = symbols.lookupNearestSymbolFrom<UnitOp>(op, op.getUnitAttr());
  if (!unit)
    return;
  Type element = getElementType(op.getFlat().getType());
  auto next = op.getGradients().begin();
  for (auto [parameter, isPresent] :
       llvm::zip_equal(unit.getLayout().getParameters(), op.getPresent())) {
    if (!isPresent)
      continue;
    Value gradient = *next++, memory = aten::getViewRoot(gradient);
    RankedTensorType to =
        parameter.getStrides().empty()
            ? RankedTensorType::get(parameter.getSizes(), element)
            : aten::getTensorType(parameter.getSizes(), element,
                                  parameter.getStrides());
    if (isComputedInPlace(memory, gradient, to))
      flats.try_emplace(memory, op.getFlat());
  }
}

/// All that was gathered at once is copied out at the first wait.
void Lives::findCopyOut(CollectiveOpInterface op) {
  IntegerAttr own = op.getBucketAttr();
  Operation *before = op->getPrevNode();
  if (!op.getCopy() || (own && before && getBucket(before) == own))
    return;
  unsigned first = order.getOperations().size();
  for (Operation *next = op; next; next = next->getNextNode()) {
    if (next != op && (!own || getBucket(next) != own))
      break;
    for (Operation *user : next->getUsers())
      if (isa<AsyncWaitOp>(user))
        first = std::min(first, order.getPlace(user));
  }
  copyOuts.insert(first);
}

/// Own, too, of what is not the reduction of a unit.
ReductionPlace::Kind Lives::getPlace(CollectiveOpInterface launch) {
  FlatSymbolRefAttr name = launch.getUnitAttr();
  auto unit = name && !launch.isGather()
                  ? symbols.lookupNearestSymbolFrom<UnitOp>(launch, name)
                  : UnitOp();
  return unit ? getReductionPlace(launch, unit).kind : ReductionPlace::Own;
}

/// True if the reduction leaves its result where its operand is: over a group
/// of one rank, or of a whole flat gradient which nothing else reads.
bool Lives::isInPlace(Operation *op, Value operand) {
  CollectiveOpInterface reduction = getCollective(op);
  if (!reduction || reduction.isGather() || reduction.getCopy())
    return false;
  Type from = operand.getType(), to = op->getResult(0).getType();
  if (getLocalNumel(from) != getLocalNumel(to) ||
      getElementType(from) != getElementType(to))
    return false;
  return !isSent(reduction) ||
         (reduction.getKind() == CollectiveKind::AllReduce &&
          operand.hasOneUse() && operand.getDefiningOp<FlattenGradsOp>() &&
          getPlace(reduction) != ReductionPlace::Own);
}

/// Who casts or copies what it sends on the compute stream has read it then.
/// The forward also runs alone: no wait of the backward ends the loss's
/// reduction.
void Lives::readOperands(Operation *op, unsigned place) {
  if (aten::getViewSource(op)) // who reads the view reads the memory
    return;
  CollectiveOpInterface launch = getCollective(op);
  unsigned end = getEnd(place);
  if (launch && !launch.getUnitAttr())
    for (Operation *wait : op->getUsers())
      end = std::max(end, order.getPlace(wait));
  for (Value operand : op->getOperands()) {
    auto owner = owners.find(operand);
    if (owner == owners.end())
      continue;
    bool isCopied =
        launch && !launch.isGather() && !isa<FutureType>(operand.getType()) &&
        (launch.getCopy() ||
         getElementType(operand.getType()) != launch.getWireType() ||
         !isSent(launch));
    lives[owner->second].keep(isCopied ? place : end);
  }
}

/// What the value is laid out as a part of, or in the place of.
Value Lives::getHome(Value value) {
  // The first gradient in it takes all of a flat one.
  if (Value flat = flats.lookup(value))
    value = flat;
  auto inPlace = [&] {
    return llvm::find_if(value.getUsers(), [&](Operation *user) {
      return isInPlace(user, value);
    });
  };
  for (auto user = inPlace(); user != value.user_end(); user = inPlace())
    value = user->getResult(0);
  return value;
}

void Lives::take(OpResult result, unsigned begin, unsigned end) {
  Value home = getHome(result);
  auto launch = home.getDefiningOp<CollectiveOpInterface>();
  ReductionPlace::Kind place = launch ? getPlace(launch) : ReductionPlace::Own;
  if (place == ReductionPlace::Kept || kept.contains(home))
    return;
  if (place == ReductionPlace::Gradient)
    end = order.getOperations().size() - 1;
  unsigned life =
      place == ReductionPlace::Own
          ? owners.try_emplace(home, lives.size()).first->second
          : reduced
                .try_emplace({launch.getUnitAttr(), unsigned(place)},
                             lives.size())
                .first->second;
  if (life == lives.size())
    lives.push_back({home, getMemoryBytes(home.getType()), begin, end});
  lives[life].keep(end);
  owners[result] = life;
}

/// What a launch takes beside its operand and its result: where it casts, and
/// where it copies.
void Lives::takeForLaunch(CollectiveOpInterface launch, unsigned begin,
                          unsigned end) {
  Value source = launch->getOperand(0), result = launch->getResult(0);
  Type wire = launch.getWireType();
  bool isCopied = launch.getCopy();
  auto isCast = [&](Value value) {
    return getElementType(value.getType()) != wire;
  };
  auto add = [&](Value value) {
    lives.push_back(
        {result, getBytes(getLocalNumel(value.getType()), wire), begin, end});
    lives.back().keep(end);
    lives.back().isCommunication = true;
  };
  // Sums of several units are copied out, those of one are where they belong.
  bool isAlone = true;
  if (IntegerAttr bucket = launch.getBucketAttr())
    for (Operation *neighbour : {launch->getPrevNode(), launch->getNextNode()})
      isAlone &= !neighbour || getBucket(neighbour) != bucket;
  if (isCopied || isCast(source))
    add(source);
  if (launch.isGather() ? isCopied : isCast(result) || (isCopied && !isAlone))
    add(result);
}

void Lives::copyOut(AsyncWaitOp wait, unsigned place) {
  auto found = gatherOf.find(wait.getFuture());
  if (found == gatherOf.end())
    return;
  for (auto [unit, buffer] : gathers[found->second])
    lives[unit].begin = lives[unit].end = lives[buffer].end = place;
  gathers[found->second].clear();
}

SmallVector<MemoryLife, 0> Lives::find() {
  for (Operation *op : order.getOperations())
    if (auto flatten = dyn_cast<FlattenGradsOp>(op))
      findFlatPlaces(flatten);
    else if (isGather(op))
      findCopyOut(cast<CollectiveOpInterface>(op));
    else if (auto end = dyn_cast<func::ReturnOp>(op))
      findKept(end);
  for (auto [index, op] : llvm::enumerate(order.getOperations())) {
    unsigned place = index;
    unsigned begin = order.getStart(place), end = getEnd(place);
    readOperands(op, place);
    for (OpResult result : op->getResults()) {
      if (Value memory = getMemoryOf(result)) {
        // Arguments are in no list: they live anyway.
        if (auto owner = owners.find(memory); owner != owners.end()) {
          unsigned life = owner->second;
          owners[result] = life;
        }
      } else if (getMemorySpace(result.getType()) == space &&
                 getMemoryBytes(result.getType())) {
        unsigned unit = lives.size();
        take(result, begin, end);
        CollectiveOpInterface launch = getCollective(op);
        if (!launch || !isSent(launch))
          continue;
        takeForLaunch(launch, begin, end);
        if (!launch.isGather() || !launch.getCopy())
          continue;
        if (!bucket || launch.getBucketAttr() != bucket)
          gathers.emplace_back();
        bucket = launch.getBucketAttr();
        gathers.back().push_back({unit, lives.size() - 1});
        gatherOf[result] = gathers.size() - 1;
      }
    }
    if (auto wait = dyn_cast<AsyncWaitOp>(op))
      copyOut(wait, place);
  }
  return std::move(lives);
}

SmallVector<MemoryLife, 0> findMemoryLives(const StreamOrder &order,
                                           MemorySpace space) {
  return Lives(order, space).find();
}

} // namespace fsdp
