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

StepProblem fsdp::buildStepProblem(func::FuncOp step, const IssueOrder &order) {
  StepProblem result;
  scheduling::Problem &problem = result.problem;
  problem.numStreams = getMaxEnumValForStream() + 1;
  problem.sharesCore = step->hasAttr(FSDPDialect::getSharedCoreAttrName());
  if (auto contention = step->getAttrOfType<IntegerAttr>(
          FSDPDialect::getContentionAttrName()))
    problem.contention = contention.getInt();
  result.persistentBytes = getPersistentBytes(step);

  StreamOrder streams(order);
  DenseMap<Operation *, uint32_t> numbers;
  DenseMap<Value, SmallVector<uint32_t, 2>> readers; // of a parameter's shard
  SmallVector<uint32_t, 0> byPlace;
  for (Operation *op : streams.getOperations()) {
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
    byPlace.push_back(number);
    scheduling::Operation &row = problem.operations.back();
    if (llvm::AddOverflow(row.duration, getCost(op), row.duration))
      row.duration = std::numeric_limits<int64_t>::max(); // which is rejected
    row.stream = row.sequence = uint32_t(getStream(op));
    row.runsAhead = runsAhead(op);
    row.links = getLinks(op);
    for (Operation *other : streams.getTurns(op))
      row.after.push_back(numbers.lookup(other));
    for (Operation *reshard : order.getAfter(op))
      row.after.push_back(numbers.lookup(reshard));
    for (Value operand : op->getOperands()) {
      if (Operation *producer = operand.getDefiningOp())
        row.after.push_back(numbers.lookup(producer));
      // What gathers a shard comes before the update that overwrites it.
      if (isa<BlockArgument>(operand) && isa<ShardType>(operand.getType())) {
        SmallVector<uint32_t, 2> &before = readers[operand];
        if (!isa<LaunchOpInterface>(op))
          llvm::append_range(row.after, before);
        before.push_back(number);
      }
    }
  }
  // The terminator is none: what it returns lives as long as the last one.
  byPlace.push_back(byPlace.empty() ? 0 : byPlace.back());
  for (MemoryLife &life : findMemoryLives(streams)) {
    problem.buffers.push_back(
        {life.bytes, byPlace[life.begin], byPlace[life.end]});
    result.buffers.push_back(std::move(life));
  }
  return result;
}
