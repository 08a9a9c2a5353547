//===- RetargetDevice.cpp - Another kind of device ------------------------===//
//
// Device arguments, and attention: the one operator family that PyTorch
// chooses by device when a step is captured.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/Transforms/Passes.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/Remarks.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::aten;

namespace fsdp::aten {
#define GEN_PASS_DEF_RETARGETDEVICEPASS
#include "fsdp/Dialect/ATen/Transforms/Passes.h.inc"
} // namespace fsdp::aten

static constexpr StringLiteral
    cpuForward = "_scaled_dot_product_flash_attention_for_cpu",
    cpuBackward = "_scaled_dot_product_flash_attention_for_cpu_backward",
    flashForward = "_scaled_dot_product_flash_attention",
    flashBackward = "_scaled_dot_product_flash_attention_backward",
    efficientForward = "_scaled_dot_product_efficient_attention",
    efficientBackward = "_scaled_dot_product_efficient_attention_backward";

/// What the efficient kernel rounds the number of logarithms per head up to.
static constexpr int64_t logarithms = 32;

/// What both want rows to be aligned to, in bytes.
static constexpr int64_t rowBytes = 16;

/// The largest head of the flash kernel, in elements.
static constexpr int64_t largestHead = 256;

namespace {

/// Builds the arguments of a call, in order.
class Arguments {
public:
  explicit Arguments(MLIRContext *context) : context(context) {}

  void add(Value input) {
    values.push_back(OperandAttr::get(context));
    inputs.push_back(input);
  }
  void add(Attribute constant) { values.push_back(constant); }
  void add(OpFoldResult argument) {
    if (auto value = dyn_cast<Value>(argument))
      add(value);
    else
      add(cast<Attribute>(argument));
  }
  void addNamed(StringRef name, OpFoldResult argument) {
    keywords.push_back(StringAttr::get(context, name));
    add(argument);
  }
  ArgsAttr get() const { return ArgsAttr::get(context, values, keywords); }

  SmallVector<Value> inputs;

private:
  MLIRContext *context;
  SmallVector<Attribute> values;
  SmallVector<StringAttr> keywords;
};

struct RetargetDevicePass
    : aten::impl::RetargetDevicePassBase<RetargetDevicePass> {
  using RetargetDevicePassBase::RetargetDevicePassBase;

  void runOnOperation() override;

private:
  void retargetDevices(CallOp call);
  LogicalResult retargetAttention(CallOp call);
  LogicalResult check(CallOp call, OpFoldResult mask);
  bool fitsFlash(CallOp call, Value mask, OpFoldResult isCausal);
  Value getUnreadState(CallOp call);
  Value expandMask(CallOp call, Value mask, OpBuilder &builder);

  DenseMap<Block *, Value> unreadStates;
};

} // namespace

/// The argument at `index`, or `byDefault` if the call leaves it out.
static OpFoldResult argumentOr(CallOp call, unsigned index,
                               OpFoldResult byDefault) {
  return index < call.getArgs().getNumPositional() ? call.getArg(index)
                                                   : byDefault;
}

static RankedTensorType typeOf(CallOp call, unsigned index) {
  return cast<RankedTensorType>(call.getArgInputs(index).front().getType());
}

/// `attribute` with the device `from` replaced.
static Attribute replaceDevice(Attribute attribute, Device from, Device to) {
  auto device = dyn_cast<DeviceAttr>(attribute);
  return device && device.getValue() == from
             ? DeviceAttr::get(attribute.getContext(), to)
             : attribute;
}

void RetargetDevicePass::retargetDevices(CallOp call) {
  ArgsAttr args = call.getArgs();
  SmallVector<Attribute> values;
  for (Attribute value : args.getValues())
    values.push_back(replaceDevice(value, Device::CPU, device));
  if (!llvm::equal(values, args.getValues()))
    call.setArgsAttr(ArgsAttr::get(&getContext(), values, args.getKeywords()));
}

