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
    cudaForward = "_scaled_dot_product_efficient_attention",
    cudaBackward = "_scaled_dot_product_efficient_attention_backward";

/// What the kernel rounds the number of logarithms per head up to.
static constexpr int64_t logarithms = 32;

/// What it wants rows to be aligned to, in bytes.
static constexpr int64_t rowBytes = 16;

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
  Value expandMask(CallOp call, Value mask, OpBuilder &builder);
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
  auto expanded = dyn_cast<Value>(mask);
  if (expanded)
    mask = expanded = expandMask(call, expanded, builder);

  RankedTensorType query = typeOf(call, 0);
  Type scalar = RankedTensorType::get({}, builder.getI64Type());
  Type sums = RankedTensorType::get(
      {query.getDimSize(0), query.getDimSize(1),
       int64_t(llvm::alignTo(query.getDimSize(2), logarithms))},
      builder.getF32Type());

  Arguments arguments(context);
  for (unsigned i = 0; i != 3; ++i)
    arguments.add(call.getArg(i));
  arguments.add(mask);
  arguments.add(builder.getBoolAttr(true)); // the sums are for the backward
  arguments.add(dropout);
  arguments.add(argumentOr(call, 4, isFalse));
  if (scale)
    arguments.addNamed("scale", scale);
  auto forward =
      CallOp::create(builder, call.getLoc(),
                     TypeRange{call.getResultTypes()[0], sums, scalar, scalar},
                     cudaForward, arguments.get(), arguments.inputs,
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
    Arguments back(context);
    for (unsigned i = 0; i != 4; ++i) // gradient, query, key, value
      back.add(user.getArg(i));
    back.add(expanded ? OpFoldResult(expanded) : OpFoldResult(none));
    back.add(user.getArg(4)); // the output
    for (unsigned i = 1; i != 4; ++i)
      back.add(forward.getResult(i));
    back.add(user.getArg(6));
    back.add(at.getDenseBoolArrayAttr({true, true, true, false}));
    back.add(argumentOr(user, 7, isFalse));
    if (OpFoldResult given = user.getArg("scale"))
      back.addNamed("scale", given);
    SmallVector<Type> types(user.getResultTypes());
    types.push_back(at.getNoneType());
    auto backward =
        CallOp::create(at, user.getLoc(), types, cudaBackward, back.get(),
                       back.inputs, user.getPhaseAttr(), user.getScopeAttr());
    user.replaceAllUsesWith(backward.getResults().take_front(3));
    user.erase();
  }
  call.getResult(0).replaceAllUsesWith(forward.getResult(0));
  call.erase();
  remark::passed(forward.getLoc(), remark::RemarkOpts::name("retarget")
                                       .category(getArgument())
                                       .function("attention"))
      << "uses " << cudaForward;
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
