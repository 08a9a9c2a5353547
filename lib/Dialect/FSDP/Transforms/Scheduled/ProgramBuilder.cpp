//===- ProgramBuilder.cpp - A program as the planner sees it --------------===//
//
// What is the same in all variants is there whatever is decided, and what
// differs depends on one module. Memory is what `findMemoryLives` says of them;
// nothing here knows a rule of it.
//
//===----------------------------------------------------------------------===//

#include "ProgramBuilder.h"

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Analysis/Memory.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/BackwardCopies.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/StepModel.h"

using namespace mlir;

namespace fsdp {

/// A launch of which the planner decides where it stands; or null.
static LaunchOpInterface getUnitLaunch(Operation *op) {
  auto launch = dyn_cast_or_null<LaunchOpInterface>(op);
  return launch && !isComputation(launch) ? launch : LaunchOpInterface();
}

//===----------------------------------------------------------------------===//
// Computations
//===----------------------------------------------------------------------===//

/// Those that read a value or a view of it.
void ProgramBuilder::findReaders(const StepVariant &variant, Value value,
                                 llvm::function_ref<void(uint32_t)> add) {
  for (Operation *user : value.getUsers()) {
    auto number = variant.numbers.find(user);
    if (number != variant.numbers.end()) {
      add(number->second);
    } else if (aten::getViewSource(user)) {
      for (Value view : user->getResults())
        findReaders(variant, view, add);
    }
  }
}

/// Of what is there in any case, in the variant with everything; of copies, in
/// their own.
void ProgramBuilder::findWeights(const StepVariant &variant,
                                 LaunchOpInterface gather) {
  uint32_t unit = units.lookup(gather.getUnitAttr().getValue());
  auto add = [&](uint32_t number) {
    if (&variant == full ||
        variants.computations[number].recompute == variant.recompute)
      roles[number].weights.insert(unit);
  };
  for (Operation *wait : gather->getUsers())
    for (Operation *user : wait->getUsers()) {
      // The wait stands in front of the first view.
      if (aten::getViewSource(user))
        add(variant.next[variant.order.getPlace(user)]);
    }
  for (Operation *wait : gather->getUsers())
    findReaders(variant, wait->getResult(0), add);
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
  roles.resize(variants.computations.size());
  for (const auto &variant : variants.variants)
    for (Operation *op : variant->order.getOperations())
      if (LaunchOpInterface launch = getUnitLaunch(op);
          launch && launch.isGather() &&
          variant->recompute != planner::Recompute::None)
        findWeights(*variant, launch);
  auto terminator = uint32_t(roles.size() - 1);
  for (Operation *op : full->order.getOperations()) {
    LaunchOpInterface launch = getUnitLaunch(op);
    if (!launch || launch.isGather())
      continue;
    uint32_t unit = units.lookup(launch.getUnitAttr().getValue());
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
        findReaders(*full, wait->getResult(0), [&](uint32_t reader) {
          if (reader != terminator)
            roles[reader].updates.insert(unit);
          first = std::min(first, reader);
        });
    if (first == terminator)
      roles[terminator].updates.insert(unit);
  }
  // What is summed in place is read as long as the sum is.
  unsigned end = full->order.getOperations().size() - 1;
  for (const MemoryLife &life : full->lives)
    if (LaunchOpInterface launch = getUnitLaunch(life.value.getDefiningOp());
        launch && launch.isReduction() && !life.isCommunication &&
        life.end != end &&
        llvm::any_of(launch->getUsers(), llvm::IsaPred<AsyncWaitOp>))
      roles[full->latest[life.end]].updates.insert(
          units.lookup(launch.getUnitAttr().getValue()));
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

/// One operation for each computation. What it does with another unit is one
/// of its own, of no time; units come in the order of their waits, and end in
/// the other.
void ProgramBuilder::addOps() {
  // Constants of the backward may stand anywhere in front of it.
  size_t forwardEnd = 0;
  const auto &computations = variants.computations;
  for (auto [number, one] : llvm::enumerate(computations))
    if (!roles[number].weights.empty() && !isBackward(one.op) &&
        !one.op->hasTrait<OpTrait::IsTerminator>())
      forwardEnd = number + 1;
  planner::Phase phase = planner::Phase::Forward;
  auto add = [&](uint32_t number, uint32_t size) -> planner::ComputeOp & {
    program.ops.emplace_back();
    program.ops.back().phase = phase;
    program.ops.back().onlyIf = computations[number].onlyIf;
    if (computations[number].onlyIf != planner::nobody)
      program.ops.back().recompute = computations[number].recompute;
    sizes.push_back(size);
    return program.ops.back();
  };
  uint32_t launched = 0;
  DenseMap<Operation *, uint32_t> calls;
  for (auto [number, one] : llvm::enumerate(computations)) {
    Operation *op = one.op;
    if (number >= forwardEnd && isBackward(op))
      phase = planner::Phase::Backward;
    const Roles &role = roles[number];
    for (uint32_t unit : ArrayRef(role.weights.getArrayRef())
                             .drop_back(role.weights.empty() ? 0 : 1))
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
    row.duration = one.duration;
    if (!role.weights.empty())
      row.weights = role.weights.back();
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
    for (uint32_t unit :
         llvm::reverse(ArrayRef(role.weights.getArrayRef())
                           .drop_back(role.weights.empty() ? 0 : 1)))
      add(number, 0).weights = unit;
  }
  for (const StepVariants::Computation &one : computations)
    if (auto launch = dyn_cast<LaunchOpInterface>(one.op))
      program.calls.push_back({convert(launch.getStream()), getCost(one.op),
                               launch.isCopy() ? 0 : getGroup(one.op)});
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

/// The number of the group of a collective, which is added if need be.
uint32_t ProgramBuilder::getGroup(Operation *launch) {
  auto collective = cast<CollectiveOpInterface>(launch);
  RankGroup group = getRankGroup(collective, symbols);
  auto number = uint32_t(llvm::find(groups, group) - groups.begin());
  if (number == groups.size()) {
    groups.push_back(group);
    model.links.emplace_back();
  }
  Stream stream = cast<LaunchOpInterface>(launch).getStream();
  model.links[number][size_t(convert(stream))] = getLinks(launch);
  return number;
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

/// One of which the piece is not taken where the forward is done with the unit
/// may keep none.
void ProgramBuilder::addPieces(func::FuncOp withPieces) {
  for (auto piece : withPieces.getOps<PieceOp>()) {
    auto next = dyn_cast_or_null<AsyncReshardOp>(piece->getNextNode());
    uint32_t unit = units.lookup(piece.getUnit());
    if (!next || next.getFull() != piece.getFull() || !piece->hasOneUse() ||
        model.units[unit].staysGathered)
      continue;
    Operation *launch = *piece->user_begin();
    program.traffic[unit].piece = {getMemoryBytes(piece.getPiece().getType()),
                                   getCost(piece), getCollectiveCost(launch),
                                   getGroup(launch)};
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
    LaunchOpInterface taker;
    for (Operation *user : launch->getUsers())
      if (auto next = dyn_cast<LaunchOpInterface>(user))
        taker = next;
    bool isCopied = taker && taker.isCopy();
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
    } else if (life.isCommunication || isCopied || (taker && life.end != end)) {
      Stream last = (life.isCommunication ? launch : taker).getStream();
      row.heldBytes[size_t(convert(last))] += life.bytes;
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

/// Memory that the traffic of a unit counts.
bool ProgramBuilder::isOfUnit(const MemoryLife &life,
                              const StreamOrder &order) const {
  if (gradientOf.contains(life.value) || getReductionInPlace(life, order))
    return true;
  Operation *maker = life.value.getDefiningOp();
  if (LaunchOpInterface launch = getUnitLaunch(maker))
    return life.begin == order.getPlace(launch);
  auto flatten = dyn_cast<FlattenGradsOp>(maker);
  return flatten &&
         llvm::any_of(flatten.getFlat().getUsers(), [](Operation *user) {
           return isa<LaunchOpInterface>(user);
         });
}

void ProgramBuilder::collectLives(const StepVariant &variant,
                                  std::map<Key, Uses> &all) const {
  auto bit = planner::getBit(variant.recompute);
  std::map<Key, unsigned> seen;
  for (const MemoryLife &life : variant.lives) {
    if (isOfUnit(life, variant.order))
      continue;
    uint32_t begin = variant.latest[life.begin];
    Key key = {begin, cast<OpResult>(life.value).getResultNumber(),
               life.isCommunication, 0};
    std::get<3>(key) = seen[key]++;
    Uses &uses = all[key];
    uses.bytes = life.bytes;
    uses.begin = begin;
    uses.isIn |= bit;
    for (unsigned place : life.uses)
      uses.ifs[std::max(variant.latest[place], begin)] |= bit;
  }
}

/// What one module decides about a life is in `reads`.
planner::Life ProgramBuilder::makeLife(const Uses &uses) const {
  planner::Life life = {uses.bytes, uses.begin, uses.begin, {}};
  uint8_t all = 0;
  for (const auto &variant : variants.variants)
    all |= planner::getBit(variant->recompute);
  auto repeated = variants.repeatedBy.find(uses.begin);
  std::map<std::pair<uint32_t, uint8_t>, uint32_t> reads;
  for (auto [use, ifs] : uses.ifs) {
    uint32_t onlyIf = variants.computations[use].onlyIf;
    if (uses.isIn != all)
      life.end = std::max(life.end, use);
    else if (onlyIf != planner::nobody)
      reads[{onlyIf, ifs}] = use;
    else if (ifs == all || repeated == variants.repeatedBy.end())
      life.end = std::max(life.end, use);
    else
      reads[{repeated->second, ifs}] = use;
  }
  for (auto [when, use] : reads)
    if (use > life.end)
      life.reads.push_back({when.first, when.second, use});
  return life;
}

void ProgramBuilder::addLives() {
  std::map<Key, Uses> all;
  for (const auto &variant : variants.variants)
    collectLives(*variant, all);
  takes.assign(program.ops.size(), 0);
  frees.assign(program.ops.size(), 0);
  auto isCopy = [&](uint32_t number) {
    return variants.computations[number].onlyIf != planner::nobody;
  };
  for (auto &[key, uses] : all) {
    planner::Life life = makeLife(uses);
    bool isThroughout =
        life.reads.empty() &&
        (isCopy(life.begin) ? life.begin == life.end : !isCopy(life.end));
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

LogicalResult ProgramBuilder::build(ArrayRef<uint32_t> modules) {
  program.name = name.getSymName().str();
  if (std::string error = variants.merge(); !error.empty())
    return reject() << "cannot be modelled: " << error;
  full = variants.variants[1].get();
  if (failed(findRoles()) || failed(addTraffic()))
    return failure();
  addOps();
  addLives();
  std::map<uint32_t, uint8_t> recomputed; // bits of what there are copies for
  for (const StepVariants::Computation &one : variants.computations)
    recomputed[one.onlyIf] |= planner::getBit(one.recompute);
  for (uint32_t module : modules) {
    if (recomputed[module] & planner::getBit(planner::Recompute::All))
      program.recomputable.push_back(module);
    if (recomputed[module] & planner::getBit(planner::Recompute::Cheap))
      program.cheap.push_back(module);
  }
  planner::compact(program, sizes);
  return success();
}

} // namespace fsdp
