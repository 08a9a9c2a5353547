//===- AssignMemory.cpp - Every buffer gets its place ---------------------===//
//
// The persistent region, and after it the lifetimes of each program packed by
// the planner.
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

/// The streams that touch a buffer, as bits.
static unsigned getStreams(ArrayRef<Access> accesses) {
  unsigned streams = 0;
  for (const Access &access : accesses)
    streams |= 1u << static_cast<unsigned>(access.stream);
  return streams;
}

namespace {
/// The commands of each stream, by position; those of a group have the same.
class StreamOrder {
public:
  StreamOrder(ProgramOp program, const Accesses &accesses)
      : numCommands(accesses.getNumCommands()) {
    for (Operation &op : program.getBody().front()) {
      Stream stream = cast<CommandOpInterface>(op).getStream();
      SmallVector<int64_t> &list = positions[static_cast<unsigned>(stream)];
      int64_t position = accesses.positionOf(&op);
      if (list.empty() || list.back() != position)
        list.push_back(position);
    }
  }

  /// From after the last command of the stream that comes before `position` to
  /// in front of the first one that comes after it.
  std::pair<int64_t, int64_t> getSlack(Stream stream, int64_t position) const {
    ArrayRef<int64_t> list = positions[static_cast<unsigned>(stream)];
    auto here = llvm::lower_bound(list, position);
    auto next = here + (here != list.end() && *here == position);
    return {here == list.begin() ? 0 : *std::prev(here) + 1,
            next == list.end() ? numCommands - 1 : *next - 1};
  }

private:
  SmallVector<int64_t> positions[getMaxEnumValForStream() + 1];
  int64_t numCommands;
};
} // namespace

/// Commands of other streams end later than they are issued, and should start
/// as soon as their stream is free. So a buffer that one of them touches last
/// should not be taken over while the stream has nothing else to do, and a
/// buffer that one of them touches first should not take over what is still in
/// use then: else one stream waits for the other for a place alone.
static planner::Lifetime getWish(planner::Lifetime lifetime,
                                 ArrayRef<Access> accesses,
                                 const StreamOrder &order) {
  const Access &first = accesses.front(), &last = accesses.back();
  if (first.stream != Stream::Compute)
    lifetime.begin = order.getSlack(first.stream, first.position).first;
  if (last.stream != Stream::Compute)
    lifetime.end = std::max(lifetime.end,
                            order.getSlack(last.stream, last.position).second);
  return lifetime;
}

/// Places those of `candidates` that live inside `program` only in an arena,
/// from `start` on.
static void assignTransient(ProgramOp program, const Accesses &accesses,
                            const StreamOrder &order,
                            ArrayRef<BufferOp> candidates, Space space,
                            int64_t start, int64_t alignment) {
  SmallVector<BufferOp> buffers;
  std::vector<planner::Lifetime> lifetimes, wishes;
  for (BufferOp buffer : candidates) {
    ArrayRef<Access> ours = accesses.of(buffer);
    if (ours.empty() || buffer.getSpace() != space)
      continue;
    int64_t bytes = getExtent(buffer.getTensorType());
    if (bytes == 0) {
      buffer.setOffset(start);
      continue;
    }
    int64_t end = buffer.isReadAfterProgram() ? accesses.getNumCommands()
                                              : ours.back().position;
    buffers.push_back(buffer);
    lifetimes.push_back({bytes, ours.front().position, end});
    wishes.push_back(getWish(lifetimes.back(), ours, order));
  }

  // What is stretched is harder to pack: not at the price of a larger arena.
  std::vector<planner::Lifetime> stretched =
      planner::stretch(lifetimes, wishes, alignment);
  planner::MemoryPlan plan = planner::assignMemory(stretched, alignment);
  if (plan.peak - plan.lowerBound > plan.lowerBound / 100) {
    planner::MemoryPlan tight = planner::assignMemory(lifetimes, alignment);
    if (tight.peak < plan.peak) {
      plan = std::move(tight);
      stretched = lifetimes;
    }
  }
  for (auto [buffer, offset] : llvm::zip_equal(buffers, plan.offsets))
    buffer.setOffset(start + offset);
  for (planner::ReuseEdge edge : planner::reuseEdges(stretched, plan.offsets)) {
    BufferOp before = buffers[edge.before], after = buffers[edge.after];
    unsigned streams =
        getStreams(accesses.of(before)) | getStreams(accesses.of(after));
    if (!llvm::isPowerOf2_32(streams) && // one stream runs in order anyway
        !llvm::is_contained(after.getAfter(), before.getBuffer()))
      after.getAfterMutable().append(before.getBuffer());
  }
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
      Accesses accesses(program);
      StreamOrder order(program, accesses);
      for (unsigned space = 0; space != numSpaces; ++space)
        assignTransient(program, accesses, order, transient, Space(space),
                        ends[space], alignment);
    }
  }
};
} // namespace
} // namespace fsdp::plan
