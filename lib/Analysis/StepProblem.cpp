//===- StepProblem.cpp - A step as a scheduling problem -------------------===//
//
// One walk numbers operations and follows memory from who makes it to who uses
// it last.
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

bool fsdp::isLaunch(Operation *op) { return getStream(op) != Stream::Compute; }

static IntegerAttr getBucket(Operation *op) {
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  return collective ? collective.getBucketAttr() : IntegerAttr();
}

StepProblem fsdp::buildStepProblem(func::FuncOp step) {
  StepProblem result;
  scheduling::Problem &problem = result.problem;
  problem.numStreams = getMaxEnumValForStream() + 1;
  result.persistentBytes = getPersistentBytes(step);

  DenseMap<Operation *, uint32_t> numbers;
  DenseMap<Value, uint32_t> owners;                  // value -> buffer
  DenseMap<Value, SmallVector<uint32_t, 2>> readers; // of a parameter's shard
  SmallVector<unsigned> uses;                        // of buffers
  // Of a copied gather, by its number: its units and their parts of its buffer.
  DenseMap<uint32_t, SmallVector<std::pair<uint32_t, uint32_t>>> copied;
  auto use = [&](uint32_t buffer, uint32_t number) {
    problem.buffers[buffer].until = number;
    ++uses[buffer];
  };
  Block &block = step.getBody().front();
  for (Operation &op : block.without_terminator()) {
    IntegerAttr bucket = getBucket(&op);
    if (!bucket || result.operations.empty() ||
        getBucket(result.operations.back().back()) != bucket) {
      result.operations.emplace_back();
      problem.operations.emplace_back();
    }
    uint32_t number = uint32_t(result.operations.size()) - 1;
    result.operations.back().push_back(&op);
    numbers[&op] = number;
    scheduling::Operation &row = problem.operations.back();
    if (llvm::AddOverflow(row.duration, getCost(&op), row.duration))
      row.duration = std::numeric_limits<int64_t>::max(); // which is refused
    row.stream = row.sequence = uint32_t(getStream(&op));
    for (Value operand : op.getOperands()) {
      if (Operation *producer = operand.getDefiningOp())
        row.after.push_back(numbers.lookup(producer));
      // What gathers a shard comes before the update that overwrites it.
      if (isa<BlockArgument>(operand) && isa<ShardType>(operand.getType())) {
        SmallVector<uint32_t, 2> &before = readers[operand];
        if (!isLaunch(&op))
          llvm::append_range(row.after, before);
        before.push_back(number);
      }
      if (auto found = owners.find(operand); found != owners.end())
        use(found->second, number);
    }

    for (OpResult value : op.getResults())
      if (Value memory = getMemoryOf(value)) {
        // Arguments are in no buffer: they live anyway.
        if (auto found = owners.find(memory); found != owners.end()) {
          uint32_t buffer = found->second;
          owners[value] = buffer;
        }
      } else if (int64_t bytes = getMemoryBytes(value.getType())) {
        owners[value] = uint32_t(problem.buffers.size());
        problem.buffers.push_back({bytes, number, number});
        result.buffers.push_back(value);
        uses.push_back(0);
        auto launch = dyn_cast<CollectiveOpInterface>(op);
        if (!launch || !launch.getCopy())
          continue;
        uint32_t unit = uint32_t(problem.buffers.size()) - 1;
        problem.buffers.push_back(
            {getCommunicationBytes(launch), number, number});
        result.buffers.push_back(value);
        uses.push_back(0);
        if (isa<AsyncUnshardOp>(op))
          copied[number].push_back({unit, unit + 1});
      }
    // The first wait copies all of them out.
    if (auto wait = dyn_cast<AsyncWaitOp>(op))
      if (Operation *launch = wait.getFuture().getDefiningOp()) {
        for (auto [unit, buffer] : copied.lookup(numbers.lookup(launch)))
          problem.buffers[unit].from = problem.buffers[buffer].until = number;
        copied.erase(numbers.lookup(launch));
      }
  }
  for (Value value : block.getTerminator()->getOperands())
    if (auto found = owners.find(value); found != owners.end())
      use(found->second, uint32_t(result.operations.size()) - 1);
  // A buffer has one operation that releases it. If a launch shares one with
  // others, that has to stay the last: the launch does not move.
  for (auto [number, ops] : llvm::enumerate(result.operations))
    for (Operation *op : ops)
      for (Value operand : op->getOperands())
        if (auto found = owners.find(operand);
            isLaunch(op) && found != owners.end() && uses[found->second] > 1)
          problem.operations[number].sequence = scheduling::computeStream;
  return result;
}
