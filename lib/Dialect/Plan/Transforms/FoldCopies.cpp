//===- FoldCopies.cpp - Write where the result is needed ------------------===//
//
// A buffer that is copied into a window becomes the window.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "Utils.h"
#include "fsdp/Archive/OpFacts.h"

namespace fsdp::plan {
#define GEN_PASS_DEF_FOLDCOPIES
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;

namespace fsdp::plan {

/// The type of the buffer behind `source` once its elements lie where `target`
/// has those of `source`: null if `source` is not the whole of it, or its
/// dimensions are not the buffer's in some order.
static RankedTensorType getTypeIn(Value source, Value target) {
  RankedTensorType type = getRoot(source).getTensorType();
  RankedTensorType view = getTensorType(source), to = getTensorType(target);
  if (getRootOffset(source) != 0 || !isGapless(type) || !isGapless(view) ||
      view.getNumElements() != type.getNumElements() ||
      to.getElementType() != type.getElementType())
    return {};
  if (view == to)
    return type;
  if (view.getShape() != to.getShape())
    return {};
  SmallVector<int64_t> strides = aten::getStrides(type),
                       viewStrides = aten::getStrides(view),
                       toStrides = aten::getStrides(to);
  for (auto [size, stride] : llvm::zip_equal(type.getShape(), strides)) {
    if (size == 1)
      continue;
    unsigned same = 0;
    while (same != viewStrides.size() &&
           (view.getDimSize(same) != size || viewStrides[same] != stride))
      ++same;
    if (same == viewStrides.size())
      return {};
    stride = toStrides[same];
  }
  return aten::getTensorType(type.getShape(), type.getElementType(), strides);
}

/// True if `from` may have any strides: one command writes it, element by
/// element, with the same bits wherever they lie, and `copy` alone reads it.
static bool mayLieAnyhow(CopyOp copy, BufferOp from, const Accesses &accesses) {
  ArrayRef<Access> ours = accesses.of(from);
  if (ours.size() != 2)
    return false;
  auto launch =
      dyn_cast<LaunchOp>(ours[ours[0].command == copy.getOperation()].command);
  if (!launch || launch.getOutputs().size() != 1 ||
      launch.getOutputs().front() != from.getBuffer())
    return false;
  const archive::OpFacts *facts = launch.getCallee().getFacts();
  if (!facts || !facts->isExact)
    return false;
  // add and sub have an alpha after their operands.
  aten::ArgsAttr args = launch.getArgs();
  unsigned alpha = args.find("alpha").value_or(2);
  auto value = alpha < args.getValues().size()
                   ? dyn_cast<IntegerAttr>(args.getValues()[alpha])
                   : IntegerAttr();
  return alpha >= args.getValues().size() || (value && value.getInt() == 1);
}

/// Makes sure that nobody but `copy` touches the window while `from` is alive.
/// Zeros around the window may come before all that.
static bool freeWindow(CopyOp copy, BufferOp from, Accesses &accesses) {
  ArrayRef<Access> ours = accesses.of(from);
  auto [first, last] = std::minmax_element(
      ours.begin(), ours.end(),
      [](const Access &a, const Access &b) { return a.position < b.position; });
  BufferOp to = getRoot(copy.getTarget());
  int64_t begin = getRootOffset(copy.getTarget());
  int64_t end = begin + getExtent(getTensorType(copy.getTarget()));
  SmallVector<Access *> zeros;
  for (Access *access :
       accesses.find(to, begin, end, first->position, last->position)) {
    if (access->command == copy.getOperation())
      continue;
    auto zero = dyn_cast<ZeroOp>(access->command);
    auto writer = cast<CommandOpInterface>(first->command);
    if (!zero || zero.getStream() != writer.getStream() ||
        zero.getRole() != writer.getRole() ||
        to.getRole() != BufferRole::Transient ||
        llvm::any_of(accesses.of(to), [&](const Access &other) {
          return other.position < access->position;
        }))
      return false;
    zeros.push_back(access);
  }
  for (Access *zero : zeros) {
    zero->command->moveBefore(first->command);
    zero->position = first->position;
  }
  return true;
}

/// Makes `from` a part of the buffer behind `window`, of which it has `type`.
static void moveInto(BufferOp from, Value window, RankedTensorType type) {
  for (Operation *user : llvm::make_early_inc_range(from->getUsers()))
    if (auto view = dyn_cast<ViewOp>(user)) {
      view.setOffset(getRootOffset(window) + view.getOffset());
      view.getRootMutable().assign(getRoot(window).getBuffer());
    }
  if (from->use_empty())
    return;
  from.getBuffer().replaceAllUsesWith(
      createView(from.getLoc(), window, 0, type));
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
        RankedTensorType type = getTypeIn(copy.getSource(), copy.getTarget());
        if (from == to || from.getRole() != BufferRole::Transient || !type)
          continue;
        bool isSame = type == from.getTensorType();
        if ((!isSame && !mayLieAnyhow(copy, from, accesses)) ||
            !freeWindow(copy, from, accesses))
          continue;
        Value window = copy.getTarget();
        accesses.move(from, to, getRootOffset(window),
                      isSame ? RankedTensorType() : getTensorType(window),
                      copy);
        copy.erase();
        moveInto(from, window, type);
      }
    }
    tidyBuffers(plan);
  }
};
} // namespace
} // namespace fsdp::plan
