//===- AssignMemory.cpp - Every buffer gets its place ---------------------===//
//
// The persistent region, and after it the lives of each program packed by the
// planner. Lives follow from the events that are there: no place in memory
// makes a stream wait.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "Utils.h"
#include "fsdp/Planner/MemoryAssignment.h"

#include "mlir/IR/Remarks.h"
#include "llvm/Support/MathExtras.h"

namespace fsdp::plan {
#define GEN_PASS_DEF_ASSIGNMEMORY
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;

namespace fsdp::plan {

/// When the buffers of a program are touched, by their roots.
static DenseMap<Operation *, planner::Lifetime> findLives(ProgramOp program) {
  std::vector<planner::Command> commands;
  SmallVector<Operation *> roots;
  DenseMap<Operation *, uint32_t> numbers;
  DenseMap<Value, uint32_t> events;
  for (auto op : program.getBody().front().getOps<CommandOpInterface>()) {
    planner::Command command;
    command.stream = static_cast<uint32_t>(op.getStream());
    command.role = static_cast<uint32_t>(op.getRole());
    command.group = op.getGroup() ? *op.getGroup() + 1 : 0;
    if (auto record = dyn_cast<RecordOp>(*op)) {
      command.kind = planner::CommandKind::Record;
      command.event =
          events.try_emplace(record.getEvent(), events.size()).first->second;
    } else if (auto wait = dyn_cast<WaitOp>(*op)) {
      command.kind = planner::CommandKind::Wait;
      command.event =
          events.try_emplace(wait.getEvent(), events.size()).first->second;
    }
    for (Value operand : op->getOperands()) {
      if (!isa<BufferType>(operand.getType()))
        continue;
      BufferOp root = getRoot(operand);
      auto [number, isNew] = numbers.try_emplace(root, roots.size());
      if (isNew)
        roots.push_back(root);
      command.buffers.push_back(number->second);
    }
    commands.push_back(std::move(command));
  }
  DenseMap<Operation *, planner::Lifetime> lives;
  for (auto [root, life] : llvm::zip_equal(
           roots, planner::findLives(commands, roots.size(),
                                     getMaxEnumValForStream() + 1))) {
    if (cast<BufferOp>(root).isReadAfterProgram())
      life.end = static_cast<int64_t>(commands.size());
    lives[root] = life;
  }
  return lives;
}

/// Places those of `candidates` that live inside `program` only in an arena,
/// from `start` on.
static void
assignTransient(ProgramOp program,
                const DenseMap<Operation *, planner::Lifetime> &lives,
                ArrayRef<BufferOp> candidates, Space space, int64_t start,
                int64_t alignment) {
  SmallVector<BufferOp> buffers;
  std::vector<planner::Lifetime> lifetimes;
  for (BufferOp buffer : candidates) {
    auto life = lives.find(buffer);
    if (life == lives.end() || buffer.getSpace() != space)
      continue;
    int64_t bytes = getExtent(buffer.getTensorType());
    if (bytes == 0) {
      buffer.setOffset(start);
      continue;
    }
    buffers.push_back(buffer);
    lifetimes.push_back({bytes, life->second.begin, life->second.end});
  }
  planner::MemoryPlan plan = planner::assignMemory(lifetimes, alignment);
  for (auto [buffer, offset] : llvm::zip_equal(buffers, plan.offsets))
    buffer.setOffset(start + offset);
  if (space != Space::Device)
    return;
  remark::analysis(program.getLoc(), remark::RemarkOpts::name("memory")
                                         .category("plan-assign-memory")
                                         .function(program.getSymName()))
      << remark::metric("Peak", start + plan.peak)
      << remark::metric("Bound", start + plan.lowerBound);
}

namespace {
struct AssignMemory : impl::AssignMemoryBase<AssignMemory> {
  void runOnOperation() override {
    ModuleOp plan = getOperation();
    int64_t alignment = plan.getDevice() == aten::Device::CUDA ? 512 : 64;
    // What several programs touch has one place, like what is persistent.
    DenseMap<Operation *, ProgramOp> user;
    DenseSet<Operation *> shared;
    for (auto program : plan.getBody().front().getOps<ProgramOp>())
      for (Operation &op : program.getBody().front())
        for (Value operand : op.getOperands())
          if (isa<BufferType>(operand.getType())) {
            Operation *root = getRoot(operand);
            if (user.try_emplace(root, program).first->second != program)
              shared.insert(root);
          }
    constexpr unsigned numSpaces = getMaxEnumValForSpace() + 1;
    int64_t ends[numSpaces] = {}; // of the persistent region of each
    SmallVector<BufferOp> transient;
    for (auto buffer : plan.getBody().front().getOps<BufferOp>()) {
      if (!buffer.isPersistent() && !shared.contains(buffer)) {
        transient.push_back(buffer);
        continue;
      }
      int64_t &end = ends[static_cast<unsigned>(buffer.getSpace())];
      buffer.setOffset(end);
      end = llvm::alignTo(end + getExtent(buffer.getTensorType()), alignment);
    }
    for (auto program : plan.getBody().front().getOps<ProgramOp>()) {
      auto lives = findLives(program);
      for (unsigned space = 0; space != numSpaces; ++space)
        assignTransient(program, lives, transient, Space(space), ends[space],
                        alignment);
    }
  }
};
} // namespace
} // namespace fsdp::plan