LogicalResult RetargetDevicePass::check(CallOp call, OpFoldResult mask) {
  for (unsigned index = 0; index != 3; ++index) {
    auto given = dyn_cast<Value>(call.getArg(index));
    auto type = given ? dyn_cast<RankedTensorType>(given.getType()) : nullptr;
    if (!type || type.getRank() != 4 || !type.hasStaticShape())
      return call.emitError("expected attention over tensors of four known "
                            "sizes, got another argument ")
             << index;
  }
  RankedTensorType query = typeOf(call, 0), key = typeOf(call, 1);
  int64_t perRow = rowBytes / getItemSize(query.getElementType());
  for (RankedTensorType type : {query, typeOf(call, 2)})
    if (type.getDimSize(3) % perRow != 0)
      return call.emitError("expected heads of a multiple of ")
             << perRow << " elements for attention on cuda, got "
             << type.getDimSize(3);
  if (query.getDimSize(1) != key.getDimSize(1))
    return call.emitError("expected as many heads of keys as of queries for "
                          "attention on cuda, got ")
           << key.getDimSize(1) << " and " << query.getDimSize(1);
  auto given = dyn_cast<Value>(mask);
  if (!given)
    return success();
  auto type = cast<RankedTensorType>(given.getType());
  if (type.getElementType() != query.getElementType())
    return call.emitError("expected a mask of the element type of the queries "
                          "for attention on cuda, got ")
           << type;
  if (type.getRank() > 4)
    return call.emitError("expected a mask of at most four sizes for attention "
                          "on cuda, got ")
           << type;
  if (key.getDimSize(2) % perRow != 0)
    return call.emitError("expected a mask over a multiple of ")
           << perRow << " keys for attention on cuda, got "
           << key.getDimSize(2);
  return success();
}

/// The kernel wants a mask with all batches and heads: a view.
Value RetargetDevicePass::expandMask(CallOp call, Value mask,
                                     OpBuilder &builder) {
  RankedTensorType query = typeOf(call, 0);
  SmallVector<int64_t> shape(query.getShape());
  shape[3] = typeOf(call, 1).getDimSize(2);
  auto type = cast<RankedTensorType>(mask.getType());
  if (ArrayRef<int64_t>(shape) == type.getShape())
    return mask;
  SmallVector<int64_t> strides(4, 0), old = getStrides(type);
  for (unsigned i = 0, missing = 4 - type.getRank(); i != type.getRank(); ++i)
    if (type.getDimSize(i) == shape[missing + i])
      strides[missing + i] = old[i];
  Arguments arguments(&getContext());
  arguments.add(mask);
  arguments.add(builder.getDenseI64ArrayAttr(shape));
  return CallOp::create(builder, call.getLoc(),
                        getTensorType(shape, type.getElementType(), strides,
                                      getOffset(type)),
                        "expand", arguments.get(), arguments.inputs,
                        call.getPhaseAttr(), call.getScopeAttr())
      .getResult(0);
}

/// Flash attention is the fastest one, but has 16 bits and no mask, one size of
/// heads, and another triangle where queries are not as many as keys.
bool RetargetDevicePass::fitsFlash(CallOp call, Value mask,
                                   OpFoldResult isCausal) {
  RankedTensorType query = typeOf(call, 0), key = typeOf(call, 1);
  bool isSquare = query.getDimSize(2) == key.getDimSize(2);
  auto causal = dyn_cast<Attribute>(isCausal);
  return (query.getElementType().isBF16() || query.getElementType().isF16()) &&
         !mask && query.getDimSize(3) <= largestHead &&
         typeOf(call, 2).getDimSize(3) == query.getDimSize(3) &&
         (isSquare || causal == BoolAttr::get(&getContext(), false));
}

/// What the backward is given as seed and offset: without dropout it reads
/// neither. Those that the forward returns may be in host memory, and a step
/// that copied them to the device would wait for it.
Value RetargetDevicePass::getUnreadState(CallOp call) {
  Value &state = unreadStates[call->getBlock()];
  if (state)
    return state;
  OpBuilder builder(call);
  Arguments arguments(&getContext());
  arguments.add(builder.getDenseI64ArrayAttr({}));
  arguments.add(builder.getI64IntegerAttr(0));
  arguments.addNamed("dtype", TypeAttr::get(builder.getI64Type()));
  arguments.addNamed("device", DeviceAttr::get(&getContext(), device));
  return state = CallOp::create(builder, call.getLoc(),
                                RankedTensorType::get({}, builder.getI64Type()),
                                "full", arguments.get(), arguments.inputs,
                                call.getPhaseAttr(), StringAttr())
                     .getResult(0);
}

