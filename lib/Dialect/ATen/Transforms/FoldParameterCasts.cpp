//===- FoldParameterCasts.cpp - Parameters in the type of the program -----===//
//
// What casts a parameter, and nothing else, is left to the gather; what casts
// its gradient back, to the reduction.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/ATen/Transforms/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Remarks.h"

using namespace mlir;
using namespace fsdp::aten;

namespace fsdp::aten {
#define GEN_PASS_DEF_FOLDPARAMETERCASTSPASS
#include "fsdp/Dialect/ATen/Transforms/Passes.h.inc"
} // namespace fsdp::aten

/// The call that casts a tensor to `value`; null if there is none.
static CallOp getCast(Value value) {
  auto call = value.getDefiningOp<CallOp>();
  bool isCast = call && call.getCallee().getName() == "_to_copy" &&
                call.getInputs().size() == 1 && call.getNumResults() == 1;
  return isCast ? call : CallOp();
}

/// The casts of `parameter` to `type`; nothing if it is used in another way.
static std::optional<SmallVector<CallOp>> getCasts(BlockArgument parameter,
                                                   RankedTensorType type) {
  SmallVector<CallOp> casts;
  for (Operation *user : parameter.getUsers()) {
    CallOp cast =
        user->getNumResults() == 1 ? getCast(user->getResult(0)) : CallOp();
    if (!cast || cast.getResult(0).getType() != type)
      return std::nullopt;
    casts.push_back(cast);
  }
  return casts;
}

/// Returns whether `parameter` is now taken as `element`. `gradient` is where
/// the program returns its gradient, or null.
static bool fold(BlockArgument parameter, Type element, OpOperand *gradient) {
  auto type = dyn_cast<RankedTensorType>(parameter.getType());
  if (!type || !isa<FloatType>(type.getElementType()))
    return false;
  auto narrow = cast<RankedTensorType>(type.clone(element));
  std::optional<SmallVector<CallOp>> casts = getCasts(parameter, narrow);
  CallOp back = gradient ? getCast(gradient->get()) : CallOp();
  if (!casts || (gradient && !back))
    return false;
  if (back) {
    auto computed = cast<RankedTensorType>(back.getInputs()[0].getType());
    if (computed.getElementType() != element ||
        computed.getShape() != type.getShape())
      return false;
    gradient->set(back.getInputs()[0]);
    if (back->use_empty())
      back->erase();
  }
  parameter.setType(narrow);
  for (CallOp call : *casts) {
    call.getResult(0).replaceAllUsesWith(parameter);
    call->erase();
  }
  return true;
}

static void foldCasts(func::FuncOp program) {
  Block &block = program.getBody().front();
  Builder builder(program.getContext());
  DenseMap<Attribute, OpOperand *> gradients;
  for (OpOperand &operand : block.getTerminator()->getOpOperands())
    if (Attribute name = program.getResultAttr(
            operand.getOperandNumber(), ATenDialect::getGradOfAttrName()))
      gradients[name] = &operand;
  SmallVector<DictionaryAttr> arguments;
  for (BlockArgument argument : block.getArguments()) {
    NamedAttrList attrs(program.getArgAttrDict(argument.getArgNumber()));
    auto wanted = dyn_cast_or_null<TypeAttr>(
        attrs.erase(ATenDialect::getParamDtypeAttrName()));
    Attribute name = attrs.get(ATenDialect::getParamAttrName());
    Type before = getElementTypeOrSelf(argument.getType());
    if (wanted && fold(argument, wanted.getValue(), gradients.lookup(name)))
      attrs.set(ATenDialect::getStorageDtypeAttrName(), TypeAttr::get(before));
    else if (wanted)
      remark::missed(argument.getLoc(),
                     remark::RemarkOpts::name("kept")
                         .category("aten-fold-parameter-casts")
                         .function(program.getSymName()))
          << remark::metric("Parameter", cast<StringAttr>(name).getValue())
          << remark::reason("it is not only cast to {0}", wanted.getValue());
    arguments.push_back(attrs.getDictionary(program.getContext()));
  }
  program.setAllArgAttrs(arguments);
  program.setFunctionType(builder.getFunctionType(
      block.getArgumentTypes(), block.getTerminator()->getOperandTypes()));
}

namespace {
struct FoldParameterCastsPass
    : fsdp::aten::impl::FoldParameterCastsPassBase<FoldParameterCastsPass> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<func::FuncOp>())
      if (program.getBody().hasOneBlock())
        foldCasts(program);
  }
};
} // namespace
