//===- VocabularyLoss.cpp - Find a cross-entropy over a vocabulary --------===//
//
// Up from the loss to the projection, and down through the backward: whatever
// else reads the logits or their gradients, or is shaped otherwise, is a reason
// to leave them alone.
//
//===----------------------------------------------------------------------===//

#include "VocabularyLoss.h"

#include "llvm/ADT/STLExtras.h"

#include <numeric>

using namespace mlir;
using namespace fsdp::aten;
using namespace fsdp::aten::detail;

Value VocabularyLoss::getHidden() {
  return cast<Value>(projection.getArg(projection.getNumArgs() - 2));
}

/// What f32 can count.
static constexpr int64_t mostRows = int64_t(1) << 24;

static StringRef getName(CallOp call) { return call.getCallee().getName(); }

static bool isCall(Operation *op, StringRef name) {
  auto call = dyn_cast_or_null<CallOp>(op);
  return call && getName(call) == name;
}

static std::optional<int64_t> getInteger(OpFoldResult argument) {
  auto attr = dyn_cast_if_present<IntegerAttr>(
      dyn_cast_if_present<Attribute>(argument));
  return attr ? std::optional(attr.getInt()) : std::nullopt;
}

/// Whether all arguments of `call` are in their places, `count` of them
/// tensors.
static bool hasOperands(CallOp call, unsigned count) {
  return call.getInputs().size() == count &&
         call.getArgs().getKeywords().empty() &&
         llvm::all_of(call.getInputs().getTypes(),
                      llvm::IsaPred<RankedTensorType>);
}

static bool isMatrix(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() == 2 && hasKnownLayout(type);
}

/// The sizes ahead of the last one.
static ArrayRef<int64_t> getRows(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape().drop_back();
}

namespace {
class Matcher {
public:
  Matcher(CallOp loss, std::string &reason) : reason(reason) {
    found.loss = loss;
  }

  std::optional<VocabularyLoss> find() {
    if (findLogSoftmax() && findLogits() && findBackward() &&
        findGradientOfLogits() && findUses() && areSameRows())
      return std::move(found);
    return std::nullopt;
  }

private:
  bool findLogSoftmax();
  bool findLogits();
  bool findBackward();
  bool isBackwardOfLoss();
  bool findGradientOfLogits();
  bool findUses();
  bool findUse(CallOp call, bool isFirst);
  bool findTransposed(CallOp transpose);
  bool areSameRows();

  bool miss(const Twine &why) {
    reason = why.str();
    return false;
  }
  bool isOfVocabulary(Value value);
  CallOp getOnlyUser(Value value, StringRef what);
  bool addStep(CallOp call, Value whole, Value part, StringRef slice,
               SmallVectorImpl<RowSlice> &slices,
               SmallVectorImpl<CallOp> &casts);

  VocabularyLoss found;
  std::string &reason;
  int64_t vocabulary = 0;
  Value gradient; ///< of the logits
};
} // namespace

bool Matcher::findLogSoftmax() {
  CallOp loss = found.loss;
  if (!hasOperands(loss, 2) || loss.getNumArgs() != 5)
    return miss("classes have weights");
  std::optional<int64_t> reduction = getInteger(loss.getArg(3));
  if ((reduction != 1 && reduction != 2) || !getInteger(loss.getArg(4)))
    return miss("the loss is neither a mean nor a sum");
  auto type = cast<RankedTensorType>(loss.getInputs()[0].getType());
  auto target = cast<RankedTensorType>(loss.getInputs()[1].getType());
  if (!type.hasStaticShape() || !hasKnownLayout(target) ||
      type.getRank() != 2 || target.getRank() != 1 ||
      target.getDimSize(0) != type.getDimSize(0) || type.getDimSize(0) == 0)
    return miss("the loss is not of rows of a known number");
  Type element = type.getElementType();
  if (!element.isF32() && !element.isF64())
    return miss("the log-softmax is not in f32 or f64");
  Operation *op = loss.getInputs()[0].getDefiningOp();
  if (!isCall(op, "_log_softmax") || !hasOperands(cast<CallOp>(op), 1))
    return miss("the loss is not of a log-softmax");
  found.logSoftmax = cast<CallOp>(op);
  std::optional<int64_t> dim = getInteger(found.logSoftmax.getArg(1));
  Value input = found.logSoftmax.getInputs().front();
  if ((dim != 1 && dim != -1) || !isDense(type) || input.getType() != type)
    return miss("the log-softmax is not of dense rows of its own type");
  vocabulary = type.getDimSize(1);
  found.calls.insert(loss);
  found.calls.insert(op);
  return true;
}

