//===- AssignMemory.cpp - Every buffer gets its place ---------------------===//
//
// The persistent region, and behind it the lifetimes of each program packed by
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

/// Places what lives inside `program` only, from `start` on.
static void assignTransient(ProgramOp program, int64_t start,
                            int64_t alignment) {
  Builder builder(program.getContext());
  Accesses accesses(program);
  SmallVector<BufferOp> buffers;
  std::vector<planner::Lifetime> lifetimes;
  auto module = cast<ModuleOp>(program->getParentOp());
  for (auto buffer : module.getBody().front().getOps<BufferOp>()) {
    ArrayRef<Access> ours = accesses.of(buffer);
    if (buffer.isPersistent() || buffer.getOffset() || ours.empty())
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
  }

  planner::MemoryPlan plan = planner::assignMemory(lifetimes, alignment);
  for (auto [buffer, offset] : llvm::zip_equal(buffers, plan.offsets))
    buffer.setOffset(start + offset);
  for (planner::ReuseEdge edge : planner::reuseEdges(lifetimes, plan.offsets)) {
    BufferOp before = buffers[edge.before], after = buffers[edge.after];
    unsigned streams =
        getStreams(accesses.of(before)) | getStreams(accesses.of(after));
    if (!llvm::isPowerOf2_32(streams) && // one stream runs in order anyway
        !llvm::is_contained(after.getAfter(), before.getBuffer()))
      after.getAfterMutable().append(before.getBuffer());
  }
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
    int64_t alignment = plan.getDevice() == "cuda" ? 512 : 64;
    int64_t ends[3] = {}; // of the persistent region of each space
    for (auto buffer : plan.getBody().front().getOps<BufferOp>()) {
      // Only device memory is reused: the little there is elsewhere stays.
      if (!buffer.isPersistent() && buffer.getSpace() == Space::Device)
        continue;
      int64_t &end = ends[static_cast<unsigned>(buffer.getSpace())];
      buffer.setOffset(end);
      end = llvm::alignTo(end + getExtent(buffer.getTensorType()), alignment);
    }
    for (auto program : plan.getBody().front().getOps<ProgramOp>())
      assignTransient(program, ends[0], alignment);
  }
};
} // namespace
} // namespace fsdp::plan
