//===- SelectKernels.cpp - Choose the operators that the plan runs --------===//
//
// Out overloads with a kernel of their own, equivalents that write in place,
// and for the rest the allocator hook. All that is known of an operator stands
// in the table of facts; here is only what each kind of equivalent looks like.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/Transforms/Passes.h"

#include "Utils.h"
#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Operators/OperatorSchema.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/StringSet.h"

namespace fsdp::plan {
#define GEN_PASS_DEF_SELECTKERNELS
#include "fsdp/Dialect/Plan/Transforms/Passes.h.inc"
} // namespace fsdp::plan

using namespace mlir;
using fsdp::operators::Equivalent;
using fsdp::operators::OpFacts;
using fsdp::operators::OutKernel;

namespace fsdp::plan {
namespace {

/// Replaces the launches of one plan.
class Selector {
public:
  Selector(ModuleOp plan)
      : isCUDA(plan.getDevice() == aten::Device::CUDA),
        builder(plan.getContext()) {}

  LogicalResult run(LaunchOp launch);

private:
  // Each says whether it has put something in the place of `launch`.
  bool selectEquivalent(Equivalent equivalent);
  bool selectFill();
  bool selectEmbedding();
  bool selectMean();
  bool selectPower();
  bool selectWindow(Value source, Value base, std::optional<int64_t> select,
                    int64_t dim, int64_t start, int64_t step);
  bool selectDraw();
  bool selectOutOverload(const OpFacts &facts);

  /// An overload that writes its results, and what its arguments are called.
  struct OutOverload {
    aten::OpNameAttr name; // null if there is none with a kernel of its own
    llvm::StringSet<> arguments;
  };
  const OutOverload &getOutOverload(const OpFacts &facts);

  // The arguments of the call, by place or by name.
  Attribute get(unsigned position, StringRef keyword);
  Value getTensor(unsigned position, StringRef keyword);
  int64_t getInt(unsigned position, StringRef keyword, int64_t fallback);
  Value output() { return launch.getOutputs().front(); }
  StringRef name() { return launch.getCallee().getName(); }

  void launchInstead(StringRef callee, ArrayRef<Attribute> args,
                     ValueRange inputs, Value target);
  bool copy(Value source, Value target);
  bool zero(Value target);

