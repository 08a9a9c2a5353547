//===- StepProblem.cpp - A step as a scheduling problem -------------------===//
//
// One walk numbers operations and finds what each depends on; memory lives from
// who makes it to who uses it last.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/StepProblem.h"

#include "fsdp/Analysis/Costs.h"
#include "fsdp/Analysis/Memory.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace fsdp;
namespace scheduling = fsdp::planner::scheduling;

static Stream getStream(Operation *op) {
  auto streamed = dyn_cast<StreamedOpInterface>(op);
  return streamed ? streamed.getStream() : Stream::Compute;
}

static IntegerAttr getBucket(Operation *op) {
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  return collective ? collective.getBucketAttr() : IntegerAttr();
}

/// Adds a launch to those of its group, and returns what it waits for: groups
/// that have some ranks in common, but not all, take turns (see
/// `--plan-insert-sync`).
static SmallVector<uint32_t, 2>
addToGroup(SmallVectorImpl<std::pair<RankGroup, uint32_t>> &latest,
           const RankGroup &group, uint32_t number) {
  SmallVector<uint32_t, 2> before;
  std::pair<RankGroup, uint32_t> *own = nullptr;
  for (auto &entry : latest)
    if (entry.first == group)
      own = &entry;
    else if (entry.first.overlaps(group))
      before.push_back(entry.second);
  if (own)
    own->second = number;
  else
    latest.emplace_back(group, number);
  return before;
}

StepProblem fsdp::buildStepProblem(func::FuncOp step, const IssueOrder &order) {
  StepProblem result;
  scheduling::Problem &problem = result.problem;
  problem.numStreams = getMaxEnumValForStream() + 1;
  problem.sharesCore = step->hasAttr(FSDPDialect::getSharedCoreAttrName());
  result.persistentBytes = getPersistentBytes(step);

  DenseMap<Operation *, uint32_t> numbers;
  DenseMap<Value, SmallVector<uint32_t, 2>> readers; // of a parameter's shard
  SmallVector<uint32_t, 0> byPosition;
  SymbolTableCollection symbols;
  SmallVector<std::pair<RankGroup, uint32_t>> groups; // and their latest launch
  for (Operation *op : order.getOperations()) {
    if (op->hasTrait<OpTrait::IsTerminator>())
      break;
    IntegerAttr bucket = getBucket(op);
    if (!bucket || result.operations.empty() ||
        getBucket(result.operations.back().back()) != bucket) {
      result.operations.emplace_back();
      problem.operations.emplace_back();
    }
    uint32_t number = uint32_t(result.operations.size()) - 1;
    result.operations.back().push_back(op);
    numbers[op] = number;
    byPosition.push_back(number);
    scheduling::Operation &row = problem.operations.back();
    if (llvm::AddOverflow(row.duration, getCost(op), row.duration))
      row.duration = std::numeric_limits<int64_t>::max(); // which is rejected
    row.stream = row.sequence = uint32_t(getStream(op));
    if (auto collective = dyn_cast<CollectiveOpInterface>(op))
      llvm::append_range(
          row.after,
          addToGroup(groups, getRankGroup(collective, symbols), number));
    for (Operation *reshard : order.getAfter(op))
      row.after.push_back(numbers.lookup(reshard));
    for (Value operand : op->getOperands()) {
      if (Operation *producer = operand.getDefiningOp())
        row.after.push_back(numbers.lookup(producer));
      // What gathers a shard comes before the update that overwrites it.
      if (isa<BlockArgument>(operand) && isa<ShardType>(operand.getType())) {
        SmallVector<uint32_t, 2> &before = readers[operand];
        if (!isLaunch(op))
          llvm::append_range(row.after, before);
        before.push_back(number);
      }
    }
  }
  // The terminator is none: what it returns lives as long as the last one.
  byPosition.push_back(byPosition.empty() ? 0 : byPosition.back());
  const std::list<Operation *> &operations = order.getOperations();
  for (MemoryLife &life : findMemoryLives(
           SmallVector<Operation *, 0>(operations.begin(), operations.end()))) {
    problem.buffers.push_back(
        {life.bytes, byPosition[life.begin], byPosition[life.end]});
    // A buffer has one operation that releases it. If a launch shares one with
    // others, that has to stay the last: the launch does not move.
    if (life.users.size() > 1)
      for (Operation *user : life.users)
        if (isLaunch(user))
          problem.operations[numbers.lookup(user)].sequence =
              scheduling::computeStream;
    result.buffers.push_back(std::move(life));
  }
  return result;
}
