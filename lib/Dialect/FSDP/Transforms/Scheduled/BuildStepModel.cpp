//===- BuildStepModel.cpp - A step as the planner sees it -----------------===//
//
// Each program is scheduled twice in a copy, with nothing recomputed and with
// everything: what is the same in both is there whatever is decided, and what
// differs depends on one module. Memory is what `findMemoryLives` says of the
// two; nothing here knows a rule of it.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Analysis/Memory.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/BackwardCopies.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/StepModel.h"

#include "llvm/ADT/SetVector.h"

#include <map>

using namespace mlir;

namespace fsdp {

bool isComputation(Operation *op) {
  if (isa<AsyncReshardOp>(op) || aten::getViewSource(op))
    return false;
  LaunchOpInterface launch;
  if (auto wait = dyn_cast<AsyncWaitOp>(op))
    launch = wait.getLaunch();
  else
    launch = dyn_cast<LaunchOpInterface>(op);
  if (!launch)
    return true;
  if (launch.isCopy()) // the others go with their gather or reduction
    return launch.getPhaseAttr().getValue() == aten::Phase::Update;
  // What reduces the sum of reduced gradients has nothing to overlap with.
  bool isOfSum =
      launch.isReduction() && isa<ShardType>(launch.getLaunched().getType());
  return !launch.getUnitAttr() || isOfSum;
}

/// A launch of which the planner decides where it stands; or null.
static LaunchOpInterface getUnitLaunch(Operation *op) {
  auto launch = dyn_cast_or_null<LaunchOpInterface>(op);
  return launch && !isComputation(launch) ? launch : LaunchOpInterface();
}

namespace {

/// A program of the scheduled level and its computations, by number.
struct Scheduled {
  explicit Scheduled(func::FuncOp program)
      : order(IssueOrder::getOwn(program.getBody().front())),
        lives(findMemoryLives(order)) {
    for (Operation *op : order.getOperations()) {
      next.push_back(uint32_t(computations.size()));
      if (isComputation(op)) {
        numbers[op] = uint32_t(computations.size());
        computations.push_back(op);
      }
      latest.push_back(
          computations.empty() ? 0 : uint32_t(computations.size() - 1));
    }
  }

  StreamOrder order;
  SmallVector<MemoryLife, 0> lives;
  SmallVector<Operation *, 0> computations; // the terminator is the last
  DenseMap<Operation *, uint32_t> numbers;
  // By place: the computation there or before it, and the one there or after.
  SmallVector<uint32_t, 0> latest, next;
};

/// Builds one program of the model.
class ProgramBuilder {
public:
  ProgramBuilder(func::FuncOp program, const CostModel &costs,
                 const planner::StepModel &model,
                 const llvm::StringMap<uint32_t> &units,
                 std::vector<RankGroup> &groups)
      : name(program), costs(costs), model(model), units(units),
        groups(groups) {}

  LogicalResult build(func::FuncOp plain, func::FuncOp full,
                      ArrayRef<Recomputed> recomputed,
                      ArrayRef<uint32_t> modules);

  planner::Program program;
  std::vector<uint32_t> sizes;

private:
  /// What a computation does with units.
  struct Roles {
    llvm::SmallSetVector<uint32_t, 1> weights, gradients, updates;
  };
  /// Both lives of one piece of memory, as numbers of `full`.
  struct Uses {
    std::set<uint32_t> plain, full;
    bool isInPlain = false, isInFull = false;
    int64_t bytes = 0;
    uint32_t begin = 0;
  };

  InFlightDiagnostic reject() { return func::FuncOp(name).emitError(); }
  LogicalResult match(ArrayRef<Recomputed> recomputed,
                      ArrayRef<uint32_t> modules);
  LogicalResult addTraffic();
  void addGather(LaunchOpInterface launch);
  void addReduction(LaunchOpInterface launch);
  LogicalResult addCopy(LaunchOpInterface launch);
  planner::CollectiveCost getCollectiveCost(Operation *launch);
  uint32_t getGroup(Operation *launch);
  bool isUnitMemory(const MemoryLife &life);
  LogicalResult findRoles();
  void findReaders(Value value, llvm::function_ref<void(uint32_t)> add);
  void addOps();
  void addLives();
  void fold(int64_t bytes, uint32_t begin, uint32_t end);