bool Matcher::isOfVocabulary(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() > 1 && type.hasStaticShape() &&
         type.getShape().back() == vocabulary &&
         isa<FloatType>(type.getElementType());
}

/// What reads `value`, beside assertions about it.
CallOp Matcher::getOnlyUser(Value value, StringRef what) {
  CallOp only;
  for (Operation *user : value.getUsers()) {
    if (isCall(user, "_assert_tensor_metadata")) {
      found.calls.insert(user);
      continue;
    }
    auto call = dyn_cast<CallOp>(user);
    if (!call || only || call->getBlock() != found.loss->getBlock()) {
      miss(user->hasTrait<OpTrait::IsTerminator>()
               ? what + " are also an output"
               : what + " have another use");
      return {};
    }
    only = call;
  }
  if (!only)
    miss(what + " have no use");
  return only;
}

/// The slice of `call`, whose arguments about it begin at `firstArg`; nothing
/// if it is not one of rows by numbers.
static std::optional<RowSlice> readSlice(CallOp call, unsigned firstArg,
                                         Value whole, Value part) {
  if (!hasOperands(call, 1))
    return std::nullopt;
  auto number = [&](unsigned index, int64_t byDefault) {
    bool isThere =
        firstArg + index < call.getNumArgs() &&
        !isa<UnitAttr>(cast<Attribute>(call.getArg(firstArg + index)));
    return isThere ? getInteger(call.getArg(firstArg + index))
                   : std::optional(byDefault);
  };
  std::optional<int64_t> dim = number(0, 0), first = number(1, 0),
                         step = number(3, 1);
  int64_t rank = getRows(whole).size();
  if (!dim || !first || !step || *step < 1 ||
      int64_t(getRows(part).size()) != rank)
    return std::nullopt;
  RowSlice slice{llvm::to_vector(getRows(whole)),
                 llvm::to_vector(getRows(part)),
                 *dim < 0 ? *dim + rank + 1 : *dim, 0, *step};
  if (slice.dim < 0 || slice.dim >= rank)
    return std::nullopt;
  int64_t size = slice.whole[slice.dim];
  if (slice.part[slice.dim] == 1)
    slice.step = 1;
  slice.first =
      std::clamp(*first < 0 ? *first + size : *first, int64_t(0), size);
  return slice;
}

/// `call` makes one of `whole` and `part` of the other: a cast, another view of
/// the same rows, or a slice of them.
bool Matcher::addStep(CallOp call, Value whole, Value part, StringRef slice,
                      SmallVectorImpl<RowSlice> &slices,
                      SmallVectorImpl<CallOp> &casts) {
  StringRef name = getName(call);
  if (call.getInputs().size() != 1 || !isOfVocabulary(whole) ||
      !isOfVocabulary(part))
    return miss("'" + name + "' is between the projection and the loss");
  found.calls.insert(call);
  if (name == "_to_copy") {
    casts.push_back(call);
    return true;
  }
  if (name == slice) {
    auto read = readSlice(call, name == "slice_backward" ? 2 : 1, whole, part);
    if (!read)
      return miss("a slice of the logits is not one of rows");
    slices.push_back(std::move(*read));
    return true;
  }
  if (llvm::is_contained(
          {"view", "_unsafe_view", "reshape", "alias", "detach", "clone"},
          name))
    return true;
  return miss("'" + name + "' is between the projection and the loss");
}