LogicalResult RetargetDevicePass::retargetAttention(CallOp call) {
  MLIRContext *context = &getContext();
  OpBuilder builder(call);
  Attribute none = builder.getUnitAttr();
  OpFoldResult zero = builder.getF64FloatAttr(0.0);
  OpFoldResult isFalse = builder.getBoolAttr(false);

  OpFoldResult mask = call.getArg("attn_mask");
  OpFoldResult scale = call.getArg("scale");
  if (!mask)
    mask = none;
  if (failed(check(call, mask)))
    return failure();
  OpFoldResult dropout = argumentOr(call, 3, zero);
  if (dropout != zero)
    return call.emitError("expected attention without dropout");
  OpFoldResult isCausal = argumentOr(call, 4, isFalse);
  auto expanded = dyn_cast<Value>(mask);
  bool isFlash = fitsFlash(call, expanded, isCausal);
  if (expanded)
    mask = expanded = expandMask(call, expanded, builder);

  RankedTensorType query = typeOf(call, 0);
  Type unused = builder.getNoneType();
  int64_t numSums = query.getDimSize(2);
  if (!isFlash)
    numSums = int64_t(llvm::alignTo(numSums, logarithms));
  Type sums =
      RankedTensorType::get({query.getDimSize(0), query.getDimSize(1), numSums},
                            builder.getF32Type());

  Arguments arguments(context);
  for (unsigned i = 0; i != 3; ++i)
    arguments.add(call.getArg(i));
  if (!isFlash) {
    arguments.add(mask);
    arguments.add(builder.getBoolAttr(true)); // the sums are for the backward
  }
  arguments.add(dropout);
  arguments.add(isCausal);
  if (scale)
    arguments.addNamed("scale", scale);
  SmallVector<Type> results(isFlash ? 9 : 4, unused);
  results[0] = call.getResultTypes()[0];
  results[1] = sums;
  StringRef name = isFlash ? flashForward : efficientForward;
  auto forward = CallOp::create(builder, call.getLoc(), results, name,
                                arguments.get(), arguments.inputs,
                                call.getPhaseAttr(), call.getScopeAttr());

  for (OpOperand &use :
       llvm::make_early_inc_range(call.getResult(1).getUses())) {
    auto user = dyn_cast<CallOp>(use.getOwner());
    if (!user || user.getCallee().getName() != cpuBackward ||
        user.getArg(5) != OpFoldResult(call.getResult(1)))
      return use.getOwner()->emitError(
          "expected the sums of attention to be used by its backward only");
    if (OpFoldResult given = user.getArg("attn_mask");
        bool(given) != bool(expanded) ||
        (given && given != call.getArg("attn_mask")))
      return user.emitError("expected the mask of its forward");
    OpBuilder at(user);
    Value state = getUnreadState(forward);
    SmallVector<Type> types(user.getResultTypes());
    Arguments back(context);
    for (unsigned i = 0; i != 4; ++i) // gradient, query, key, value
      back.add(user.getArg(i));
    if (!isFlash)
      back.add(expanded ? OpFoldResult(expanded) : OpFoldResult(none));
    back.add(user.getArg(4)); // the output
    back.add(forward.getResult(1));
    if (isFlash) {
      back.add(none); // sequences of one length have no table
      back.add(none);
      back.add(at.getI64IntegerAttr(query.getDimSize(2)));
      back.add(at.getI64IntegerAttr(typeOf(call, 1).getDimSize(2)));
      back.add(user.getArg(6)); // dropout
      back.add(argumentOr(user, 7, isFalse));
      back.add(state);
      back.add(state);
    } else {
      back.add(state);
      back.add(state);
      back.add(user.getArg(6));
      back.add(at.getDenseBoolArrayAttr({true, true, true, false}));
      back.add(argumentOr(user, 7, isFalse));
      types.push_back(unused);
    }
    if (OpFoldResult given = user.getArg("scale"))
      back.addNamed("scale", given);
    auto backward = CallOp::create(
        at, user.getLoc(), types, isFlash ? flashBackward : efficientBackward,
        back.get(), back.inputs, user.getPhaseAttr(), user.getScopeAttr());
    user.replaceAllUsesWith(backward.getResults().take_front(3));
    user.erase();
  }
  call.getResult(0).replaceAllUsesWith(forward.getResult(0));
  call.erase();
  remark::passed(forward.getLoc(), remark::RemarkOpts::name("retarget")
                                       .category(getArgument())
                                       .function("attention"))
      << "uses " << name;
  return success();
}

void RetargetDevicePass::runOnOperation() {
  StringRef name = ATenDialect::getDeviceAttrName();
  auto from = getOperation()->getAttrOfType<DeviceAttr>(name);
  if (from && from.getValue() == device)
    return;
  if (device == Device::CPU) {
    getOperation().emitError("expected a step captured on the CPU to run there,"
                             " got one of another device");
    return signalPassFailure();
  }
  unreadStates.clear();
  SmallVector<CallOp> attention;
  getOperation().walk([&](CallOp call) {
    retargetDevices(call);
    if (call.getCallee().getName() == cpuForward)
      attention.push_back(call);
  });
  for (CallOp call : attention)
    if (failed(retargetAttention(call)))
      return signalPassFailure();
  getOperation()->setAttr(name, DeviceAttr::get(&getContext(), device));
}
