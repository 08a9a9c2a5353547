//===- ApplyDecisions.cpp - Carry the planner's decisions out -------------===//
//
// What is kept and recomputed is decided at the logical level; then launches
// and waits go to the places that the planner has computed.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Gathers.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/StepModel.h"
#include "fsdp/Planner/Placement.h"

using namespace mlir;

namespace fsdp {

namespace {
class Applier {
public:
  Applier(func::FuncOp program, const BuiltModel &built, size_t number,
          const planner::Decisions &decisions)
      : program(program), built(built), number(number),
        placement(planner::place(built.model, number, decisions)) {}

  LogicalResult apply(IssueOrder &order);

private:
  Operation *findWait(const planner::ComputeOp &op, size_t computation) const;
  LogicalResult findAnchors(const IssueOrder &order);
  void findLaunches();
  void placeReductions(IssueOrder &order, uint32_t place);
  void placeGathers(IssueOrder &order, uint32_t place);
  void placeWaits(IssueOrder &order, uint32_t place, bool isEarly);
  void issue(IssueOrder &order, ArrayRef<Operation *> launches,
             Operation *before);

  /// The launches of a unit.
  struct Launches {
    std::array<Operation *, planner::numPhases> gathers = {};
    SmallVector<Operation *, 2> reductions; // each takes the one before it
    Operation *wait = nullptr;              // for the last of these
  };