bool Matcher::findLogits() {
  Value value = found.logSoftmax.getInputs().front();
  for (;;) {
    if (!getOnlyUser(value, "the logits"))
      return false;
    auto call = value.getDefiningOp<CallOp>();
    if (!call)
      return miss("the logits are not computed");
    if (getName(call) == "mm" || getName(call) == "addmm") {
      found.projection = call;
      break;
    }
    if (call.getInputs().empty() ||
        !addStep(call, call.getInputs().front(), value, "slice.Tensor",
                 found.slices, found.casts))
      return miss("'" + getName(call) +
                  "' is between the projection and the loss");
    value = call.getInputs().front();
  }
  std::reverse(found.slices.begin(), found.slices.end());
  std::reverse(found.casts.begin(), found.casts.end());
  found.calls.insert(found.projection);
  bool hasBias = getName(found.projection) == "addmm";
  if (!hasOperands(found.projection, 2 + hasBias))
    return miss("the projection is scaled");
  OperandRange matrices = found.projection.getInputs().take_back(2);
  if (!isOfVocabulary(value) || !isMatrix(value) ||
      !llvm::all_of(matrices, isMatrix))
    return miss("the sizes of the projection are not known");
  auto bias =
      cast<RankedTensorType>(found.projection.getInputs().front().getType());
  return !hasBias || bias.getRank() == 1 ||
         miss("the bias of the projection is not one number for each column");
}

/// The calls that read the log-softmax, also by other names.
bool Matcher::findBackward() {
  SmallVector<Value> names = {found.logSoftmax.getResult(0)};
  while (!names.empty()) {
    Value name = names.pop_back_val();
    for (OpOperand &use : name.getUses()) {
      Operation *user = use.getOwner();
      auto call = dyn_cast<CallOp>(user);
      if (user == found.loss)
        continue;
      if (call && call->getBlock() != found.loss->getBlock())
        return miss("the log-softmax is used in a region");
      found.calls.insert(user);
      if (isCall(user, "detach") || isCall(user, "alias"))
        names.push_back(user->getResult(0));
      else if (isCall(user, "nll_loss_backward") && !found.lossBackward &&
               use.getOperandNumber() == 1)
        found.lossBackward = call;
      else if (isCall(user, "_log_softmax_backward_data") &&
               !found.logSoftmaxBackward && use.getOperandNumber() == 1)
        found.logSoftmaxBackward = call;
      else if (!isCall(user, "_assert_tensor_metadata"))
        return miss(user->hasTrait<OpTrait::IsTerminator>()
                        ? "the log-softmax is also an output"
                        : "the log-softmax has another use");
    }
  }
  if (!found.lossBackward && !found.logSoftmaxBackward)
    return found.loss.getResult(1).use_empty() ||
           miss("the number of rows has another use");
  return isBackwardOfLoss() || miss("the backward is not that of the loss");
}

bool Matcher::isBackwardOfLoss() {
  CallOp loss = found.loss, backward = found.lossBackward,
         rows = found.logSoftmaxBackward;
  if (!backward || !rows || !hasOperands(backward, 4) || !hasOperands(rows, 2))
    return false;
  return backward.getInputs()[2] == loss.getInputs()[1] &&
         backward.getInputs()[3] == loss.getResult(1) &&
         backward.getArg(4) == loss.getArg(3) &&
         backward.getArg(5) == loss.getArg(4) &&
         loss.getResult(1).hasOneUse() &&
         rows.getInputs()[0] == backward.getResult(0) &&
         backward->hasOneUse() &&
         rows.getArg(2) == found.logSoftmax.getArg(1) &&
         rows.getResult(0).getType() == found.logSoftmax.getResult(0).getType();
}

/// Casts and other views of the gradient, to that of the projection.
bool Matcher::findGradientOfLogits() {
  if (!found.hasBackward())
    return true;
  gradient = found.logSoftmaxBackward.getResult(0);
  Type wanted = found.projection.getResult(0).getType();
  auto isStep = [](Operation *user) {
    auto call = dyn_cast<CallOp>(user);
    return call &&
           llvm::is_contained({"_to_copy", "view", "_unsafe_view", "reshape",
                               "alias", "detach", "clone", "slice_backward"},
                              getName(call));
  };
  while (llvm::any_of(gradient.getUsers(), isStep)) {
    CallOp user = getOnlyUser(gradient, "the gradients of the logits");
    if (!user || !addStep(user, user.getResult(0), gradient, "slice_backward",
                          found.backwardSlices, found.backwardCasts))
      return false;
    gradient = user.getResult(0);
  }
  return gradient.getType() == wanted ||
         miss("the gradients of the logits are not shaped as the logits");
}

