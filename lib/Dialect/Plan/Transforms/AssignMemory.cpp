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

#include <array>

namespace fsdp::plan {
#define GEN_PASS_DEF_ASSIGNMEMORY
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;

namespace fsdp::plan {

using BufferLife = std::pair<BufferOp, planner::Lifetime>;

/// When the buffers of a program are touched.
static SmallVector<BufferLife, 0> findLives(ProgramOp program) {
  std::vector<planner::Command> commands;
  SmallVector<BufferOp, 0> roots;
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
  SmallVector<BufferLife, 0> lives;
  for (auto [root, life] : llvm::zip_equal(
           roots, planner::findLives(commands, roots.size(),
                                     getMaxEnumValForStream() + 1))) {
    if (BufferOp(root).isReadAfterProgram())
      life.end = static_cast<int64_t>(commands.size());
    lives.emplace_back(root, life);
  }
  return lives;
}

/// Places buffers that live inside `program` only in an arena, from `start` on.
static void assignTransient(ProgramOp program, ArrayRef<BufferLife> transient,
                            Space space, int64_t start, int64_t alignment) {
  SmallVector<BufferOp> buffers;
  std::vector<planner::Lifetime> lifetimes;
  for (auto [buffer, life] : transient) {
    int64_t bytes = getExtent(BufferOp(buffer).getTensorType());
    if (bytes == 0) {
      BufferOp(buffer).setOffset(start);
      continue;
    }
    buffers.push_back(buffer);
    lifetimes.push_back({bytes, life.begin, life.end});
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
    constexpr unsigned numSpaces = getMaxEnumValForSpace() + 1;
    struct Use {
      unsigned program;
      planner::Lifetime life;
      bool isShared = false;
    };
    DenseMap<Operation *, Use> uses;
    auto programs = llvm::to_vector(plan.getBody().front().getOps<ProgramOp>());
    for (auto [number, program] : llvm::enumerate(programs))
      for (auto [buffer, life] : findLives(program)) {
        auto [use, isNew] =
            uses.try_emplace(buffer, Use{unsigned(number), life});
        use->second.isShared |= !isNew;
      }
    // What several programs touch has one place, like what is persistent.
    int64_t ends[numSpaces] = {}; // of the persistent region of each
    std::vector<std::array<SmallVector<BufferLife, 0>, numSpaces>> transient(
        programs.size());
    for (auto buffer : plan.getBody().front().getOps<BufferOp>()) {
      auto space = static_cast<unsigned>(buffer.getSpace());
      auto use = uses.find(buffer);
      bool isUsed = use != uses.end();
      if (buffer.isPersistent() || (isUsed && use->second.isShared)) {
        int64_t &end = ends[space];
        buffer.setOffset(end);
        end = llvm::alignTo(end + getExtent(buffer.getTensorType()), alignment);
      } else if (isUsed) {
        transient[use->second.program][space].emplace_back(buffer,
                                                           use->second.life);
      }
    }
    for (auto [program, lives] : llvm::zip_equal(programs, transient))
      for (unsigned space = 0; space != numSpaces; ++space)
        assignTransient(program, lives[space], Space(space), ends[space],
                        alignment);
  }
};
} // namespace
} // namespace fsdp::plan