  func::FuncOp program;
  const BuiltModel &built;
  size_t number;
  planner::Placement placement;
  std::vector<Launches> launches;      // by unit
  SmallVector<Operation *, 0> anchors; // by place: what comes after it
  DenseMap<Operation *, size_t> waits; // for gathers: the computation after it
  int64_t numBuckets = 0;
};
} // namespace

/// Of the unit that an operation of the model takes, in front of this
/// computation; or null.
Operation *Applier::findWait(const planner::ComputeOp &op,
                             size_t computation) const {
  if (op.weights == planner::nobody)
    return nullptr;
  for (Operation *gather : launches[op.weights].gathers) {
    if (!gather)
      continue;
    for (Operation *user : gather->getUsers())
      if (auto wait = waits.find(user);
          wait != waits.end() && wait->second == computation)
        return user;
  }
  return nullptr;
}

/// What is put at a place goes in front of the first operation after the
/// computation before it and after the units that end there: often the wait for
/// a unit, which stays where it is. Of a computation with several units, what
/// is put at the place of the next one goes after the waits for those before.
LogicalResult Applier::findAnchors(const IssueOrder &order) {
  SmallVector<Operation *, 0> computations;
  SmallVector<Operation *, 0> firsts; // by computation
  Operation *first = nullptr;
  for (Operation *op : order.getOperations()) {
    auto wait = dyn_cast<AsyncWaitOp>(op);
    bool isGathered = wait && wait.getLaunch() && wait.getLaunch().isGather();
    if (isGathered)
      waits[op] = computations.size();
    bool mayMove = isa<LaunchOpInterface, AsyncWaitOp>(op) &&
                   !isComputation(op) && !isGathered;
    if (isa<AsyncReshardOp>(op))
      first = nullptr;
    else if (!first && !mayMove)
      first = op;
    if (!isComputation(op))
      continue;
    computations.push_back(op);
    firsts.push_back(first);
    first = nullptr;
  }
  size_t next = 0, last = computations.size();
  for (uint32_t op : placement.ops) {
    if (next == computations.size())
      break;
    Operation *anchor = next == last ? anchors.back() : firsts[next];
    if (Operation *wait = findWait(built.model.programs[number].ops[op], next);
        wait && next == last)
      anchor = wait;
    anchors.push_back(anchor);
    last = next;
    next += built.sizes[number][op];
  }
  if (next != computations.size() || anchors.size() != placement.ops.size())
    return program.emitError("is not the program that the decisions are of: "
                             "expected ")
           << next << " computations, found " << computations.size();
  anchors.push_back(computations.back()); // after the last: at the return
  return success();
}

void Applier::findLaunches() {
  llvm::StringMap<uint32_t> units;
  for (auto [number, unit] : llvm::enumerate(built.model.units))
    units[unit.name] = uint32_t(number);
  launches.resize(built.model.units.size());
  for (auto launch : program.getOps<LaunchOpInterface>()) {
    if (isComputation(launch))
      continue;
    Launches &own = launches[units.lookup(launch.getUnitAttr().getValue())];
    if (launch.isGather()) {
      auto phase = getGatherPhase(launch.getPhaseAttr().getValue());
      own.gathers[phase == aten::Phase::Backward] = launch;
      continue;
    }
    if (launch.isCopy() && !isa<FutureType>(launch.getLaunched().getType()))
      continue; // it comes with its gather
    own.reductions.push_back(launch);
    for (Operation *user : launch->getUsers())
      if (isa<AsyncWaitOp>(user))
        own.wait = user;
  }
}

/// Several of them in one call.
void Applier::issue(IssueOrder &order, ArrayRef<Operation *> calls,
                    Operation *before) {
  for (Operation *launch : calls) {
    order.moveBefore(launch, before);
    if (calls.size() > 1 && !isCopy(launch))
      launch->setAttr(
          "bucket",
          Builder(launch->getContext()).getI64IntegerAttr(numBuckets));
  }
  numBuckets += calls.size() > 1;
}

void Applier::placeReductions(IssueOrder &order, uint32_t place) {
  for (const planner::Placement::Call &call : placement.reductions) {
    if (call.launch != place)
      continue;
    // First all that reduce, then all that go on with it, then copies.
    for (size_t step = 0; step != 3; ++step) {
      SmallVector<Operation *> together;
      for (uint32_t unit : call.units)
        if (step < launches[unit].reductions.size())
          together.push_back(launches[unit].reductions[step]);
      issue(order, together, anchors[place]);
    }
  }
}

void Applier::placeGathers(IssueOrder &order, uint32_t place) {
  for (const planner::Placement::Call &call : placement.gathers) {
    if (call.launch != place)
      continue;
    SmallVector<Operation *> together;
    for (uint32_t unit : call.units) {
      auto &gathers = launches[unit].gathers;
      Operation *own = gathers[size_t(call.phase)];
      own = own ? own : gathers[0];
      if (own) // of this program
        together.push_back(own);
    }
    issue(order, together, anchors[place]);
    bringCopies(order, llvm::to_vector_of<LaunchOpInterface>(together));
  }
}

void Applier::placeWaits(IssueOrder &order, uint32_t place, bool isEarly) {
  for (const planner::Placement::Call &call : placement.reductions)
    if (call.wait == place && (call.launch < place) == isEarly)
      for (uint32_t unit : call.units)
        if (Operation *wait = launches[unit].wait)
          order.moveBefore(wait, anchors[place]);
}

LogicalResult Applier::apply(IssueOrder &order) {
  findLaunches();
  if (failed(findAnchors(order)))
    return failure();
  for (uint32_t place = 0; place != anchors.size(); ++place) {
    placeWaits(order, place, true);
    placeReductions(order, place);
    placeGathers(order, place);
    placeWaits(order, place, false);
  }
  return success();
}

LogicalResult applyDecisions(ArrayRef<func::FuncOp> programs,
                             const BuiltModel &built,
                             const planner::Decisions &decisions) {
  auto module = programs.front()->getParentOfType<ModuleOp>();
  llvm::StringMap<bool> isKept, isKeptInPart; // by unit, in any program
  ArrayAttr pieceAxes = getPieceAxes(module);
  auto setKeptAfterBackward = [&](bool isOfStep) {
    for (auto [index, unit] : llvm::enumerate(module.getOps<UnitOp>()))
      unit.setKeptAfterBackward(isOfStep && decisions.resident[index] &&
                                built.model.units[index].residentBytes);
  };
  for (auto [number, constProgram] : llvm::enumerate(programs)) {
    func::FuncOp program = constProgram;
    const planner::ProgramDecisions &own = decisions.programs[number];
    // A program beside the step gathers for itself.
    setKeptAfterBackward(built.model.programs[number].role !=
                         planner::Program::Role::Whole);
    setReshardAfterForward(program, true);
    for (auto [index, unit] : llvm::enumerate(module.getOps<UnitOp>())) {
      if (!unit.getReshardAfterForward())
        continue;
      if (own.units[index].keep == planner::Keep::All) {
        unit.setReshardAfterForward(false);
        isKept[unit.getSymName()] = true;
      } else if (own.units[index].keep == planner::Keep::Piece &&
                 built.model.programs[number].traffic[index].piece.bytes) {
        unit.setPieceAxesAttr(pieceAxes);
        isKeptInPart[unit.getSymName()] = true;
      }
    }
    applyReshard(program);
    keepGathered(program);
    std::vector<RecomputedModule> modules;
    for (uint32_t module : built.model.programs[number].recomputable)
      if (own.recompute[module] != planner::Recompute::None)
        modules.push_back({built.model.modules[module], own.recompute[module]});
    recompute(program, modules);
    if (failed(makeAsync(program)))
      return failure();
    auto order = IssueOrder::read(program.getBody().front());
    if (failed(order) ||
        failed(Applier(program, built, number, decisions).apply(*order)))
      return failure();
    order->write();
  }
  setKeptAfterBackward(true);
  for (auto unit : module.getOps<UnitOp>()) {
    if (unit.getKeptAfterBackward() || isKept.lookup(unit.getSymName()))
      unit.setReshardAfterForward(false);
    bool keepsPiece =
        unit.getReshardAfterForward() && isKeptInPart.lookup(unit.getSymName());
    unit.setPieceAxesAttr(keepsPiece ? pieceAxes : ArrayAttr());
  }
  return success();
}

} // namespace fsdp
