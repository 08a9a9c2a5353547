//===- Legalize.cpp - Say it in words that a plan has ---------------------===//
//
// Calls and arguments that mean the same as others: what is behind this pass
// knows only those.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/Transforms/Passes.h"
#include "fsdp/Operators/OpFacts.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace fsdp::aten;

namespace fsdp::aten {
#define GEN_PASS_DEF_LEGALIZEPASS
#include "fsdp/Dialect/ATen/Transforms/Passes.h.inc"

namespace {
/// Replaces the calls of one step.
class Legalizer {
public:
  explicit Legalizer(func::FuncOp step)
      : step(step), builder(step.getContext()) {}

  LogicalResult run();

private:
  LogicalResult replaceCall(CallOp call);
  void expandSource(CallOp copy);
  LogicalResult replaceScatter(CallOp scatter);
  Value makeEmpty(CallOp before, RankedTensorType type);
  LogicalResult replaceDropout(CallOp dropout);
  LogicalResult replaceDraw(CallOp draw, StringRef name,
                            ArrayRef<Attribute> constants);
  void addGenerator(CallOp draw);
  void makeBuffer(BlockArgument parameter);
  LogicalResult startStorage(Value value);

  /// A call with the operands first, in the place of `before`.
  Value call(CallOp before, StringRef name, ValueRange inputs,
             ArrayRef<Attribute> constants, RankedTensorType type);

