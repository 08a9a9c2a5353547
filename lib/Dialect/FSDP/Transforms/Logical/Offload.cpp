//===- Offload.cpp - Keep shards and states in host memory ----------------===//
//
// States get the type of their memory, and what needs them in the other one
// gets a copy.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_OFFLOADPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
/// What of a unit lies in host memory.
struct OnHost {
  bool parameters, states;
};
using Offloaded = llvm::MapVector<Attribute, OnHost>; // by unit

/// Moves what is offloaded of one program.
class Offloader {
public:
  Offloader(func::FuncOp program, const Offloaded &offloaded)
      : program(program), block(program.getBody().front()), builder(program),
        offloaded(offloaded), arguments(getArguments(program)),
        results(getResults(program)) {}

  void run();

private:
  MemorySpace getSpace(StateAttr state);
  MemorySpace getSpace(FlatSymbolRefAttr unit, bool isParameter);
  Value copy(FlatSymbolRefAttr unit, aten::Phase phase, Value source);
  void moveGradient(Operation *reduction, FlatSymbolRefAttr unit);
  void moveUpdate(UpdateOpInterface update, Operation *previous);

  func::FuncOp program;
  Block &block;
  OpBuilder builder;
  const Offloaded &offloaded;
  Ports arguments, results;
  llvm::MapVector<Attribute, Operation *> reductions; // of units, the last ones
};
} // namespace

/// Gradients that are reduced further are on the device, where they are summed;
/// and what is gathered is, where it is read.
static bool mayMove(StateAttr state) {
  return state && !llvm::is_contained({StateAttr::getUnshardedGradientKind(),
                                       StateAttr::getPartialGradientKind(),
                                       StateAttr::getUnshardedParameterKind()},
                                      state.getKind().getValue());
}

static MemorySpace getSpace(Value value) {
  return isOnHost(value.getType()) ? MemorySpace::Host : MemorySpace::Device;
}

static void move(Value value, MemorySpace space) {
  value.setType(cast<ShardType>(value.getType()).in(space));
}

MemorySpace Offloader::getSpace(FlatSymbolRefAttr unit, bool isParameter) {
  auto found = offloaded.find(unit);
  if (found == offloaded.end())
    return MemorySpace::Device;
  return (isParameter ? found->second.parameters : found->second.states)
             ? MemorySpace::Host
             : MemorySpace::Device;
}

MemorySpace Offloader::getSpace(StateAttr state) {
  return getSpace(state.getUnit(),
                  state.getKind() == StateAttr::getParameterKind());
}

/// A copy in the other memory.
Value Offloader::copy(FlatSymbolRefAttr unit, aten::Phase phase, Value source) {
  auto type = cast<ShardType>(source.getType());
  Type other =
      type.in(type.isOnHost() ? MemorySpace::Device : MemorySpace::Host);
  return CopyOp::create(builder, source.getLoc(), other, unit.getValue(), phase,
                        source);
}

/// What is summed of it over micro-batches is summed on the host, too.
void Offloader::moveGradient(Operation *reduction, FlatSymbolRefAttr unit) {
  builder.setInsertionPointAfter(reduction);
  Value gradient = reduction->getResult(0);
  Value moved = copy(unit, aten::Phase::Backward, gradient);
  gradient.replaceAllUsesExcept(moved, moved.getDefiningOp());
  SmallVector<Value> values = {moved};
  while (!values.empty())
    for (Operation *user : values.pop_back_val().getUsers())
      if (isa<AccumulateOp>(user) && !isOnHost(user->getResult(0).getType())) {
        move(user->getResult(0), MemorySpace::Host);
        values.push_back(user->getResult(0));
      }
}

/// An update runs where the states are. A shard that is copied to the host
/// goes there while the gradient is reduced; one that is copied to the device,
/// while the update before runs.
void Offloader::moveUpdate(UpdateOpInterface update, Operation *previous) {
  FlatSymbolRefAttr unit = update.getUnitAttr();
  MemorySpace space = getSpace(unit, /*isParameter=*/false);
  OpOperand &parameter = update->getOpOperand(0);
  if (fsdp::getSpace(parameter.get()) != space) {
    Operation *place = space == MemorySpace::Host ? reductions.lookup(unit)
                       : previous                 ? previous
                                                  : update.getOperation();
    builder.setInsertionPoint(place);
    parameter.set(copy(unit, aten::Phase::Update, parameter.get()));
  }
  for (const UpdatedState &state : update.getStates())
    if (state.after)
      move(state.after, space);
}