  func::FuncOp name;
  const CostModel &costs;
  const planner::StepModel &model;
  const llvm::StringMap<uint32_t> &units;
  std::vector<RankGroup> &groups;
  SymbolTableCollection symbols;
  std::optional<Scheduled> plain, full;
  std::vector<uint32_t> toFull; // of computations of `plain`
  std::vector<uint32_t> onlyIf; // by computation of `full`
  std::vector<int64_t> durations;
  DenseMap<Operation *, uint32_t> repeatedBy; // originals: their module
  std::vector<Roles> roles;
  std::vector<uint32_t> mainOp; // of the model, by computation of `full`
  std::vector<int64_t> takes, frees;
  DenseMap<Value, uint32_t> gradientOf; // flat gradients: their unit
};

} // namespace

//===----------------------------------------------------------------------===//
// Computations
//===----------------------------------------------------------------------===//

/// Finds out which computations of `full` are those of `plain`, and which ones
/// of which module.
LogicalResult ProgramBuilder::match(ArrayRef<Recomputed> recomputed,
                                    ArrayRef<uint32_t> modules) {
  DenseMap<Operation *, const Recomputed *> copies;
  for (const Recomputed &one : recomputed) {
    copies[one.copy] = &one;
    repeatedBy[one.original] = modules[one.module];
  }
  for (auto [number, op] : llvm::enumerate(full->computations)) {
    auto copy = copies.find(op);
    onlyIf.push_back(copy == copies.end() ? planner::nobody
                                          : modules[copy->second->module]);
    if (copy == copies.end())
      toFull.push_back(uint32_t(number));
  }
  if (toFull.size() != plain->computations.size())
    return reject() << "cannot be modelled: recomputation changes what else is "
                       "computed";
  durations.assign(full->computations.size(), 0);
  for (auto [number, op] : llvm::enumerate(plain->computations)) {
    if (op->getName() != full->computations[toFull[number]]->getName())
      return reject() << "cannot be modelled: recomputation changes the order "
                         "of what is computed";
    durations[toFull[number]] = getCost(op);
  }
  for (const Recomputed &one : recomputed)
    if (auto copy = full->numbers.find(one.copy); copy != full->numbers.end())
      durations[copy->second] = durations[full->numbers.lookup(one.original)];
  return success();
}

/// Those that read a value or a view of it.
void ProgramBuilder::findReaders(Value value,
                                 llvm::function_ref<void(uint32_t)> add) {
  for (Operation *user : value.getUsers()) {
    if (auto number = full->numbers.find(user); number != full->numbers.end()) {
      add(number->second);
    } else if (aten::getViewSource(user)) {
      for (Value view : user->getResults())
        findReaders(view, add);
    }
  }
}

/// A flat gradient that is reduced in place and copied to the host: it ends
/// with the copy, as others end with their reductions.
static LaunchOpInterface getReductionInPlace(const MemoryLife &life,
                                             const StreamOrder &order) {
  LaunchOpInterface launch = getUnitLaunch(life.value.getDefiningOp());
  bool isInPlace = launch && launch.isReduction() &&
                   life.begin < order.getPlace(launch) &&
                   llvm::any_of(launch->getUsers(), isCopy);
  return isInPlace ? launch : LaunchOpInterface();
}

LogicalResult ProgramBuilder::findRoles() {
  for (Operation *op : full->order.getOperations())
    if (LaunchOpInterface launch = getUnitLaunch(op);
        launch && !units.contains(launch.getUnitAttr().getValue()))
      return reject() << "has a collective of the unit " << launch.getUnitAttr()
                      << ", which there is not";
  roles.resize(full->computations.size());
  auto terminator = uint32_t(roles.size() - 1);
  for (Operation *op : full->order.getOperations()) {
    LaunchOpInterface launch = getUnitLaunch(op);
    if (!launch)
      continue;
    uint32_t unit = units.lookup(launch.getUnitAttr().getValue());
    if (launch.isGather()) {
      for (Operation *wait : launch->getUsers())
        for (Operation *user : wait->getUsers()) {
          // The wait stands in front of the first view.
          if (aten::getViewSource(user))
            roles[full->next[full->order.getPlace(user)]].weights.insert(unit);
        }
      for (Operation *wait : launch->getUsers())
        findReaders(wait->getResult(0), [&](uint32_t reader) {
          roles[reader].weights.insert(unit);
        });
      continue;
    }
    // What another reduction has in flight follows that one.
    Value launched = launch.getLaunched();
    if (launch.isCopy() && !isa<FutureType>(launched.getType()))
      continue; // a gather takes it
    if (!isa<FutureType>(launched.getType())) {
      Operation *maker = launched.getDefiningOp();
      roles[maker ? full->latest[full->order.getPlace(maker)] : 0]
          .gradients.insert(unit);
      if (isa_and_nonnull<FlattenGradsOp>(maker))
        gradientOf[launched] = unit;
    }
    uint32_t first = terminator;
    for (Operation *wait : launch->getUsers())
      if (isa<AsyncWaitOp>(wait))
        findReaders(wait->getResult(0), [&](uint32_t reader) {
          if (reader != terminator)
            roles[reader].updates.insert(unit);
          first = std::min(first, reader);
        });
    if (first == terminator)
      roles[terminator].updates.insert(unit);
  }
  for (const MemoryLife &life : full->lives)
    if (LaunchOpInterface launch = getReductionInPlace(life, full->order))
      gradientOf[life.value] = units.lookup(launch.getUnitAttr().getValue());
  for (const MemoryLife &life : full->lives)
    if (auto unit = gradientOf.find(life.value); unit != gradientOf.end())
      if (!life.isCommunication)
        roles[full->latest[life.begin]].gradients.insert(unit->second);
  return success();
}

static planner::Stream convert(Stream stream) {
  switch (stream) {
  case Stream::Gather:
    return planner::Stream::Gather;
  case Stream::Reduce:
    return planner::Stream::Reduce;
  case Stream::AllReduce:
    return planner::Stream::AllReduce;
  case Stream::Copy:
    return planner::Stream::Copy;
  case Stream::Compute:
    break;
  }
  llvm_unreachable("computations are not launched");
}

/// One operation for each computation. What it does with a second unit is one
/// of its own, of no time.
void ProgramBuilder::addOps() {
  // Constants of the backward may stand anywhere in front of it.
  size_t forwardEnd = 0;
  for (auto [number, op] : llvm::enumerate(full->computations))
    if (!roles[number].weights.empty() && !isBackward(op) &&
        !op->hasTrait<OpTrait::IsTerminator>())
      forwardEnd = number + 1;
  planner::Phase phase = planner::Phase::Forward;
  auto add = [&](uint32_t number, uint32_t size) -> planner::ComputeOp & {
    program.ops.emplace_back();
    program.ops.back().phase = phase;
    program.ops.back().onlyIf = onlyIf[number];
    sizes.push_back(size);
    return program.ops.back();
  };
  uint32_t launched = 0;
  DenseMap<Operation *, uint32_t> calls;
  for (auto [number, op] : llvm::enumerate(full->computations)) {
    if (number >= forwardEnd && isBackward(op))
      phase = planner::Phase::Backward;
    const Roles &role = roles[number];
    for (uint32_t unit : ArrayRef(role.weights.getArrayRef())
                             .drop_front(role.weights.empty() ? 0 : 1))
      add(number, 0).weights = unit;
    bool isEnd = op->hasTrait<OpTrait::IsTerminator>();
    for (uint32_t unit : ArrayRef(role.updates.getArrayRef())
                             .drop_front(role.updates.empty() || isEnd ? 0 : 1))
      add(number, 0).update = unit;
    for (uint32_t unit : ArrayRef(role.gradients.getArrayRef())
                             .drop_front(role.gradients.empty() ? 0 : 1))
      add(number, 0).gradient = unit;
    mainOp.push_back(uint32_t(program.ops.size()));
    planner::ComputeOp &row = add(number, 1);
    row.duration = durations[number];
    if (!role.weights.empty())
      row.weights = role.weights.front();
    if (!role.updates.empty() && !isEnd)
      row.update = role.updates.front();
    if (!role.gradients.empty())
      row.gradient = role.gradients.front();
    if (isa<LaunchOpInterface>(op)) {
      row.launches = calls[op] = launched++;
      row.duration = 0;
    } else if (auto wait = dyn_cast<AsyncWaitOp>(op)) {
      row.awaits = calls.lookup(wait.getLaunch());
    }
    for (uint32_t unit : ArrayRef(role.weights.getArrayRef())
                             .drop_front(role.weights.empty() ? 0 : 1))
      add(number, 0).weights = unit;
  }
  for (Operation *op : full->computations)
    if (auto launch = dyn_cast<LaunchOpInterface>(op))
      program.calls.push_back({convert(launch.getStream()), getCost(op),
                               launch.isCopy() ? 0 : getGroup(op)});
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

uint32_t ProgramBuilder::getGroup(Operation *launch) {
  RankGroup group = getRankGroup(cast<CollectiveOpInterface>(launch), symbols);
  for (auto [number, known] : llvm::enumerate(groups))
    if (known == group)
      return uint32_t(number);
  groups.push_back(group);
  return uint32_t(groups.size() - 1);
}

/// As it was measured, if it was.
planner::CollectiveCost ProgramBuilder::getCollectiveCost(Operation *launch) {
  Work work = cast<CostOpInterface>(launch).getWork(symbols);
  auto *sent = std::get_if<planner::Communication>(&work);
  if (!sent)
    return {};
  planner::CollectiveCost cost = costs.hardware.getCost(*sent);
  return cost.getDuration() == getCost(launch)
             ? cost
             : planner::CollectiveCost{0, 1000 * getCost(launch)};
}

void ProgramBuilder::addGather(LaunchOpInterface launch) {
  planner::Traffic &row =
      program.traffic[units.lookup(launch.getUnitAttr().getValue())];
  row.gather = getCollectiveCost(launch);
  row.gatherGroup = getGroup(launch);
}

/// A gather takes the copy in flight, or the copy a reduction.
LogicalResult ProgramBuilder::addCopy(LaunchOpInterface launch) {
  Value launched = launch.getLaunched();
  planner::Traffic &row =
      program.traffic[units.lookup(launch.getUnitAttr().getValue())];
  if (!isa<FutureType>(launched.getType()))
    row.copyIn = getCost(launch);
  else if (!isComputation(launched.getDefiningOp()))
    row.copyOut = getCost(launch);
  else
    return reject() << "--auto does not know offload of gradients that are "
                       "all-reduced once for all micro-batches: leave out "
                       "--no-all-reduce or --offload";
  return success();
}

void ProgramBuilder::addReduction(LaunchOpInterface launch) {
  planner::Traffic &row =
      program.traffic[units.lookup(launch.getUnitAttr().getValue())];
  if (launch.getStream() == Stream::Reduce) {
    row.reduction = getCollectiveCost(launch);
    row.reduceGroup = getGroup(launch);
    row.isReduced = true;
  } else {
    row.allReduce = getCollectiveCost(launch);
    row.allReduceGroup = getGroup(launch);
    row.isAllReduced = true;
  }
}

static Operation *getWait(LaunchOpInterface launch) {
  return *llvm::find_if(launch->getUsers(),
                        [](Operation *op) { return isa<AsyncWaitOp>(op); });
}

/// What belongs to a unit and ends where its collectives are placed.
bool ProgramBuilder::isUnitMemory(const MemoryLife &life) {
  if (gradientOf.contains(life.value))
    return true;
  LaunchOpInterface launch = getUnitLaunch(life.value.getDefiningOp());
  // What is reduced in place has the memory of the gradient.
  return launch && life.begin == full->order.getPlace(launch);
}

LogicalResult ProgramBuilder::addTraffic() {
  program.traffic.resize(model.units.size());
  for (planner::Traffic &row : program.traffic)
    row.isReduced = false;
  for (Operation *op : full->order.getOperations()) {
    if (isa<PieceOp>(op))
      return reject() << "--auto does not know units of which pieces are kept: "
                         "leave out --reshard-after-forward";
    LaunchOpInterface launch = getUnitLaunch(op);
    if (!launch)
      continue;
    if (launch.isGather())
      addGather(launch);
    else if (launch.isReduction())
      addReduction(launch);
    else if (failed(addCopy(launch)))
      return failure();
  }
  unsigned end = full->order.getOperations().size() - 1;
  std::vector<int64_t> copied(model.units.size(), 0); // what gathers take
  for (const MemoryLife &life : full->lives) {
    if (!isUnitMemory(life))
      continue;
    if (auto unit = gradientOf.find(life.value); unit != gradientOf.end()) {
      planner::Traffic &row = program.traffic[unit->second];
      row.gradientBytes = life.bytes;
      for (Operation *user : life.value.getUsers())
        row.isCast |= life.end == full->order.getPlace(user);
      continue;
    }
    auto launch = cast<LaunchOpInterface>(life.value.getDefiningOp());
    uint32_t unit = units.lookup(launch.getUnitAttr().getValue());
    planner::Traffic &row = program.traffic[unit];
    bool isTaken = llvm::any_of(launch->getUsers(), [](Operation *user) {
      return isa<LaunchOpInterface>(user);
    });
    bool isCopied = llvm::any_of(launch->getUsers(), isCopy);
    if (launch.isGather()) { // of both phases, which are the same
      (life.isCommunication ? row.sentBytes : row.gatheredBytes) = life.bytes;
      if (!life.isCommunication && life.end == end)
        return reject() << "--auto does not know units that stay gathered "
                           "after the backward";
    } else if (launch.isCopy()) {
      // What one rank gathers is the copy itself.
      auto gather = cast<LaunchOpInterface>(*launch->user_begin());
      bool isGathered = life.end > full->order.getPlace(getWait(gather));
      (isGathered ? row.gatheredBytes : copied[unit]) = life.bytes;
    } else if (life.isCommunication || isCopied ||
               (isTaken && life.end != end)) {
      row.castBytes += life.bytes;
    } else if (life.end == end) {
      row.reducedBytes += life.bytes;
    } else {
      row.resultBytes += life.bytes;
    }
  }
  for (auto [row, bytes] : llvm::zip_equal(program.traffic, copied))
    row.sentBytes += bytes;
  return success();
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

/// Memory of which nothing depends on decisions.
void ProgramBuilder::fold(int64_t bytes, uint32_t begin, uint32_t end) {
  takes[mainOp[begin]] += bytes;
  frees[mainOp[end]] += bytes;
}

void ProgramBuilder::addLives() {
  using Key = std::tuple<uint32_t, unsigned, bool>; // maker, result, kind
  std::map<Key, SmallVector<Uses, 1>> all;
  auto collect = [&](const Scheduled &from, bool isFull) {
    std::map<Key, unsigned> seen;
    for (const MemoryLife &life : from.lives) {
      Operation *maker = life.value.getDefiningOp();
      bool isUnit = gradientOf.contains(life.value) ||
                    getReductionInPlace(life, from.order);
      if (LaunchOpInterface launch = getUnitLaunch(maker))
        isUnit |= life.begin == from.order.getPlace(launch);
      if (auto flatten = dyn_cast<FlattenGradsOp>(maker))
        for (Operation *user : flatten.getFlat().getUsers())
          isUnit |= isa<LaunchOpInterface>(user);
      if (isUnit)
        continue;
      auto number = [&](unsigned place) {
        uint32_t own = from.latest[place];
        return isFull ? own : toFull[own];
      };
      Key key = {number(life.begin),
                 cast<OpResult>(life.value).getResultNumber(),
                 life.isCommunication};
      unsigned index = seen[key]++;
      SmallVector<Uses, 1> &same = all[key];
      if (same.size() <= index)
        same.resize(index + 1);
      Uses &uses = same[index];
      uses.bytes = life.bytes;
      uses.begin = number(life.begin);
      (isFull ? uses.isInFull : uses.isInPlain) = true;
      for (unsigned place : life.uses)
        (isFull ? uses.full : uses.plain)
            .insert(std::max(number(place), uses.begin));
    }
  };
  collect(*plain, false);
  collect(*full, true);

  takes.assign(program.ops.size(), 0);
  frees.assign(program.ops.size(), 0);
  for (auto &[key, same] : all)
    for (const Uses &uses : same) {
      planner::Life life = {uses.bytes, uses.begin, uses.begin, {}};
      uint32_t ownModule = onlyIf[uses.begin];
      if (!uses.isInPlain || !uses.isInFull) {
        for (uint32_t use : uses.isInFull ? uses.full : uses.plain)
          life.end = std::max(life.end, use);
      } else {
        auto module = repeatedBy.find(full->computations[uses.begin]);
        std::map<std::pair<uint32_t, bool>, uint32_t> reads;
        for (uint32_t use : uses.plain)
          if (uses.full.count(use) || module == repeatedBy.end())
            life.end = std::max(life.end, use);
          else
            reads[{module->second, false}] = use;
        for (uint32_t use : uses.full)
          if (!uses.plain.count(use)) {
            if (onlyIf[use] == planner::nobody)
              life.end = std::max(life.end, use);
            else
              reads[{onlyIf[use], true}] = use;
          }
        for (auto [when, use] : reads)
          if (use > life.end)
            life.reads.push_back({when.first, when.second, use});
      }
      bool isThroughout =
          life.reads.empty() &&
          (ownModule == planner::nobody ? onlyIf[life.end] == planner::nobody
                                        : life.begin == life.end);
      if (isThroughout) {
        fold(life.bytes, life.begin, life.end);
        continue;
      }
      life.begin = mainOp[life.begin];
      life.end = mainOp[life.end];
      for (planner::Life::Read &read : life.reads)
        read.op = mainOp[read.op];
      program.lives.push_back(std::move(life));
    }
  for (size_t i = 0; i != program.ops.size(); ++i) {
    program.ops[i].change = takes[i] - frees[i];
    program.ops[i].transient = std::min(takes[i], frees[i]);
  }
}

LogicalResult ProgramBuilder::build(func::FuncOp plainProgram,
                                    func::FuncOp fullProgram,
                                    ArrayRef<Recomputed> recomputed,
                                    ArrayRef<uint32_t> modules) {
  plain.emplace(plainProgram);
  full.emplace(fullProgram);
  program.name = name.getSymName().str();
  if (failed(match(recomputed, modules)) || failed(findRoles()) ||
      failed(addTraffic()))
    return failure();
  addOps();
  addLives();
  llvm::SmallSetVector<uint32_t, 8> recomputable;
  for (uint32_t module : modules)
    if (llvm::is_contained(onlyIf, module))
      recomputable.insert(module);
  program.recomputable.assign(recomputable.begin(), recomputable.end());
  planner::compact(program, sizes);
  return success();
}

//===----------------------------------------------------------------------===//
// The step
//===----------------------------------------------------------------------===//

/// Which micro-batches of a step a program is for, and how many these are.
static void setPart(func::FuncOp program, planner::Program &model) {
  using Role = planner::Program::Role;
  auto part = program->getAttrOfType<PartAttr>(FSDPDialect::getPartAttrName());
  if (!part)
    return;
  model.role = part.getValue() == Part::First    ? Role::First
               : part.getValue() == Part::Middle ? Role::Middle
                                                 : Role::Last;
  auto microBatches =
      program->getParentOfType<ModuleOp>()->getAttrOfType<IntegerAttr>(
          FSDPDialect::getMicroBatchesAttrName());
  if (microBatches && model.role == Role::Middle)
    model.count = microBatches.getInt() - 2;
}

/// What a whole unit takes that a later micro-batch would else gather.
static void setResidentBytes(ArrayRef<UnitOp> units,
                             planner::StepModel &model) {
  for (const planner::Program &program : model.programs)
    if (program.role == planner::Program::Role::Last)
      for (auto [index, unit] : llvm::enumerate(units))
        if (!UnitOp(unit).getShardAxes().empty())
          model.units[index].residentBytes =
              program.traffic[index].gatheredBytes;
}

/// The number of a module, which is added if need be.
static uint32_t getModule(planner::StepModel &model, StringRef path) {
  auto found = llvm::find(model.modules, path);
  if (found == model.modules.end()) {
    model.modules.push_back(path.str());
    return uint32_t(model.modules.size() - 1);
  }
  return uint32_t(found - model.modules.begin());
}

/// The module that a unit is a part of: of those that may be recomputed if it
/// is in one, else its own.
static uint32_t getModuleOf(planner::StepModel &model, UnitOp unit) {
  if (unit.getRoot())
    return planner::nobody;
  StringRef name = unit.getSymName();
  for (auto [number, path] : llvm::enumerate(model.modules))
    if (name == path ||
        (name.starts_with(path) && name.substr(path.size()).starts_with(".")))
      return uint32_t(number);
  return getModule(model, name);
}

/// A module with what programs are made with: meshes and units.
static OwningOpRef<ModuleOp> cloneDeclarations(ModuleOp module) {
  OpBuilder builder(module.getContext());
  OwningOpRef<ModuleOp> copy(ModuleOp::create(builder, module.getLoc()));
  (*copy)->setDiscardableAttrs(module->getDiscardableAttrDictionary());
  builder.setInsertionPointToEnd(copy->getBody());
  for (Operation &op : *module.getBody())
    if (!isa<func::FuncOp>(op))
      builder.clone(op);
  return copy;
}

/// What costs are annotated for.
static void readMachine(func::FuncOp program, planner::StepModel &model) {
  model.sharesCore = program->hasAttr(FSDPDialect::getSharedCoreAttrName());
  model.sharesLink = program->hasAttr(FSDPDialect::getSharedLinkAttrName());
  auto contention =
      program->getAttrOfType<IntegerAttr>(FSDPDialect::getContentionAttrName());
  model.contention = contention ? contention.getInt() : 0;
}

FailureOr<BuiltModel> buildStepModel(ArrayRef<func::FuncOp> programs,
                                     const CostModel &costs) {
  BuiltModel built;
  planner::StepModel &model = built.model;
  func::FuncOp first = programs.front();
  auto module = first->getParentOfType<ModuleOp>();
  model.persistentBytes = getPersistentBytes(first);

  SmallVector<SmallVector<uint32_t>> recomputable;
  SmallVector<std::vector<std::string>> paths;
  for (func::FuncOp program : programs) {
    if (failed(checkStraightLine(program.getBody().front())))
      return failure();
    paths.push_back(findRecomputable(program));
    recomputable.push_back(
        llvm::map_to_vector(paths.back(), [&](const std::string &path) {
          return getModule(model, path);
        }));
  }
  llvm::StringMap<uint32_t> units;
  for (auto unit : module.getOps<UnitOp>()) {
    units[unit.getSymName()] = uint32_t(model.units.size());
    bool stays = unit.getRoot() || unit.getKeptAfterBackward() ||
                 unit.getShardAxes().empty();
    model.units.push_back(
        {unit.getSymName().str(), getModuleOf(model, unit), stays});
  }

  std::vector<RankGroup> groups;
  OwningOpRef<ModuleOp> scratch = cloneDeclarations(module);
  OpBuilder builder(module.getContext());
  builder.setInsertionPointToEnd(scratch->getBody());
  for (auto [number, constProgram] : llvm::enumerate(programs)) {
    func::FuncOp program = constProgram;
    auto plain = cast<func::FuncOp>(builder.clone(*program));
    setReshardAfterForward(plain, true);
    auto full = cast<func::FuncOp>(builder.clone(*plain));
    full.setSymName((program.getSymName() + ".full").str());
    std::vector<Recomputed> recomputed = recompute(full, paths[number]);
    if (failed(makeAsync(plain)) || failed(makeAsync(full)) ||
        failed(costs.annotate(plain)) || failed(costs.annotate(full)))
      return failure();
    readMachine(plain, model);
    ProgramBuilder one(program, costs, model, units, groups);
    if (failed(one.build(plain, full, recomputed, recomputable[number])))
      return failure();
    setPart(program, one.program);
    model.programs.push_back(std::move(one.program));
    built.sizes.push_back(std::move(one.sizes));
    full.erase();
    plain.erase();
  }
  setResidentBytes(llvm::to_vector(module.getOps<UnitOp>()), model);
  bool isAny = false;
  for (const RankGroup &group : groups) {
    model.overlaps.emplace_back();
    for (const RankGroup &other : groups) {
      bool overlaps = !(group == other) && group.overlaps(other);
      model.overlaps.back().push_back(overlaps);
      isAny |= overlaps;
    }
  }
  if (!isAny)
    model.overlaps.clear(); // there are no turns
  if (std::string error = planner::check(model); !error.empty())
    return first.emitError("cannot be modelled: ") << error;
  return built;
}

} // namespace fsdp