  func::FuncOp step;
  OpBuilder builder;
};
} // namespace

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

static RankedTensorType getType(Value value) {
  return cast<RankedTensorType>(value.getType());
}

Value Legalizer::call(CallOp before, StringRef name, ValueRange inputs,
                      ArrayRef<Attribute> constants, RankedTensorType type) {
  MLIRContext *context = builder.getContext();
  SmallVector<Attribute> args(inputs.size(), OperandAttr::get(context));
  llvm::append_range(args, constants);
  return CallOp::create(builder, before.getLoc(), TypeRange(type), name,
                        ArgsAttr::get(context, args, {}), inputs,
                        before.getPhaseAttr(), before.getScopeAttr())
      .getResult(0);
}

/// The functional copy of PyTorch broadcasts; that of a plan does not.
void Legalizer::expandSource(CallOp copy) {
  if (copy.getInputs().size() != 2)
    return;
  RankedTensorType from = getType(copy.getInputs()[1]);
  RankedTensorType to = getType(copy.getResult(0));
  int64_t missing = to.getRank() - from.getRank();
  if (from.getShape() == to.getShape() || missing < 0)
    return;
  SmallVector<int64_t> strides(to.getRank(), 0), old = getStrides(from);
  for (int64_t i = 0; i != from.getRank(); ++i)
    if (from.getDimSize(i) == to.getDimSize(missing + i))
      strides[missing + i] = old[i];
    else if (from.getDimSize(i) != 1)
      return;
  builder.setInsertionPoint(copy);
  Value expanded = call(copy, "expand", copy.getInputs()[1],
                        builder.getDenseI64ArrayAttr(to.getShape()),
                        getTensorType(to.getShape(), from.getElementType(),
                                      strides, getOffset(from)));
  copy.getInputsMutable()[1].assign(expanded);
}

/// `as_strided_scatter(self, src, size, stride, storage_offset)`: `self` with
/// the elements of a window replaced. All of them: a copy of `src` in another
/// layout. Some of them: the elements have numbers, which the window cuts out
/// of those of the whole.
LogicalResult Legalizer::replaceScatter(CallOp scatter) {
  if (scatter.getInputs().size() != 2 || scatter.getNumArgs() < 4)
    return success();
  auto list = [&](unsigned position, StringRef name) {
    OpFoldResult value = scatter.getArg(name);
    if (!value && position < scatter.getArgs().getNumPositional())
      value = scatter.getArg(position);
    return dyn_cast_if_present<Attribute>(value);
  };
  Value self = scatter.getInputs()[0], source = scatter.getInputs()[1];
  RankedTensorType type = getType(self), sourceType = getType(source);
  auto sizes = dyn_cast_or_null<DenseI64ArrayAttr>(list(2, "size"));
  auto strides = dyn_cast_or_null<DenseI64ArrayAttr>(list(3, "stride"));
  auto start = dyn_cast_or_null<IntegerAttr>(list(4, "storage_offset"));
  if (!sizes || !strides || sizes.size() != strides.size() ||
      sourceType.getShape() != sizes.asArrayRef() || !type.hasStaticShape() ||
      !isGapless(type) || scatter.getResult(0).getType() != type)
    return success();
  int64_t offset = getOffset(type);
  int64_t begin = (start ? start.getInt() : offset) - offset;
  int64_t count = type.getNumElements(), last = begin;
  for (auto [size, stride] :
       llvm::zip_equal(sizes.asArrayRef(), strides.asArrayRef()))
    last += (size - 1) * stride;
  if (count == 0 || sourceType.getNumElements() == 0 || begin < 0 ||
      last < begin || last >= count ||
      llvm::any_of(strides.asArrayRef(), [](int64_t s) { return s < 0; }))
    return success();

  builder.setInsertionPoint(scatter);
  Type element = type.getElementType(), i64 = builder.getI64Type();
  // Sees `value`, whose elements fill its storage, as another tensor.
  auto see = [&](Value value, RankedTensorType as) {
    return value.getType() == as
               ? value
               : call(scatter, "as_strided", value,
                      {builder.getDenseI64ArrayAttr(as.getShape()),
                       builder.getDenseI64ArrayAttr(getStrides(as)),
                       builder.getI64IntegerAttr(getOffset(as))},
                      as);
  };
  auto window = [&](Type element, int64_t offset) {
    return getTensorType(sizes, element, strides, offset);
  };
  RankedTensorType whole =
      getTensorType(type.getShape(), element, getStrides(type));
  Value result;
  if (sourceType.getNumElements() == count && isGapless(window(element, 0))) {
    result = call(scatter, "clone", source, {}, window(element, 0));
  } else {
    auto flat = RankedTensorType::get({count}, i64);
    MLIRContext *context = builder.getContext();
    Value numbers =
        see(call(scatter, "arange", {}, builder.getI64IntegerAttr(count), flat),
            window(i64, begin));
    Value base = see(call(scatter, "clone", self, {}, whole),
                     RankedTensorType::get({count}, element));
    Attribute place = OperandAttr::get(context);
    auto args = ArgsAttr::get(
        context, {place, ArgsAttr::getList(context, place), place}, {});
    result =
        CallOp::create(builder, scatter.getLoc(), TypeRange(base.getType()),
                       "index_put", args, ValueRange{base, numbers, source},
                       scatter.getPhaseAttr(), scatter.getScopeAttr())
            .getResult(0);
  }
  result = see(result, whole);
  // Its views mean the storage of `self`, it has one of its own.
  result.setType(type);
  scatter.getResult(0).replaceAllUsesWith(result);
  scatter.erase();
  return startStorage(result);
}

//===----------------------------------------------------------------------===//
// Draws
//===----------------------------------------------------------------------===//

// What takes no generator would draw from one that all ranks share. PyTorch
// fills a tensor in place for all of these: so does what stands for them, with
// the same bits.

Value Legalizer::makeEmpty(CallOp before, RankedTensorType type) {
  return CallOp::create(
             builder, before.getLoc(), TypeRange(type), "empty_strided",
             ArgsAttr::get(builder.getContext(),
                           {builder.getDenseI64ArrayAttr(type.getShape()),
                            builder.getDenseI64ArrayAttr(getStrides(type)),
                            TypeAttr::get(type.getElementType())},
                           builder.getStringAttr("dtype")),
             ValueRange(), before.getPhaseAttr(), before.getScopeAttr())
      .getResult(0);
}

/// A tensor filled with draws.
LogicalResult Legalizer::replaceDraw(CallOp draw, StringRef name,
                                     ArrayRef<Attribute> constants) {
  auto type = dyn_cast<RankedTensorType>(draw.getResult(0).getType());
  if (!type || !type.hasStaticShape() ||
      llvm::is_contained(constants, Attribute()))
    return success();
  builder.setInsertionPoint(draw);
  Value value = call(draw, name, makeEmpty(draw, type), constants, type);
  draw.getResult(0).replaceAllUsesWith(value);
  draw.erase();
  return success();
}

/// The overload that takes a generator, which says so without a default.
void Legalizer::addGenerator(CallOp draw) {
  ArgsAttr args = draw.getArgs();
  SmallVector<Attribute> values(args.getValues());
  SmallVector<StringAttr> keywords(args.getKeywords());
  values.push_back(builder.getUnitAttr());
  keywords.push_back(builder.getStringAttr("generator"));
  draw.setCalleeAttr(OpNameAttr::get(
      builder.getContext(), (draw.getCallee().getName() + ".generator").str()));
  draw.setArgsAttr(ArgsAttr::get(builder.getContext(), values, keywords));
}

/// `native_dropout(input, p, train)`: a mask, and the input where it is true,
/// divided by how many are kept.
LogicalResult Legalizer::replaceDropout(CallOp dropout) {
  auto type = dyn_cast<RankedTensorType>(dropout.getResult(0).getType());
  auto maskType = dyn_cast<RankedTensorType>(dropout.getResult(1).getType());
  if (dropout.getInputs().size() != 1 || dropout.getNumArgs() != 3 || !type ||
      !type.hasStaticShape() || !isa<FloatType>(type.getElementType()))
    return success();
  auto getAttr = [&](unsigned index) {
    return dyn_cast<Attribute>(dropout.getArg(index));
  };
  auto train = dyn_cast_or_null<BoolAttr>(getAttr(2));
  auto number = dyn_cast_or_null<FloatAttr>(getAttr(1));
  auto integer = dyn_cast_or_null<IntegerAttr>(getAttr(1));
  if ((train && !train.getValue()) || (!number && !integer))
    return success();
  double keep =
      1 - (number ? number.getValueAsDouble() : double(integer.getInt()));
  // The factor is an element as well, rounded like one.
  FloatAttr factor =
      builder.getFloatAttr(type.getElementType(), keep == 0 ? 0 : 1 / keep);
  builder.setInsertionPoint(dropout);
  if (!maskType)
    maskType = RankedTensorType::get(type.getShape(), builder.getI1Type());
  Value input = dropout.getInputs().front();
  Value mask = call(dropout, "bernoulli.p", makeEmpty(dropout, maskType),
                    builder.getF64FloatAttr(keep), maskType);
  Value kept = call(dropout, "mul.Tensor", {input, mask}, {}, type);
  Value result = call(dropout, "mul.Scalar", kept,
                      builder.getF64FloatAttr(factor.getValueAsDouble()), type);
  dropout.getResult(0).replaceAllUsesWith(result);
  if (!dropout.getResult(1).use_empty())
    dropout.getResult(1).replaceAllUsesWith(mask);
  dropout.erase();
  return success();
}

LogicalResult Legalizer::replaceCall(CallOp call) {
  StringRef name = call.getCallee().getName();
  auto [base, overload] = name.split('.');
  bool isOfTensor = overload.contains("Tensor");
  auto get = [&](unsigned index) {
    return index < call.getNumArgs() ? dyn_cast<Attribute>(call.getArg(index))
                                     : Attribute();
  };
  auto number = [&](double value) { return builder.getF64FloatAttr(value); };
  if (name == "native_dropout")
    return replaceDropout(call);
  if (base == "rand" || base == "rand_like")
    return replaceDraw(call, "uniform", {number(0), number(1)});
  if (base == "randn" || base == "randn_like")
    return replaceDraw(call, "normal_functional", {number(0), number(1)});
  if (name == "normal.float_float")
    return replaceDraw(call, "normal_functional", {get(0), get(1)});
  if ((base == "randint" || base == "randint_like") && !isOfTensor) {
    unsigned first = base == "randint_like"; // after `self`
    if (overload.starts_with("low"))
      return replaceDraw(call, "random.from", {get(first), get(first + 1)});
    return replaceDraw(call, "random.from",
                       {builder.getI64IntegerAttr(0), get(first)});
  }
  auto other = llvm::StringSwitch<StringRef>(name)
                   .Cases({"_conj", "_conj_copy"}, "conj_physical")
                   .Cases({"_neg_view", "_neg_view_copy"}, "neg")
                   .Cases({"resolve_conj", "resolve_neg"}, "clone")
                   .Default("");
  if (!other.empty())
    call.setCalleeAttr(OpNameAttr::get(builder.getContext(), other));
  else if (name == "copy")
    expandSource(call);
  else if (name == "as_strided_scatter")
    return replaceScatter(call);
  else if (name == "randperm")
    addGenerator(call);
  return success();
}

//===----------------------------------------------------------------------===//
// Arguments
//===----------------------------------------------------------------------===//

/// Nobody trains integers: what every rank has whole is a buffer.
void Legalizer::makeBuffer(BlockArgument parameter) {
  unsigned index = parameter.getArgNumber();
  StringRef attrName = ATenDialect::getParamAttrName();
  auto name = step.getArgAttrOfType<StringAttr>(index, attrName);
  auto type = dyn_cast<RankedTensorType>(parameter.getType());
  if (!name || !type || !isa<IntegerType>(type.getElementType()))
    return;
  step.removeArgAttr(index, attrName);
  step.removeArgAttr(index, ATenDialect::getAliasesAttrName());
  step.removeArgAttr(index, ATenDialect::getParamDtypeAttrName());
  step.removeArgAttr(index, ATenDialect::getReduceDtypeAttrName());
  step.setArgAttr(index, ATenDialect::getBufferAttrName(), name);
  step.setArgAttr(index, ATenDialect::getPersistentAttrName(),
                  builder.getUnitAttr());
}

/// Views count from the start of a storage: that of `first` starts with it.
LogicalResult Legalizer::startStorage(Value first) {
  auto type = dyn_cast<RankedTensorType>(first.getType());
  int64_t start = type ? getOffset(type) : 0;
  if (start == 0 || ShapedType::isDynamic(start))
    return success();
  SmallVector<Value> values = {first};
  while (!values.empty()) {
    Value value = values.pop_back_val();
    RankedTensorType old = getType(value);
    int64_t offset = getOffset(old) - start;
    if (offset < 0)
      return emitError(value.getLoc())
             << "expected a view inside of a tensor with a storage of its own, "
                "found one that starts "
             << -offset << " elements ahead of it";
    value.setType(getTensorType(old.getShape(), old.getElementType(),
                                getStrides(old), offset));
    for (OpOperand &use : value.getUses())
      if (Operation *user = use.getOwner();
          getViewSource(user) && use.getOperandNumber() == 0)
        llvm::append_range(values, user->getResults());
  }
  return success();
}

LogicalResult Legalizer::run() {
  Block &block = step.getBody().front();
  for (auto call : llvm::make_early_inc_range(block.getOps<CallOp>()))
    if (failed(replaceCall(call)))
      return failure();
  for (BlockArgument argument : block.getArguments()) {
    makeBuffer(argument);
    if (failed(startStorage(argument)))
      return failure();
  }
  step.setFunctionType(builder.getFunctionType(
      block.getArgumentTypes(), block.getTerminator()->getOperandTypes()));
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
struct LegalizePass : impl::LegalizePassBase<LegalizePass> {
  void runOnOperation() override {
    for (auto step : getOperation().getOps<func::FuncOp>())
      if (step.getBody().hasOneBlock() && failed(Legalizer(step).run()))
        return signalPassFailure();
  }
};
} // namespace

} // namespace fsdp::aten
