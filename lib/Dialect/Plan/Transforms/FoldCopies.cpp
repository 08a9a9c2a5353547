//===- FoldCopies.cpp - Write where the result is needed ------------------===//
//
// A buffer that is copied into a window becomes the window.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "Utils.h"
#include "fsdp/Operators/OpFacts.h"

#include <map>

namespace fsdp::plan {
#define GEN_PASS_DEF_FOLDCOPIES
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;

namespace fsdp::plan {

namespace {

/// What touches one buffer that owns bytes: a flat gradient has thousands of
/// windows, each with a few commands.
class Touches {
public:
  void add(const Access &access, int64_t bytes) {
    earliest = std::min(earliest, access.position);
    if (access.end - access.begin == bytes) {
      whole.push_back(access);
      return;
    }
    longest = std::max(longest, access.end - access.begin);
    parts.emplace(access.begin, access);
  }
  /// What touches bytes [begin, end).
  SmallVector<Access *> find(int64_t begin, int64_t end) {
    SmallVector<Access *> found;
    for (Access &access : whole)
      found.push_back(&access);
    for (auto part = parts.upper_bound(begin - longest);
         part != parts.end() && part->first < end; ++part)
      if (begin < part->second.end)
        found.push_back(&part->second);
    return found;
  }
  SmallVector<Access> getAll() const {
    SmallVector<Access> all(whole.begin(), whole.end());
    for (const auto &[begin, access] : parts)
      all.push_back(access);
    return all;
  }
  bool isEarliest(const Access &access) const {
    return access.position <= earliest;
  }
  void setPosition(Access &access, uint32_t position) {
    access.position = position;
    earliest = std::min(earliest, position);
  }
  /// `copy`, which writes bytes from `begin` on, is gone.
  void erase(Operation *copy, int64_t begin) {
    auto isGone = [&](const Access &access) { return access.command == copy; };
    llvm::erase_if(whole, isGone);
    auto [part, end] = parts.equal_range(begin);
    while (part != end)
      part = isGone(part->second) ? parts.erase(part) : std::next(part);
  }

private:
  SmallVector<Access, 2> whole;         // that touch every byte
  std::multimap<int64_t, Access> parts; // by their first byte
  int64_t longest = 0;                  // in bytes, of the parts
  uint32_t earliest = -1;
};

class CopyFolder {
public:
  explicit CopyFolder(ProgramOp program)
      : program(program), accesses(program) {}
  void run();

private:
  Touches &getTouches(BufferOp root);
  bool mayLieAnyhow(CopyOp copy, BufferOp from);
  bool freeWindow(CopyOp copy, BufferOp from);
  void move(CopyOp copy, BufferOp from, RankedTensorType window);

  ProgramOp program;
  Accesses accesses; // ahead of the first fold
  llvm::DenseMap<Operation *, Touches> touches;
};

} // namespace

Touches &CopyFolder::getTouches(BufferOp root) {
  auto [entry, isNew] = touches.try_emplace(root);
  if (isNew)
    for (const Access &access : accesses.of(root))
      entry->second.add(access, getExtent(root.getTensorType()));
  return entry->second;
}

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
bool CopyFolder::mayLieAnyhow(CopyOp copy, BufferOp from) {
  SmallVector<Access> ours = getTouches(from).getAll();
  if (ours.size() != 2)
    return false;
  auto launch =
      dyn_cast<LaunchOp>(ours[ours[0].command == copy.getOperation()].command);
  if (!launch || launch.getOutputs().size() != 1 ||
      launch.getOutputs().front() != from.getBuffer())
    return false;
  const operators::OpFacts *facts = launch.getCallee().getFacts();
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
bool CopyFolder::freeWindow(CopyOp copy, BufferOp from) {
  SmallVector<Access> ours = getTouches(from).getAll();
  auto [first, last] = std::minmax_element(
      ours.begin(), ours.end(),
      [](const Access &a, const Access &b) { return a.position < b.position; });
  BufferOp to = getRoot(copy.getTarget());
  Touches &others = getTouches(to);
  int64_t begin = getRootOffset(copy.getTarget());
  int64_t end = begin + getExtent(getTensorType(copy.getTarget()));
  SmallVector<Access *> zeros;
  for (Access *access : others.find(begin, end)) {
    if (access->command == copy.getOperation() ||
        access->position < first->position || access->position > last->position)
      continue;
    auto zero = dyn_cast<ZeroOp>(access->command);
    auto writer = cast<CommandOpInterface>(first->command);
    if (!zero || zero.getStream() != writer.getStream() ||
        zero.getRole() != writer.getRole() ||
        to.getRole() != BufferRole::Transient || !others.isEarliest(*access))
      return false;
    zeros.push_back(access);
  }
  for (Access *zero : zeros) {
    zero->command->moveBefore(first->command);
    others.setPosition(*zero, first->position);
  }
  return true;
}

/// What touches `from` touches the target of the copy: all of `window` there,
/// if it is not null.
void CopyFolder::move(CopyOp copy, BufferOp from, RankedTensorType window) {
  BufferOp to = getRoot(copy.getTarget());
  int64_t offset = getRootOffset(copy.getTarget());
  SmallVector<Access> moved = getTouches(from).getAll();
  touches.erase(from);
  Touches &target = getTouches(to);
  for (Access access : moved) {
    if (access.command == copy.getOperation())
      continue;
    access.begin = window ? offset : access.begin + offset;
    access.end = window ? offset + getExtent(window) : access.end + offset;
    target.add(access, getExtent(to.getTensorType()));
  }
  target.erase(copy, offset);
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

void CopyFolder::run() {
  for (auto copy :
       llvm::make_early_inc_range(program.getBody().front().getOps<CopyOp>())) {
    BufferOp from = getRoot(copy.getSource());
    BufferOp to = getRoot(copy.getTarget());
    RankedTensorType type = getTypeIn(copy.getSource(), copy.getTarget());
    if (from == to || from.getSpace() != to.getSpace() ||
        from.getRole() != BufferRole::Transient || !type)
      continue;
    bool isSame = type == from.getTensorType();
    if ((!isSame && !mayLieAnyhow(copy, from)) || !freeWindow(copy, from))
      continue;
    Value window = copy.getTarget();
    move(copy, from, isSame ? RankedTensorType() : getTensorType(window));
    copy.erase();
    moveInto(from, window, type);
  }
}

namespace {
struct FoldCopies : impl::FoldCopiesBase<FoldCopies> {
  void runOnOperation() override {
    ModuleOp plan = getOperation();
    for (auto program : plan.getBody().front().getOps<ProgramOp>())
      CopyFolder(program).run();
    tidyBuffers(plan);
  }
};
} // namespace
} // namespace fsdp::plan