void Offloader::run() {
  for (auto [argument, type, attrs] :
       llvm::zip_equal(block.getArguments(), arguments.types, arguments.attrs))
    if (StateAttr state = getState(attrs); mayMove(state)) {
      move(argument, getSpace(state));
      type = argument.getType();
    }

  for (Operation &op : block)
    if (isa<ReduceScatterOp, AllReduceOp>(op))
      if (FlatSymbolRefAttr unit =
              cast<CollectiveOpInterface>(op).getUnitAttr())
        reductions[unit] = &op;
  for (DictionaryAttr attrs : results.attrs)
    if (StateAttr state = getState(attrs);
        state && state.isAccumulated() && !mayMove(state))
      reductions.erase(state.getUnit());
  for (auto [unit, reduction] : reductions)
    if (auto name = cast<FlatSymbolRefAttr>(unit);
        getSpace(name, /*isParameter=*/false) == MemorySpace::Host)
      moveGradient(reduction, name);

  Operation *previous = nullptr;
  for (Operation &op : llvm::make_early_inc_range(block)) {
    if (auto gather = dyn_cast<UnshardOp>(op);
        gather && isOnHost(gather.getShard().getType())) {
      builder.setInsertionPoint(gather);
      gather.getShardMutable().set(
          copy(gather.getUnitAttr(), gather.getPhase(), gather.getShard()));
    } else if (auto update = dyn_cast<UpdateOpInterface>(op)) {
      moveUpdate(update, previous);
      previous = update;
    }
  }

  for (auto [result, type, attrs] :
       llvm::zip_equal(block.getTerminator()->getOpOperands(), results.types,
                       results.attrs)) {
    StateAttr state = getState(attrs);
    if (!mayMove(state))
      continue;
    Value value = result.get();
    if (fsdp::getSpace(value) != getSpace(state)) {
      builder.setInsertionPointAfterValue(value);
      result.set(copy(state.getUnit(), aten::Phase::Update, value));
    }
    type = result.get().getType();
  }
  setSignature(program, arguments, results);
}

namespace {
class OffloadPass : public impl::OffloadPassBase<OffloadPass> {
  using OffloadPassBase::OffloadPassBase;

  /// What goes to the host of a unit that does.
  OnHost getParts() const {
    bool isWhole = offload.bytes;
    return {isWhole || offload.parameters, isWhole || offload.states};
  }

  /// The units, in their order, and the bytes that each leaves free on the
  /// device.
  SmallVector<std::pair<Attribute, int64_t>>
  getUnits(MutableArrayRef<func::FuncOp> programs) {
    llvm::MapVector<Attribute, int64_t> bytes;
    for (auto unit : getOperation().getOps<UnitOp>())
      bytes[FlatSymbolRefAttr::get(unit)] = 0;
    OnHost parts = getParts();
    DenseSet<Attribute> seen;
    for (func::FuncOp program : programs)
      for (const Ports &ports : {getArguments(program), getResults(program)})
        for (auto [type, attrs] : llvm::zip_equal(ports.types, ports.attrs)) {
          StateAttr state = getState(attrs);
          if (!mayMove(state) || !seen.insert(state).second)
            continue;
          bool isParameter = state.getKind() == StateAttr::getParameterKind();
          if (isParameter ? parts.parameters : parts.states)
            bytes[state.getUnit()] += getMemoryBytes(type);
        }
    return llvm::to_vector(bytes.takeVector());
  }

  static LogicalResult checkOnDevice(func::FuncOp program) {
    for (Type type : program.getArgumentTypes())
      if (isOnHost(type))
        return program.emitError("offload: expected states on the device, "
                                 "found one of type ")
               << type;
    return success();
  }

  LogicalResult choose(MutableArrayRef<func::FuncOp> programs,
                       Offloaded &offloaded) {
    auto units = getUnits(programs);
    int64_t wanted = offload.bytes, saved = 0;
    SmallVector<unsigned> order =
        llvm::to_vector(llvm::seq(static_cast<unsigned>(units.size())));
    if (wanted)
      llvm::sort(order, [&](unsigned left, unsigned right) {
        return std::pair(-units[left].second, left) <
               std::pair(-units[right].second, right);
      });
    for (unsigned index : order) {
      auto [unit, bytes] = units[index];
      if (wanted && saved >= wanted)
        break;
      saved += bytes;
      offloaded[unit] = getParts();
      remark::passed(programs.front().getLoc(),
                     getRemark(getArgument(), "offload", programs.front()))
          << remark::metric("Unit", cast<FlatSymbolRefAttr>(unit).getValue())
          << remark::metric("Bytes", bytes);
    }
    if (saved < wanted)
      return emitError(programs.front().getLoc())
             << "offload: expected at most " << spellBytes(saved)
             << ", which is all that shards, gradients and states take on a "
                "rank; found "
             << spellBytes(wanted);
    return success();
  }

  void runOnOperation() final {
    auto programs = getPrograms(getOperation());
    if (failed(programs))
      return signalPassFailure();
    if (!offload)
      return;
    for (func::FuncOp program : *programs)
      if (failed(checkLevel(program, {Level::Logical})) ||
          failed(checkOnDevice(program)))
        return signalPassFailure();
    Offloaded offloaded;
    if (failed(choose(*programs, offloaded)))
      return signalPassFailure();
    for (func::FuncOp program : *programs)
      Offloader(program, offloaded).run();
  }
};
} // namespace

} // namespace fsdp
