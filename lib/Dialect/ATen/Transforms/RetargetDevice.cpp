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
    cudnnForward = "_scaled_dot_product_cudnn_attention",
    cudnnBackward = "_scaled_dot_product_cudnn_attention_backward",
    efficientForward = "_scaled_dot_product_efficient_attention",
    efficientBackward = "_scaled_dot_product_efficient_attention_backward";

/// What the efficient kernel rounds the number of logarithms per head up to.
static constexpr int64_t logarithms = 32;

/// What both want rows to be aligned to, in bytes.
static constexpr int64_t rowBytes = 16;

/// The largest heads of the kernels without a mask, in elements.
static constexpr int64_t largestFlashHead = 256, largestCudnnHead = 128;

namespace {

enum class Kernel { Flash, Cudnn, Efficient };

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
  Kernel choose(CallOp call, Value mask, OpFoldResult isCausal);
  CallOp createForward(CallOp call, Kernel kernel, OpFoldResult mask);
  void replaceBackward(CallOp call, CallOp forward, Kernel kernel,
                       OpFoldResult mask);
  Value getUnreadState(CallOp call);
  void dropStates(CallOp forward);
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

/// The kernels without a mask are the fastest ones, but have 16 bits, one size
/// of heads, and another triangle where queries are not as many as keys.
Kernel RetargetDevicePass::choose(CallOp call, Value mask,
                                  OpFoldResult isCausal) {
  RankedTensorType query = typeOf(call, 0), key = typeOf(call, 1);
  int64_t head = query.getDimSize(3);
  bool isHalf =
      query.getElementType().isBF16() || query.getElementType().isF16();
  bool isSquare = query.getDimSize(2) == key.getDimSize(2);
  auto causal = dyn_cast<Attribute>(isCausal);
  if (!isHalf || mask || typeOf(call, 2).getDimSize(3) != head ||
      (!isSquare && causal != BoolAttr::get(&getContext(), false)))
    return Kernel::Efficient;
  if (cudnn && head <= largestCudnnHead)
    return Kernel::Cudnn;
  return head <= largestFlashHead ? Kernel::Flash : Kernel::Efficient;
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

/// The forward of the kernel, with the logarithms of its sums as the second
/// result.
CallOp RetargetDevicePass::createForward(CallOp call, Kernel kernel,
                                         OpFoldResult mask) {
  OpBuilder builder(call);
  RankedTensorType query = typeOf(call, 0);
  SmallVector<int64_t> sums(query.getShape().take_front(3));
  if (kernel == Kernel::Efficient)
    sums[2] = int64_t(llvm::alignTo(sums[2], logarithms));
  if (kernel == Kernel::Cudnn)
    sums.push_back(1);
  SmallVector<Type> results(kernel == Kernel::Efficient ? 4 : 9,
                            builder.getNoneType());
  results[0] = call.getResultTypes()[0];
  results[1] = RankedTensorType::get(sums, builder.getF32Type());

  Arguments arguments(&getContext());
  for (unsigned i = 0; i != 3; ++i)
    arguments.add(call.getArg(i));
  if (kernel != Kernel::Flash) {
    arguments.add(mask);
    arguments.add(builder.getBoolAttr(true)); // the sums are for the backward
  }
  arguments.add(argumentOr(call, 3, builder.getF64FloatAttr(0.0)));
  arguments.add(argumentOr(call, 4, builder.getBoolAttr(false)));
  if (OpFoldResult scale = call.getArg("scale"))
    arguments.addNamed("scale", scale);
  return CallOp::create(builder, call.getLoc(), results,
                        kernel == Kernel::Flash   ? flashForward
                        : kernel == Kernel::Cudnn ? cudnnForward
                                                  : efficientForward,
                        arguments.get(), arguments.inputs, call.getPhaseAttr(),
                        call.getScopeAttr());
}

/// Replaces `call`, the CPU's backward of `forward`.
void RetargetDevicePass::replaceBackward(CallOp call, CallOp forward,
                                         Kernel kernel, OpFoldResult mask) {
  OpBuilder builder(call);
  OpFoldResult none = Attribute(builder.getUnitAttr());
  OpFoldResult state = getUnreadState(forward);
  OpFoldResult output = call.getArg(4), sums = forward.getResult(1);
  OpFoldResult dropout = call.getArg(6);
  OpFoldResult isCausal =
      argumentOr(call, 7, Attribute(builder.getBoolAttr(false)));
  auto length = [&](unsigned argument) -> OpFoldResult {
    return builder.getI64IntegerAttr(typeOf(call, argument).getDimSize(2));
  };
  OpFoldResult queries = length(1), keys = length(2);
  SmallVector<OpFoldResult> rest;
  switch (kernel) { // Sequences of one length have no table: twice none.
  case Kernel::Flash:
    rest = {output, sums,    none,     none,  queries,
            keys,   dropout, isCausal, state, state};
    break;
  case Kernel::Cudnn:
    rest = {output, sums,    state, state,   mask,    none,
            none,   queries, keys,  dropout, isCausal};
    break;
  case Kernel::Efficient:
    rest = {
        mask,
        output,
        sums,
        state,
        state,
        dropout,
        OpFoldResult(builder.getDenseBoolArrayAttr({true, true, true, false})),
        isCausal};
    break;
  }
  Arguments arguments(&getContext());
  for (unsigned i = 0; i != 4; ++i) // gradient, query, key, value
    arguments.add(call.getArg(i));
  for (OpFoldResult argument : rest)
    arguments.add(argument);
  if (OpFoldResult scale = call.getArg("scale"))
    arguments.addNamed("scale", scale);
  SmallVector<Type> types(call.getResultTypes());
  if (kernel == Kernel::Efficient)
    types.push_back(builder.getNoneType());
  auto backward = CallOp::create(builder, call.getLoc(), types,
                                 kernel == Kernel::Flash   ? flashBackward
                                 : kernel == Kernel::Cudnn ? cudnnBackward
                                                           : efficientBackward,
                                 arguments.get(), arguments.inputs,
                                 call.getPhaseAttr(), call.getScopeAttr());
  call.replaceAllUsesWith(backward.getResults().take_front(3));
  call.erase();
}

/// Of attention that was captured on a GPU.
void RetargetDevicePass::dropStates(CallOp forward) {
  StringRef name = forward.getCallee().getName();
  bool isEfficient = name == efficientForward, isFlash = name == flashForward;
  if (!isEfficient && !isFlash && name != cudnnForward)
    return;
  Builder builder(&getContext());
  OpFoldResult zero = Attribute(builder.getF64FloatAttr(0.0));
  if (argumentOr(forward, isFlash ? 3 : 5, zero) != zero)
    return; // whoever rejects dropout says so
  for (OpResult state : forward->getResults().slice(isEfficient ? 2 : 6, 2)) {
    if (!state.use_empty())
      state.replaceAllUsesWith(getUnreadState(forward));
    state.setType(builder.getNoneType());
  }
}

LogicalResult RetargetDevicePass::retargetAttention(CallOp call) {
  OpBuilder builder(call);
  OpFoldResult none = Attribute(builder.getUnitAttr());
  OpFoldResult zero = Attribute(builder.getF64FloatAttr(0.0));
  OpFoldResult given = call.getArg("attn_mask");
  if (failed(check(call, given ? given : none)))
    return failure();
  if (argumentOr(call, 3, zero) != zero)
    return call.emitError("expected attention without dropout");
  auto expanded = dyn_cast_if_present<Value>(given);
  Kernel kernel =
      choose(call, expanded,
             argumentOr(call, 4, Attribute(builder.getBoolAttr(false))));
  if (expanded)
    expanded = expandMask(call, expanded, builder);
  OpFoldResult mask = expanded ? OpFoldResult(expanded) : none;

  CallOp forward = createForward(call, kernel, mask);
  for (OpOperand &use :
       llvm::make_early_inc_range(call.getResult(1).getUses())) {
    auto user = dyn_cast<CallOp>(use.getOwner());
    if (!user || user.getCallee().getName() != cpuBackward ||
        user.getArg(5) != OpFoldResult(call.getResult(1)))
      return use.getOwner()->emitError(
          "expected the sums of attention to be used by its backward only");
    if (user.getArg("attn_mask") != given)
      return user.emitError("expected the mask of its forward");
    replaceBackward(user, forward, kernel, mask);
  }
  call.getResult(0).replaceAllUsesWith(forward.getResult(0));
  call.erase();
  remark::passed(forward.getLoc(), remark::RemarkOpts::name("retarget")
                                       .category(getArgument())
                                       .function("attention"))
      << "uses " << forward.getCallee().getName();
  return success();
}

void RetargetDevicePass::runOnOperation() {
  unreadStates.clear();
  StringRef name = ATenDialect::getDeviceAttrName();
  auto from = getOperation()->getAttrOfType<DeviceAttr>(name);
  if (from && from.getValue() == device) {
    getOperation().walk([&](CallOp call) { dropStates(call); });
    return;
  }
  if (device == Device::CPU) {
    getOperation().emitError("expected a step captured on the CPU to run there,"
                             " got one of another device");
    return signalPassFailure();
  }
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
