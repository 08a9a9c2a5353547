//===- FoldCopies.cpp - Write where the result is needed ------------------===//
//
// A buffer that is copied into a window becomes the window.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "Utils.h"

#include <limits>

namespace fsdp::plan {
#define GEN_PASS_DEF_FOLDCOPIES
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;

namespace fsdp::plan {

/// True if `source` is the whole of its buffer, laid out as `target` is.
static bool isSameLayout(Value source, Value target) {
  RankedTensorType type = getTensorType(source);
  return type == getTensorType(target) && getRootOffset(source) == 0 &&
         isGapless(type) &&
         getExtent(type) == getExtent(getRoot(source).getTensorType());
}

/// True if nobody but `copy` touches the window while `from` is alive.
static bool isWindowFree(CopyOp copy, BufferOp from, const Accesses &accesses) {
  ArrayRef<Access> ours = accesses.of(from);
  uint32_t first = std::numeric_limits<uint32_t>::max(), last = 0;
  for (const Access &access : ours) {
    first = std::min(first, access.position);
    last = std::max(last, access.position);
  }
  uint32_t self = accesses.positionOf(copy);
  int64_t begin = getRootOffset(copy.getTarget());
  int64_t end = begin + getExtent(getTensorType(copy.getTarget()));
  return llvm::none_of(
      accesses.of(getRoot(copy.getTarget())), [&](const Access &access) {
        return access.position != self && access.begin < end &&
               begin < access.end && access.position >= first &&
               access.position <= last;
      });
}

/// Makes `from` a part of the buffer behind `window`.
static void moveInto(BufferOp from, Value window) {
  for (Operation *user : llvm::make_early_inc_range(from->getUsers()))
    if (auto view = dyn_cast<ViewOp>(user)) {
      view.setOffset(getRootOffset(window) + view.getOffset());
      view.getRootMutable().assign(getRoot(window).getBuffer());
    }
  if (from->use_empty())
    return;
  from.getBuffer().replaceAllUsesWith(
      createView(from.getLoc(), window, 0, from.getTensorType()));
}

namespace {
struct FoldCopies : impl::FoldCopiesBase<FoldCopies> {
  void runOnOperation() override {
    ModuleOp plan = getOperation();
    for (auto program : plan.getBody().front().getOps<ProgramOp>()) {
      Accesses accesses(program);
      for (auto copy : llvm::make_early_inc_range(
               program.getBody().front().getOps<CopyOp>())) {
        BufferOp from = getRoot(copy.getSource());
        BufferOp to = getRoot(copy.getTarget());
        if (from == to || from.getRole() != BufferRole::Transient ||
            !isSameLayout(copy.getSource(), copy.getTarget()) ||
            !isWindowFree(copy, from, accesses))
          continue;
        Value window = copy.getTarget();
        accesses.move(from, to, getRootOffset(window));
        copy.erase();
        moveInto(from, window);
      }
    }
    tidyBuffers(plan);
  }
};
} // namespace
} // namespace fsdp::plan