  bool isCUDA;
  OpBuilder builder;
  LaunchOp launch; // the current one
  DenseMap<const OpFacts *, OutOverload> outOverloads;
};

//===----------------------------------------------------------------------===//
// Reading the call, writing its successor
//===----------------------------------------------------------------------===//

Attribute Selector::get(unsigned position, StringRef keyword) {
  aten::ArgsAttr args = launch.getArgs();
  if (std::optional<unsigned> index = args.find(keyword))
    return args.getValues()[*index];
  return position < args.getNumPositional() ? args.getValues()[position]
                                            : Attribute();
}

Value Selector::getTensor(unsigned position, StringRef keyword) {
  unsigned index = launch.getArgs().find(keyword).value_or(position);
  OperandRange inputs = launch.getArgInputs(index);
  return inputs.size() == 1 ? inputs.front() : Value();
}

int64_t Selector::getInt(unsigned position, StringRef keyword,
                         int64_t fallback) {
  auto value = dyn_cast_or_null<IntegerAttr>(get(position, keyword));
  return value ? value.getInt() : fallback;
}

void Selector::launchInstead(StringRef callee, ArrayRef<Attribute> args,
                             ValueRange inputs, Value target) {
  MLIRContext *context = builder.getContext();
  LaunchOp::create(builder, launch.getLoc(),
                   aten::OpNameAttr::get(context, callee),
                   aten::ArgsAttr::get(context, args, {}), inputs, target,
                   DenseBoolArrayAttr(), launch.getScopeAttr(),
                   launch.getRole(), launch.getStream());
}

/// Copies `source`, or says that it is no buffer of as many elements: a number
/// can stand for a tensor, and kernels broadcast.
bool Selector::copy(Value source, Value target) {
  if (!source || getTensorType(source).getNumElements() !=
                     getTensorType(target).getNumElements())
    return false;
  CopyOp::create(builder, launch.getLoc(), source, target, launch.getRole(),
                 launch.getStream());
  return true;
}

/// Zeroes `target`, or says that it has gaps.
bool Selector::zero(Value target) {
  RankedTensorType type = getTensorType(target);
  if (!isGapless(type))
    return false;
  if (type.getNumElements() != 0)
    ZeroOp::create(builder, launch.getLoc(), target, launch.getRole(),
                   launch.getStream());
  return true;
}

//===----------------------------------------------------------------------===//
// Equivalents
//===----------------------------------------------------------------------===//

/// full, zeros, ones and their likes.
bool Selector::selectFill() {
  Attribute operand = aten::OperandAttr::get(builder.getContext());
  if (name() == "fill.Tensor") {
    Value value = getTensor(1, "value");
    if (!value)
      return false;
    launchInstead("fill_.Tensor", operand, value, output());
    return true;
  }
  Attribute value;
  if (name().contains("zeros"))
    value = builder.getI64IntegerAttr(0);
  else if (name().contains("ones"))
    value = builder.getI64IntegerAttr(1);
  else if (name() == "new_full")
    value = get(2, "fill_value");
  else
    value = get(1, name() == "fill.Scalar" ? "value" : "fill_value");
  auto integer = dyn_cast_or_null<IntegerAttr>(value);
  if (integer && integer.getValue().isZero() && zero(output()))
    return true;
  if (!value)
    return false;
  launchInstead("fill_.Scalar", value, {}, output());
  return true;
}

/// Rows of a table: of one axis of indices, if they lie like that.
bool Selector::selectEmbedding() {
  Value weight = getTensor(0, "weight"), indices = getTensor(1, "indices");
  if (!weight || !indices)
    return false;
  RankedTensorType indexType = getTensorType(indices);
  RankedTensorType rowType = getTensorType(weight);
  RankedTensorType type = getTensorType(output());
  if (!aten::isDense(indexType) || !aten::isDense(type) ||
      rowType.getRank() != 2)
    return false;
  int64_t count = indexType.getNumElements();
  Value flatIndices =
      createView(launch.getLoc(), indices, 0,
                 RankedTensorType::get({count}, indexType.getElementType()));
  Value flatOutput =
      createView(launch.getLoc(), output(), 0,
                 RankedTensorType::get({count, rowType.getDimSize(1)},
                                       type.getElementType()));
  Attribute operand = aten::OperandAttr::get(builder.getContext());
  launchInstead("index_select.out",
                {operand, builder.getI64IntegerAttr(0), operand},
                {weight, flatIndices}, flatOutput);
  return true;
}

/// A sum, divided where it lies: what the mean of the CPU does, without its
/// temporaries. Its CUDA kernel has none.
bool Selector::selectMean() {
  Value input = getTensor(0, "self");
  if (isCUDA || !input)
    return false;
  int64_t count =
      getTensorType(input).getNumElements() /
      std::max<int64_t>(getTensorType(output()).getNumElements(), 1);
  Attribute dims = DenseI64ArrayAttr::get(builder.getContext(), {});
  Attribute keepdim = builder.getBoolAttr(false);
  if (name() == "mean.dim") {
    dims = get(1, "dim");
    if (Attribute given = get(2, "keepdim"))
      keepdim = given;
  }
  Attribute operand = aten::OperandAttr::get(builder.getContext());
  Attribute type = TypeAttr::get(getTensorType(output()).getElementType());
  MLIRContext *context = builder.getContext();
  LaunchOp::create(builder, launch.getLoc(),
                   aten::OpNameAttr::get(context, "sum.IntList_out"),
                   aten::ArgsAttr::get(context, {operand, dims, keepdim, type},
                                       builder.getStringAttr("dtype")),
                   input, output(), DenseBoolArrayAttr(), launch.getScopeAttr(),
                   launch.getRole(), launch.getStream());
  launchInstead("div.out", {operand, builder.getI64IntegerAttr(count)},
                output(), output());
  return true;
}

/// A power that ATen's kernels compute without one.
bool Selector::selectPower() {
  Value input = getTensor(0, "self");
  if (!input)
    return false;
  Type type = getTensorType(input).getElementType();
  if (isCopy(launch))
    return copy(input, output());
  if (getExponent(launch) != 2 || !(type.isF32() || type.isF64()) ||
      getTensorType(output()).getElementType() != type)
    return false;
  Attribute operand = aten::OperandAttr::get(builder.getContext());
  launchInstead("mul.out", {operand, operand}, {input, input}, output());
  return true;
}

/// The output is `source` in the window [start :: step] of dimension `dim` (or
/// at index `select` of it), and `base`, or 0, elsewhere.
bool Selector::selectWindow(Value source, Value base,
                            std::optional<int64_t> select, int64_t dim,
                            int64_t start, int64_t step) {
  RankedTensorType type = getTensorType(output());
  int64_t itemSize = aten::getItemSize(type.getElementType());
  SmallVector<int64_t> sizes(type.getShape()), strides = aten::getStrides(type);
  if (dim < 0)
    dim += sizes.size();
  if (!source || dim < 0 || dim >= type.getRank() || step < 1)
    return false;
  int64_t size = sizes[dim], stride = strides[dim];
  if (start < 0)
    start += size;
  if (select && (start < 0 || start >= size))
    return false;
  start = std::clamp<int64_t>(start, 0, size);
  step = std::min(step, std::max<int64_t>(size, 1)); // one element at most
  SmallVector<int64_t> windowSizes = sizes, windowStrides = strides;
  int64_t count = 1; // in the window
  if (select) {
    windowSizes.erase(windowSizes.begin() + dim);
    windowStrides.erase(windowStrides.begin() + dim);
  } else {
    RankedTensorType sourceType = getTensorType(source);
    count = dim < sourceType.getRank() ? sourceType.getDimSize(dim) : 0;
    windowSizes[dim] = count;
    windowStrides[dim] *= step;
  }
  if (getTensorType(source).getShape() != ArrayRef(windowSizes) ||
      count > (size - start + step - 1) / step)
    return false;
  int64_t end = count ? start + (count - 1) * step + 1 : start;

  auto view = [&](int64_t begin, ArrayRef<int64_t> sizes,
                  ArrayRef<int64_t> strides) {
    return createView(
        launch.getLoc(), output(), begin * stride * itemSize,
        aten::getTensorType(sizes, type.getElementType(), strides));
  };
  auto zeroPart = [&](int64_t begin, int64_t end) {
    SmallVector<int64_t> partSizes = sizes;
    partSizes[dim] = end - begin;
    return begin == end || zero(view(begin, partSizes, strides));
  };
  bool isOuter = llvm::all_of(ArrayRef(sizes).take_front(dim),
                              [](int64_t size) { return size == 1; }) &&
                 aten::isDense(type) && step == 1;
  if (base) {
    if (!copy(base, output()))
      return false;
  } else if (isOuter) {
    zeroPart(0, start) && zeroPart(end, size);
  } else if (!zero(output())) {
    return false;
  }
  return getTensorType(source).getNumElements() == 0 ||
         copy(source, view(start, windowSizes, windowStrides));
}

/// What fills `self` with draws, of the output. Then nobody may read `self`,
/// nor need it be there.
bool Selector::selectDraw() {
  std::string_view callee = launch.getCallee().getFacts()->drawOverload;
  aten::ArgsAttr args = launch.getArgs();
  Value self = getTensor(0, "self");
  if (!self || args.getNumPositional() == 0)
    return false;
  LaunchOp::create(
      builder, launch.getLoc(),
      aten::OpNameAttr::get(builder.getContext(),
                            StringRef(callee.data(), callee.size())),
      aten::ArgsAttr::get(builder.getContext(), args.getValues().drop_front(),
                          args.getKeywords()),
      launch.getInputs().drop_front(), output(), DenseBoolArrayAttr(),
      launch.getScopeAttr(), launch.getRole(), launch.getStream());
  launch.getInputsMutable().erase(0);
  auto allocation =
      self.hasOneUse() ? dyn_cast<LaunchOp>(*self.user_begin()) : LaunchOp();
  if (allocation && allocation.getCallee().getName().starts_with("empty"))
    allocation.erase();
  return true;
}

bool Selector::selectEquivalent(Equivalent equivalent) {
  switch (equivalent) {
  case Equivalent::None:
    return false;
  case Equivalent::Copy:
    return copy(getTensor(0, "self"), output());
  case Equivalent::CopySource:
    return copy(getTensor(1, "src"), output());
  case Equivalent::Fill:
    return selectFill();
  case Equivalent::ScalarTensor:
    launchInstead("fill_.Scalar", get(0, "s"), {}, output());
    return true;
  case Equivalent::Embedding:
    return selectEmbedding();
  case Equivalent::SliceBackward:
    return selectWindow(getTensor(0, "grad_output"), {}, {},
                        getInt(2, "dim", 0), getInt(3, "start", 0),
                        getInt(5, "step", 1));
  case Equivalent::SelectBackward: {
    int64_t index = getInt(3, "index", 0);
    return selectWindow(getTensor(0, "grad_output"), {}, index,
                        getInt(2, "dim", 0), index, 1);
  }
  case Equivalent::SliceScatter:
    return selectWindow(getTensor(1, "src"), getTensor(0, "self"), {},
                        getInt(2, "dim", 0), getInt(3, "start", 0),
                        getInt(5, "step", 1));
  case Equivalent::SelectScatter: {
    int64_t index = getInt(3, "index", 0);
    return selectWindow(getTensor(1, "src"), getTensor(0, "self"), index,
                        getInt(2, "dim", 0), index, 1);
  }
  case Equivalent::TensorScalar:
    launch.setCalleeAttr(aten::OpNameAttr::get(
        builder.getContext(), (name().split('.').first + ".out").str()));
    return true;
  case Equivalent::MeanAsSum:
    return selectMean();
  case Equivalent::Power:
    return selectPower();
  case Equivalent::Draw:
    return selectDraw();
  }
  llvm_unreachable("covered switch");
}

//===----------------------------------------------------------------------===//
// Out overloads
//===----------------------------------------------------------------------===//

/// What is needed of an out overload; found once for each operator.
const Selector::OutOverload &Selector::getOutOverload(const OpFacts &facts) {
  auto [found, isNew] = outOverloads.try_emplace(&facts);
  OutOverload &overload = found->second;
  if (!isNew ||
      (isCUDA ? facts.outKernelCUDA : facts.outKernelCPU) != OutKernel::Own)
    return overload;
  const OpFacts *out = operators::lookupOpFacts(facts.outOverload);
  if (!out)
    return overload;
  if (auto schema = operators::parseOperatorSchema(out->schema)) {
    overload.name = aten::OpNameAttr::get(
        builder.getContext(), StringRef(out->name.data(), out->name.size()));
    for (const auto &argument : schema->arguments)
      overload.arguments.insert(argument.name);
  }
  return overload;
}

/// The same call of the overload that writes its results, which is left
/// without what the results say themselves.
bool Selector::selectOutOverload(const OpFacts &facts) {
  const OutOverload &overload = getOutOverload(facts);
  if (!overload.name || launch.getPresent())
    return false;
  auto isRowMajor = [](Value buffer) {
    return aten::isDense(getTensorType(buffer));
  };
  if (!facts.keepsStrides && !llvm::all_of(launch.getOutputs(), isRowMajor))
    return false;
  aten::ArgsAttr args = launch.getArgs();
  auto isKnown = [&](StringAttr keyword) {
    return overload.arguments.contains(keyword.getValue());
  };
  if (!llvm::all_of(args.getKeywords(), isKnown)) {
    SmallVector<Attribute> values(
        args.getValues().take_front(args.getNumPositional()));
    SmallVector<StringAttr> keywords;
    for (auto [keyword, value] :
         llvm::zip_equal(args.getKeywords(),
                         args.getValues().drop_front(args.getNumPositional())))
      if (isKnown(keyword)) {
        keywords.push_back(keyword);
        values.push_back(value);
      }
    launch.setArgsAttr(
        aten::ArgsAttr::get(builder.getContext(), values, keywords));
  }
  launch.setCalleeAttr(overload.name);
  return true;
}

LogicalResult Selector::run(LaunchOp op) {
  launch = op;
  const OpFacts *facts = launch.getCallee().getFacts();
  if (!facts || facts->isMutating()) // unknown, or chosen already
    return success();
  if (facts->safety == operators::Safety::Never)
    return launch.emitError("operator '")
           << name() << "' is not one that a plan may run"
           << (facts->isRandom ? ": it draws random numbers, but takes no "
                                 "generator; make what is drawn an input"
                               : "");
  builder.setInsertionPoint(launch);
  if (launch.getOutputs().size() == 1 && !launch.getPresent() &&
      selectEquivalent(facts->equivalent)) {
    if (launch.getCallee().getFacts() == facts)
      launch.erase();
    return success();
  }
  if (selectOutOverload(*facts))
    return success();
  remark::missed(launch.getLoc(), remark::RemarkOpts::name("hooked").category(
                                      "plan-select-kernels"))
      << remark::metric("Operator", name())
      << remark::reason("no kernel of it writes its results in place");
  return success();
}

struct SelectKernels : impl::SelectKernelsBase<SelectKernels> {
  void runOnOperation() override {
    ModuleOp plan = getOperation();
    Selector selector(plan);
    for (auto program : plan.getBody().front().getOps<ProgramOp>())
      for (auto launch : llvm::make_early_inc_range(
               program.getBody().front().getOps<LaunchOp>()))
        if (failed(selector.run(launch)))
          return signalPassFailure();
    tidyBuffers(plan);
  }
};
} // namespace
} // namespace fsdp::plan
