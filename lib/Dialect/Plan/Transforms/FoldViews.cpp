//===- FoldViews.cpp - Views launch nothing -------------------------------===//
//
// Results that share the memory of an operand become windows on it.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "Utils.h"
#include "fsdp/Operators/OpFacts.h"

namespace fsdp::plan {
#define GEN_PASS_DEF_FOLDVIEWS
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;

namespace fsdp::plan {
namespace {

/// Folds the launches of one plan. Types say where a view lies relative to the
/// start of its storage, as PyTorch reports it; so for every buffer we keep
/// where in its root the storage starts.
class Folder {
public:
  LogicalResult run(LaunchOp launch);

  /// Offsets are of no use any more.
  static void dropOffsets(ModuleOp plan) {
    for (auto buffer : plan.getBody().front().getOps<BufferOp>())
      buffer.setType(dropOffset(buffer.getTensorType()));
  }

private:
  using Key = std::tuple<Value, int64_t, int64_t, Type>;

  int64_t getStorage(Value buffer) {
    if (auto found = storages.find(buffer); found != storages.end())
      return found->second;
    // The view of a parameter: it has a storage of its own.
    if (auto view = buffer.getDefiningOp<ViewOp>())
      return view.getOffset();
    RankedTensorType type = getTensorType(buffer);
    return -aten::getOffset(type) * aten::getItemSize(type.getElementType());
  }

  void fold(Value output, Value input);
  LogicalResult checkMetadata(LaunchOp launch);

  DenseMap<Value, int64_t> storages;
  DenseMap<Key, Value> views;
};

} // namespace

/// Replaces `output` by the window on the root of `input` that its type says.
void Folder::fold(Value output, Value input) {
  auto buffer = output.getDefiningOp<BufferOp>();
  RankedTensorType type = buffer.getTensorType();
  int64_t storage = getStorage(input);
  int64_t offset = storage + aten::getOffset(type) *
                                 aten::getItemSize(type.getElementType());
  RankedTensorType windowType = dropOffset(type);
  BufferOp root = getRoot(input);

  Value &window = views[{root.getBuffer(), offset, storage, windowType}];
  if (!window) {
    OpBuilder builder(buffer);
    bool isRoot = offset == 0 && storage == getStorage(root.getBuffer()) &&
                  windowType == dropOffset(root.getTensorType());
    window = isRoot ? root.getBuffer()
                    : ViewOp::create(builder, buffer.getLoc(), root.getBuffer(),
                                     offset, windowType)
                          .getView();
    storages[window] = storage;
  }
  // Windows on the folded buffer are windows on the root.
  for (Operation *user : llvm::make_early_inc_range(buffer->getUsers()))
    if (auto view = dyn_cast<ViewOp>(user)) {
      view.setOffset(offset + view.getOffset());
      view.getRootMutable().assign(root.getBuffer());
    }
  output.replaceAllUsesWith(window);
  buffer.erase();
}

/// `_assert_tensor_metadata(a, size, stride, dtype)`: what is said has to hold.
LogicalResult Folder::checkMetadata(LaunchOp launch) {
  if (launch.getInputs().empty())
    return launch.emitError("expected a tensor, found a constant");
  RankedTensorType type = getTensorType(launch.getInputs().front());
  aten::ArgsAttr args = launch.getArgs();
  auto get = [&](unsigned position, StringRef keyword) -> Attribute {
    if (std::optional<unsigned> index = args.find(keyword))
      return args.getValues()[*index];
    return position < args.getNumPositional() ? args.getValues()[position]
                                              : Attribute();
  };
  auto check = [&](StringRef what, Attribute expected,
                   ArrayRef<int64_t> found) {
    auto list = dyn_cast_or_null<DenseI64ArrayAttr>(expected);
    if (!list || list.asArrayRef() == found)
      return success();
    return LogicalResult(launch.emitError("expected ")
                         << what << " [" << list.asArrayRef() << "], found ["
                         << found << "]");
  };
  auto elementType = dyn_cast_or_null<TypeAttr>(get(3, "dtype"));
  if (elementType && elementType.getValue() != type.getElementType())
    return launch.emitError("expected elements of ")
           << elementType.getValue() << ", found " << type.getElementType();
  if (failed(check("sizes", get(1, "size"), type.getShape())) ||
      failed(check("strides", get(2, "stride"), aten::getStrides(type))))
    return failure();
  launch.erase();
  return success();
}

/// True if nobody writes the buffer while a copy of it is of use.
static bool isNeverOverwritten(BufferOp root) {
  switch (root.getRole()) {
  case BufferRole::Transient:
  case BufferRole::Constant:
  case BufferRole::Input:
  case BufferRole::Result:
    return true;
  default:
    return false;
  }
}

/// True if `output` is a buffer that no command but `launch` writes, and that
/// once.
static bool isWrittenOnce(Value output, LaunchOp launch) {
  auto buffer = output.getDefiningOp<BufferOp>();
  if (!buffer || buffer.getRole() != BufferRole::Transient)
    return false;
  unsigned writes = 0;
  for (Operation *user :
       llvm::SmallPtrSet<Operation *, 8>(llvm::from_range, output.getUsers()))
    if (auto command = dyn_cast<CommandOpInterface>(user))
      writes += llvm::count(command.getWrites(), output);
  return writes == 1 && getRoot(launch.getInputs().front()) != buffer;
}

LogicalResult Folder::run(LaunchOp launch) {
  const operators::OpFacts *facts = launch.getCallee().getFacts();
  if (!facts)
    return success();
  if (facts->name == "_assert_tensor_metadata")
    return checkMetadata(launch);
  if (launch.getInputs().empty() || launch.getOutputs().empty())
    return success();
  Value input = launch.getInputs().front();

  bool isView = facts->isView;
  if (isCopy(launch) && isNeverOverwritten(getRoot(input)) &&
      isWrittenOnce(launch.getOutputs().front(), launch)) {
    // The copy has a storage of its own: it starts where the source does.
    RankedTensorType type = getTensorType(launch.getOutputs().front());
    if (dropOffset(getTensorType(input)) == type && isGapless(type)) {
      Value output = launch.getOutputs().front();
      launch.erase();
      Value source = input;
      if (getStorage(input) != getRootOffset(input)) {
        OpBuilder builder(output.getContext());
        builder.setInsertionPointAfterValue(input);
        source =
            ViewOp::create(builder, output.getLoc(), getRoot(input).getBuffer(),
                           getRootOffset(input), type);
        storages[source] = getRootOffset(input);
      }
      fold(output, source);
      return success();
    }
  }
  if (!isView)
    return success();
  SmallVector<Value> outputs(launch.getOutputs());
  for (Value output : outputs)
    if (!isWrittenOnce(output, launch))
      return launch.emitError(
          "expected each result of a view to be a transient "
          "buffer that nothing else writes");
  launch.erase();
  for (Value output : outputs)
    fold(output, input);
  return success();
}

namespace {
struct FoldViews : impl::FoldViewsBase<FoldViews> {
  void runOnOperation() override {
    ModuleOp plan = getOperation();
    Folder folder;
    for (auto program : plan.getBody().front().getOps<ProgramOp>())
      for (auto launch : llvm::make_early_inc_range(
               program.getBody().front().getOps<LaunchOp>()))
        if (failed(folder.run(launch)))
          return signalPassFailure();
    Folder::dropOffsets(plan);
    tidyBuffers(plan);
  }
};
} // namespace
} // namespace fsdp::plan
