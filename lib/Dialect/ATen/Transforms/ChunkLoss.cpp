//===- ChunkLoss.cpp - A loss over a vocabulary, some rows at a time ------===//
//
// A cross-entropy is a sum over rows, and so are the gradients of the weight
// and the bias of its projection: each chunk of rows has a part of these sums,
// and its own rows of the gradient of the hidden states.
//
//===----------------------------------------------------------------------===//

#include "VocabularyLoss.h"
#include "fsdp/Dialect/ATen/Transforms/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Remarks.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace fsdp::aten;
using namespace fsdp::aten::detail;

namespace fsdp::aten {
#define GEN_PASS_DEF_CHUNKLOSSPASS
#include "fsdp/Dialect/ATen/Transforms/Passes.h.inc"
} // namespace fsdp::aten

/// The reduction of `nll_loss_forward`, as ATen numbers it.
static constexpr int64_t meanReduction = 1, sumReduction = 2;

static RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

/// `type` with other sizes, dense.
static RankedTensorType resize(RankedTensorType type, ArrayRef<int64_t> sizes) {
  return RankedTensorType::get(sizes, type.getElementType());
}

/// What has to move ahead of `place` for `values` to be known there, in order;
/// nothing if some of it depends on `place`, or must stay where it is.
static std::optional<SmallVector<Operation *>> getLate(ValueRange values,
                                                       Operation *place) {
  llvm::SetVector<Operation *> late;
  auto need = [&](Value value) {
    Operation *op = value.getDefiningOp();
    if (op && !op->isBeforeInBlock(place))
      late.insert(op);
  };
  llvm::for_each(values, need);
  for (size_t i = 0; i < late.size(); ++i) {
    if (late[i] == place || !isa<CallOp>(late[i]) ||
        !isMemoryEffectFree(late[i]))
      return std::nullopt;
    llvm::for_each(late[i]->getOperands(), need);
  }
  SmallVector<Operation *> sorted = late.takeVector();
  llvm::sort(sorted,
             [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  return sorted;
}

namespace {
/// Writes the chunks of one loss, ahead of it.
class Chunker {
public:
  explicit Chunker(VocabularyLoss &found)
      : found(found), builder(found.loss),
        isMean(
            mlir::cast<IntegerAttr>(mlir::cast<Attribute>(found.loss.getArg(3)))
                .getInt() == meanReduction),
        totals(found.sums.size()), parts(found.products.size()) {}

  void run(int64_t size);

private:
  Value call(CallOp like, StringRef name, ArrayRef<OpFoldResult> args,
             Type type, StringRef keyword = "");
  Value repeat(CallOp like, ValueRange inputs, RankedTensorType type);
  Value takeRows(Value value, int64_t begin, int64_t count);
  Value view(Value value, ArrayRef<int64_t> sizes);
  Value makeDense(Value value);
  Value getHiddenOfLoss();
  Value countRows();
  void addChunk(int64_t begin, int64_t count);
  Value cast(Value value, ArrayRef<CallOp> casts);
  Value getGradient(Value logSoftmax, Value target);
  void addSum(unsigned index, Value gradient, Value rows);
  Value joinRows(unsigned index);
  void replace();

  Attribute number(int64_t value) { return builder.getI64IntegerAttr(value); }

  VocabularyLoss &found;
  OpBuilder builder;
  bool isMean;
  Value hidden;                          ///< [n, H], dense
  Value numRows;                         ///< that are not ignored
  Value lossSum;                         ///< of the chunks so far
  std::string suffix;                    ///< of the names of this chunk
  SmallVector<Value> totals;             ///< of `found.sums`
  SmallVector<SmallVector<Value>> parts; ///< of `found.products`
};
} // namespace

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// A call in the place of `like`, in its phase: a forward alone still computes
/// the loss. Each chunk has one, and names stay unique: times are measured by
/// name.
Value Chunker::call(CallOp like, StringRef name, ArrayRef<OpFoldResult> args,
                    Type type, StringRef keyword) {
  MLIRContext *context = builder.getContext();
  SmallVector<Attribute> values;
  SmallVector<Value> inputs;
  for (OpFoldResult arg : args)
    if (auto value = dyn_cast<Value>(arg)) {
      values.push_back(OperandAttr::get(context));
      inputs.push_back(value);
    } else {
      values.push_back(mlir::cast<Attribute>(arg));
    }
  SmallVector<StringAttr> keywords;
  if (!keyword.empty())
    keywords.push_back(builder.getStringAttr(keyword));
  SmallVector<Type> types = {type};
  if (name == "nll_loss_forward")
    types.push_back(type);
  Location loc = like.getLoc();
  if (auto named = dyn_cast<NameLoc>(loc))
    loc = NameLoc::get(builder.getStringAttr(named.getName().strref() + suffix),
                       named.getChildLoc());
  return CallOp::create(builder, loc, types, name,
                        ArgsAttr::get(context, values, keywords), inputs,
                        like.getPhaseAttr(), like.getScopeAttr())
      .getResult(0);
}

/// `like` again, of other operands.
Value Chunker::repeat(CallOp like, ValueRange inputs, RankedTensorType type) {
  SmallVector<OpFoldResult> args;
  for (unsigned i = 0, next = 0; i != like.getNumArgs(); ++i)
    if (isa<Value>(like.getArg(i)))
      args.push_back(inputs[next++]);
    else
      args.push_back(like.getArg(i));
  Value result = call(like, like.getCallee().getName(), args, type);
  auto made = result.getDefiningOp<CallOp>();
  made.setArgsAttr(like.getArgs());
  return result;
}

Value Chunker::takeRows(Value value, int64_t begin, int64_t count) {
  RankedTensorType type = typeOf(value);
  SmallVector<int64_t> sizes(type.getShape()), strides = getStrides(type);
  sizes[0] = count;
  return call(found.loss, "slice.Tensor",
              {value, number(0), number(begin), number(begin + count)},
              getTensorType(sizes, type.getElementType(), strides,
                            getOffset(type) + begin * strides[0]));
}

//===----------------------------------------------------------------------===//
// What all chunks share
//===----------------------------------------------------------------------===//

static SmallVector<int64_t> append(ArrayRef<int64_t> sizes, int64_t last) {
  SmallVector<int64_t> result(sizes);
  result.push_back(last);
  return result;
}

/// `value` seen with other sizes.
Value Chunker::view(Value value, ArrayRef<int64_t> sizes) {
  if (typeOf(value).getShape() == sizes)
    return value;
  return call(found.projection, "view",
              {value, builder.getDenseI64ArrayAttr(sizes)},
              resize(typeOf(value), sizes));
}

Value Chunker::makeDense(Value value) {
  auto format =
      MemoryFormatAttr::get(builder.getContext(), MemoryFormat::Contiguous);
  return isDense(typeOf(value))
             ? value
             : call(found.projection, "clone", {value, format},
                    resize(typeOf(value), typeOf(value).getShape()),
                    "memory_format");
}

/// The rows of the hidden states that the loss is of: a slice of the logits is
/// one of the hidden states.
Value Chunker::getHiddenOfLoss() {
  Value value = makeDense(found.getHidden());
  int64_t width = typeOf(value).getDimSize(1);
  for (const RowSlice &slice : found.slices) {
    value = view(value, append(slice.whole, width));
    SmallVector<int64_t> strides = getStrides(typeOf(value));
    int64_t offset = slice.first * strides[slice.dim];
    strides[slice.dim] *= slice.step;
    value = makeDense(
        call(found.projection, "slice.Tensor",
             {value, number(slice.dim), number(slice.first),
              number(slice.getEnd()), number(slice.step)},
             getTensorType(append(slice.part, width),
                           typeOf(value).getElementType(), strides, offset)));
  }
  return view(value, {typeOf(found.loss.getInputs()[0]).getDimSize(0), width});
}

/// As `nll_loss_forward` counts them, for all chunks.
Value Chunker::countRows() {
  Value target = found.loss.getInputs()[1];
  RankedTensorType type = typeOf(found.loss.getResult(1));
  Value counts = call(
      found.loss, "ne.Scalar", {target, found.loss.getArg(4)},
      RankedTensorType::get(typeOf(target).getShape(), builder.getI1Type()));
  return call(found.loss, "sum.dim_IntList",
              {counts, builder.getDenseI64ArrayAttr({0}),
               builder.getBoolAttr(false),
               TypeAttr::get(type.getElementType())},
              type, "dtype");
}

//===----------------------------------------------------------------------===//
// Chunks
//===----------------------------------------------------------------------===//

/// `value` through the casts of the whole.
Value Chunker::cast(Value value, ArrayRef<CallOp> casts) {
  for (CallOp like : casts)
    value = repeat(
        like, value,
        RankedTensorType::get(typeOf(value).getShape(),
                              typeOf(like.getResult(0)).getElementType()));
  return value;
}

/// The gradient of these rows of the logits.
Value Chunker::getGradient(Value logSoftmax, Value target) {
  CallOp loss = found.lossBackward, rows = found.logSoftmaxBackward;
  Value gradient =
      repeat(loss, {loss.getInputs()[0], logSoftmax, target, numRows},
             typeOf(logSoftmax));
  gradient = repeat(rows, {gradient, logSoftmax}, typeOf(logSoftmax));
  return cast(gradient, found.backwardCasts);
}

/// Adds what these rows have of a sum over rows. `addmm` rounds once.
void Chunker::addSum(unsigned index, Value gradient, Value rows) {
  CallOp like = found.sums[index];
  Value &total = totals[index];
  RankedTensorType type = typeOf(like.getResult(0));
  if (like.getCallee().getName() == "mm") {
    auto transpose = [&](Value value) -> Value {
      RankedTensorType type = typeOf(value);
      SmallVector<int64_t> strides = getStrides(type);
      return call(like, "t", {value},
                  getTensorType({type.getDimSize(1), type.getDimSize(0)},
                                type.getElementType(), {strides[1], strides[0]},
                                getOffset(type)));
    };
    bool isOfTransposed = like.getInputs()[1] == found.getHidden();
    Value lhs = transpose(isOfTransposed ? gradient : rows);
    Value rhs = isOfTransposed ? rows : gradient;
    total = total ? call(like, "addmm", {total, lhs, rhs}, type)
                  : call(like, "mm", {lhs, rhs}, type);
  } else {
    Value part = repeat(like, gradient, type);
    total = total ? call(like, "add.Tensor", {total, part}, type) : part;
  }
}

void Chunker::addChunk(int64_t begin, int64_t count) {
  CallOp projection = found.projection, loss = found.loss;
  Value rows = takeRows(hidden, begin, count);
  Value target = takeRows(loss.getInputs()[1], begin, count);
  SmallVector<Value> inputs(projection.getInputs());
  inputs[inputs.size() - 2] = rows;
  auto resized = [&](Value value) {
    return resize(typeOf(value), {count, typeOf(value).getDimSize(1)});
  };
  Value logits =
      cast(repeat(projection, inputs, resized(projection.getResult(0))),
           found.casts);
  Value logSoftmax =
      repeat(found.logSoftmax, logits, resized(found.logSoftmax.getResult(0)));
  auto type = typeOf(loss.getResult(0));
  Value part = call(loss, loss.getCallee().getName(),
                    {logSoftmax, target, loss.getArg(2), number(sumReduction),
                     loss.getArg(4)},
                    type);
  lossSum = lossSum ? call(loss, "add.Tensor", {lossSum, part}, type) : part;
  if (!found.hasBackward())
    return;
  Value gradient = getGradient(logSoftmax, target);
  for (auto [like, own] : llvm::zip_equal(found.products, parts))
    own.push_back(repeat(like, {gradient, like.getInputs()[1]},
                         resized(like.getResult(0))));
  for (unsigned i = 0; i != found.sums.size(); ++i)
    addSum(i, gradient, rows);
}

//===----------------------------------------------------------------------===//
// The whole
//===----------------------------------------------------------------------===//

/// The rows of all chunks, among those that the loss is not of.
Value Chunker::joinRows(unsigned index) {
  CallOp like = found.products[index];
  RankedTensorType type = typeOf(like.getResult(0));
  int64_t width = type.getDimSize(1);
  MLIRContext *context = builder.getContext();
  int64_t count = typeOf(hidden).getDimSize(0);
  SmallVector<Attribute> places(parts[index].size(), OperandAttr::get(context));
  Value value =
      CallOp::create(
          builder, like.getLoc(), TypeRange(resize(type, {count, width})),
          "cat", ArgsAttr::get(context, ArgsAttr::getList(context, places), {}),
          parts[index], like.getPhaseAttr(), like.getScopeAttr())
          .getResult(0);
  for (const RowSlice &slice : found.backwardSlices) {
    SmallVector<int64_t> sizes = append(slice.whole, width);
    value = view(value, append(slice.part, width));
    value =
        call(like, "slice_backward",
             {value, builder.getDenseI64ArrayAttr(sizes), number(slice.dim),
              number(slice.first), number(slice.getEnd()), number(slice.step)},
             resize(type, sizes));
  }
  return view(value, type.getShape());
}

void Chunker::replace() {
  CallOp loss = found.loss;
  if (isMean)
    lossSum = call(loss, "div.Tensor", {lossSum, numRows}, lossSum.getType());
  loss.getResult(0).replaceAllUsesWith(lossSum);
  for (unsigned i = 0; i != found.products.size(); ++i)
    found.products[i].getResult(0).replaceAllUsesWith(joinRows(i));
  for (auto [like, total] : llvm::zip_equal(found.sums, totals))
    like.getResult(0).replaceAllUsesWith(total);
  SmallVector<Operation *> calls = found.calls.takeVector();
  llvm::sort(calls,
             [](Operation *a, Operation *b) { return b->isBeforeInBlock(a); });
  for (Operation *call : calls)
    if (call->use_empty())
      call->erase();
}

void Chunker::run(int64_t size) {
  hidden = getHiddenOfLoss();
  int64_t count = typeOf(hidden).getDimSize(0);
  if (isMean || found.hasBackward())
    numRows = countRows();
  for (int64_t begin = 0; begin < count; begin += size) {
    suffix = "_chunk_" + std::to_string(begin / size);
    addChunk(begin, std::min(size, count - begin));
  }
  suffix.clear();
  replace();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
struct ChunkLossPass : fsdp::aten::impl::ChunkLossPassBase<ChunkLossPass> {
  using ChunkLossPassBase::ChunkLossPassBase;

  void runOnOperation() override;

private:
  void chunk(func::FuncOp program);
  bool chunk(CallOp loss, std::string &reason);
};
} // namespace

bool ChunkLossPass::chunk(CallOp loss, std::string &reason) {
  std::optional<VocabularyLoss> found = findVocabularyLoss(loss, reason);
  if (!found)
    return false;
  SmallVector<Value> needed;
  if (found->hasBackward())
    needed.push_back(found->lossBackward.getInputs()[0]);
  for (CallOp product : found->products)
    needed.push_back(product.getInputs()[1]);
  std::optional<SmallVector<Operation *>> late = getLate(needed, loss);
  if (!late) {
    reason = "the gradient of the loss depends on the loss";
    return false;
  }
  for (Operation *op : *late)
    op->moveBefore(loss);
  int64_t rows = typeOf(loss.getInputs()[0]).getDimSize(0);
  int64_t size = llvm::divideCeil(rows, std::min(int64_t(chunks), rows));
  remark::passed(loss.getLoc(),
                 remark::RemarkOpts::name("chunks").category(getArgument()))
      << remark::metric("Rows", rows)
      << remark::metric("Chunks", llvm::divideCeil(rows, size));
  Chunker(*found).run(size);
  return true;
}

void ChunkLossPass::chunk(func::FuncOp program) {
  SmallVector<CallOp> losses;
  for (auto call : program.getBody().front().getOps<CallOp>())
    if (call.getCallee().getName() == "nll_loss_forward")
      losses.push_back(call);
  auto options = remark::RemarkOpts::name("whole")
                     .category(getArgument())
                     .function(program.getSymName());
  if (losses.empty())
    remark::missed(program.getLoc(), options)
        << remark::reason("there is no cross-entropy over rows");
  for (CallOp loss : losses) {
    std::string reason;
    if (!chunk(loss, reason))
      remark::missed(loss.getLoc(), options) << remark::reason("{0}", reason);
  }
}

void ChunkLossPass::runOnOperation() {
  if (chunks < 1) {
    getOperation().emitError("expected at least 1 chunk, got ")
        << int64_t(chunks);
    return signalPassFailure();
  }
  if (chunks > 1)
    for (auto program : getOperation().getOps<func::FuncOp>())
      if (program.getBody().hasOneBlock())
        chunk(program);
}