bool Matcher::findTransposed(CallOp transpose) {
  for (Operation *user : transpose.getResult(0).getUsers()) {
    auto call = dyn_cast<CallOp>(user);
    if (!isCall(user, "mm") || !hasOperands(call, 2) ||
        call->getBlock() != found.loss->getBlock() ||
        call.getInputs()[1] != found.getHidden())
      return miss("the gradient of the weight is not of the hidden states");
    found.sums.push_back(call);
    found.calls.insert(user);
  }
  return true;
}

/// One use of the gradient of the logits: a product, a sum, or neither.
bool Matcher::findUse(CallOp call, bool isFirst) {
  bool isProduct = isCall(call, "mm") && hasOperands(call, 2) &&
                   isMatrix(call.getInputs()[1]);
  if (isCall(call, "_assert_tensor_metadata"))
    return true;
  if (isCall(call, "t"))
    return findTransposed(call);
  if (isProduct && isFirst && call.getInputs()[1] != gradient) {
    found.products.push_back(call);
    return true;
  }
  Operation *other = call.getInputs().front().getDefiningOp();
  bool isOfHidden = isProduct && !isFirst && isCall(other, "t") &&
                    other->getOperand(0) == found.getHidden();
  auto dims = isCall(call, "sum.dim_IntList")
                  ? dyn_cast_if_present<DenseI64ArrayAttr>(
                        dyn_cast<Attribute>(call.getArg(1)))
                  : DenseI64ArrayAttr();
  if (!isOfHidden && (!dims || dims.asArrayRef() != ArrayRef<int64_t>{0}))
    return miss("the gradients of the logits have another use");
  if (isOfHidden)
    found.calls.insert(other);
  found.sums.push_back(call);
  return true;
}

bool Matcher::findUses() {
  if (!found.hasBackward())
    return true;
  for (OpOperand &use : gradient.getUses()) {
    auto call = dyn_cast<CallOp>(use.getOwner());
    if (!call || call->getBlock() != found.loss->getBlock())
      return miss("the gradients of the logits are also an output");
    found.calls.insert(call);
    if (!findUse(call, use.getOperandNumber() == 0))
      return false;
  }
  // What was found from the last use on, in the order of the step.
  for (auto *calls : {&found.products, &found.sums})
    llvm::sort(*calls,
               [](CallOp a, CallOp b) { return a->isBeforeInBlock(b); });
  return true;
}

/// The numbers of the rows that are left of the first `count`, or nothing if
/// the slices are not of so many.
static std::optional<SmallVector<int64_t>> takeRows(int64_t count,
                                                    ArrayRef<RowSlice> slices) {
  SmallVector<int64_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  for (const RowSlice &slice : slices) {
    if (ShapedType::getNumElements(slice.whole) != int64_t(rows.size()))
      return std::nullopt;
    int64_t size = slice.whole[slice.dim];
    int64_t inner = ShapedType::getNumElements(
        ArrayRef(slice.whole).drop_front(slice.dim + 1));
    SmallVector<int64_t> taken;
    for (auto [place, row] : llvm::enumerate(rows))
      if (int64_t at = int64_t(place) / inner % size - slice.first;
          at >= 0 && at % slice.step == 0 &&
          at / slice.step < slice.part[slice.dim])
        taken.push_back(row);
    if (ShapedType::getNumElements(slice.part) != int64_t(taken.size()))
      return std::nullopt;
    rows = std::move(taken);
  }
  return rows;
}

/// Whether the rows that have gradients are those of the loss: then a product
/// over all rows is one over those.
bool Matcher::areSameRows() {
  int64_t count = getRows(found.projection.getResult(0)).front();
  if (count > mostRows)
    return miss("there are more than 16,777,216 rows");
  std::optional<SmallVector<int64_t>> rows = takeRows(count, found.slices);
  SmallVector<RowSlice> reversed(llvm::reverse(found.backwardSlices));
  std::optional<SmallVector<int64_t>> backward = takeRows(count, reversed);
  if (!rows || !backward ||
      int64_t(rows->size()) != getRows(found.loss.getInputs()[0]).front() ||
      (found.hasBackward() && *rows != *backward))
    return miss("the rows of the loss are not a known part of the logits");
  return true;
}

std::optional<VocabularyLoss>
fsdp::aten::detail::findVocabularyLoss(CallOp loss, std::string &reason) {
  return Matcher(loss, reason).find();
}
