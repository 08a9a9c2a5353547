//===- Costs.cpp - How long the operations of a step take -----------------===//
//
// Models of the cost interface: floating-point operations and bytes of each
// kind of operation, by the formulas of the op-fact table.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Costs.h"

#include "fsdp/Dialect/ATen/IR/ATen.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"
#include "fsdp/Operators/OpFacts.h"

#include "llvm/ADT/STLExtras.h"

#include <numeric>

using namespace mlir;
using namespace fsdp;
using operators::CostClass;
using operators::FlopFormula;
using planner::Communication;
using planner::Computation;

#include "fsdp/Analysis/CostOpInterface.cpp.inc"

//===----------------------------------------------------------------------===//
// Sizes
//===----------------------------------------------------------------------===//

/// The elements of a tensor; 0 of what has no static sizes.
static double getNumel(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.hasStaticShape() ? double(tensor.getNumElements())
                                           : 0.0;
}

static double getBytes(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor ? getNumel(type) *
                      double(aten::getItemSize(tensor.getElementType()))
                : 0.0;
}

template <typename Range> static double addBytes(Range types) {
  return std::accumulate(
      types.begin(), types.end(), 0.0,
      [](double sum, Type type) { return sum + getBytes(type); });
}

/// A dimension of a tensor, counted from the back; 1 if there is none.
static double getSize(Value value, int64_t fromBack) {
  auto tensor = dyn_cast<RankedTensorType>(value.getType());
  if (!tensor || tensor.getRank() < fromBack ||
      tensor.isDynamicDim(tensor.getRank() - fromBack))
    return 1;
  return double(tensor.getDimSize(tensor.getRank() - fromBack));
}

static planner::FloatType getFloatType(Type type) {
  if (auto tensor = dyn_cast<RankedTensorType>(type))
    type = tensor.getElementType();
  if (type.isF64())
    return planner::FloatType::F64;
  if (type.isBF16())
    return planner::FloatType::BF16;
  return type.isF16() ? planner::FloatType::F16 : planner::FloatType::F32;
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

/// The argument `name` of the schema; null if it is not given.
static OpFoldResult getArgument(aten::CallOp call, StringRef schema,
                                StringRef name) {
  OpFoldResult value = call.getArg(name);
  SmallVector<StringRef> arguments;
  schema.take_until([](char c) { return c == '>'; }).split(arguments, ", ");
  for (unsigned i = 0;
       !value && i < std::min<size_t>(arguments.size(), call.getNumArgs()); ++i)
    if (arguments[i]
            .take_until([](char c) { return c == '='; })
            .ends_with((" " + name).str()))
      value = call.getArg(i);
  return value;
}

/// True if the argument `name` of the schema is given, and true.
static bool isTrue(aten::CallOp call, StringRef schema, StringRef name) {
  OpFoldResult value = getArgument(call, schema, name);
  auto flag = dyn_cast_or_null<BoolAttr>(dyn_cast_or_null<Attribute>(value));
  return flag && flag.getValue();
}

/// Whether attention is told by a tensor what is masked.
static bool hasMask(aten::CallOp call, StringRef schema) {
  return isa_and_present<Value>(getArgument(call, schema, "attn_mask")) ||
         isa_and_present<Value>(getArgument(call, schema, "attn_bias"));
}

static double getFlops(aten::CallOp call, const operators::OpFacts &facts) {
  OperandRange inputs = call.getInputs();
  double result =
      call.getNumResults() ? getNumel(call.getResult(0).getType()) : 0;
  auto attention = [&](unsigned query, double factor) -> double {
    if (inputs.size() < query + 2)
      return 0;
    double flops = factor * getNumel(inputs[query].getType()) *
                   getSize(inputs[query + 1], 2);
    return isTrue(call, facts.schema, "is_causal") ? flops / 2 : flops;
  };
  auto largest = [&] {
    double most = result;
    for (Value input : inputs)
      most = std::max(most, getNumel(input.getType()));
    return most;
  };
  auto convolution = [&](unsigned input, double output) -> double {
    if (inputs.size() < input + 2)
      return 0;
    double weight = getNumel(inputs[input + 1].getType());
    auto type = dyn_cast<RankedTensorType>(inputs[input + 1].getType());
    double channels = type && type.getRank() ? double(type.getDimSize(0)) : 1;
    return 2 * output * weight / std::max(channels, 1.0);
  };
  switch (facts.flops) {
  case FlopFormula::None:
    return 0;
  case FlopFormula::PerElement:
    return largest();
  case FlopFormula::PerElementMany:
    return 10 * largest();
  case FlopFormula::MatMul:
    return inputs.empty() ? 0 : 2 * result * getSize(inputs[0], 1);
  case FlopFormula::AddMatMul:
    return inputs.size() < 2 ? 0 : 2 * result * getSize(inputs[1], 1);
  case FlopFormula::Attention:
    return attention(0, 4);
  case FlopFormula::AttentionBackward:
    return attention(1, 10);
  case FlopFormula::Convolution:
    return convolution(0, result);
  case FlopFormula::ConvolutionBackward: {
    // Of the input and the weight: that of the bias is a sum.
    auto gradients = call.getOutputs().take_front(
        std::min<size_t>(call.getOutputs().size(), 2));
    double products = llvm::count_if(
        gradients, [](Value output) { return getNumel(output.getType()) > 0; });
    return inputs.empty()
               ? 0
               : products * convolution(1, getNumel(inputs[0].getType()));
  }
  }
  return 0;
}

static double getBytes(aten::CallOp call, const operators::OpFacts *facts) {
  double results = addBytes(call.getResultTypes());
  double operands = addBytes(call.getInputs().getTypes());
  if (!facts || facts->cost == CostClass::Opaque)
    return 10 * (operands + results); // not known: count it as expensive
  if (facts->cost == CostClass::Fill)
    return results;
  if (facts->cost != CostClass::Gather)
    return operands + results;
  // Of the table, only as much is read as there are results.
  double table = 0;
  for (Value input : call.getInputs())
    table = std::max(table, getBytes(input.getType()));
  return operands - table + std::min(table, results) + results;
}

namespace {

struct CallModel : CostOpInterface::ExternalModel<CallModel, aten::CallOp> {
  Work getWork(Operation *op, SymbolTableCollection &) const {
    auto call = cast<aten::CallOp>(op);
    const operators::OpFacts *facts = call.getFacts();
    if (facts && (facts->isView || facts->cost == CostClass::Metadata))
      return {};
    Computation work;
    work.bytes = getBytes(call, facts);
    if (facts) {
      work.flops = getFlops(call, *facts);
      if (facts->cost == CostClass::Gemm ||
          facts->cost == CostClass::Convolution)
        work.kind = Computation::Kind::Matrix;
      else if (facts->cost == CostClass::Attention)
        work.kind = hasMask(call, facts->schema)
                        ? Computation::Kind::MaskedAttention
                        : Computation::Kind::Attention;
    }
    if (call.getNumResults())
      work.type = getFloatType(call.getResult(0).getType());
    return work;
  }
};

//===----------------------------------------------------------------------===//
// Launches and updates
//===----------------------------------------------------------------------===//

/// Through a buffer; over one rank nothing is sent, so nothing is copied.
static bool isCopied(CollectiveOpInterface launch,
                     SymbolTableCollection &symbols) {
  return launch && launch.getCopy() &&
         !getRankGroup(launch, symbols).axes.empty();
}

/// A copied reduction copies the flat gradient into its buffer on the compute
/// stream, as soon as it is there.
struct FlattenModel
    : CostOpInterface::ExternalModel<FlattenModel, FlattenGradsOp> {
  Work getWork(Operation *op, SymbolTableCollection &symbols) const {
    Computation work;
    double flat = addBytes(op->getResultTypes());
    work.bytes = addBytes(op->getOperandTypes()) + flat;
    for (Operation *user : op->getUsers())
      if (isCopied(dyn_cast<CollectiveOpInterface>(user), symbols))
        work.bytes += 2 * flat;
    return work;
  }
};

/// A unit that was gathered into a buffer is copied out of it. (All units of a
/// buffer are, at the first wait of theirs; here each is at its own.)
struct WaitModel : CostOpInterface::ExternalModel<WaitModel, AsyncWaitOp> {
  Work getWork(Operation *op, SymbolTableCollection &symbols) const {
    auto wait = cast<AsyncWaitOp>(op);
    auto launch = wait.getFuture().getDefiningOp<CollectiveOpInterface>();
    if (!launch || !launch.isGather() || !isCopied(launch, symbols))
      return {};
    Computation work;
    work.bytes = 2 * double(getMemoryBytes(wait.getValue().getType()));
    return work;
  }
};

/// A copy of the piece.
struct PieceModel : CostOpInterface::ExternalModel<PieceModel, PieceOp> {
  Work getWork(Operation *op, SymbolTableCollection &) const {
    Computation work;
    work.bytes = 2 * double(getMemoryBytes(op->getResult(0).getType()));
    return work;
  }
};

/// A sum reads both terms and writes one.
struct AccumulateModel
    : CostOpInterface::ExternalModel<AccumulateModel, AccumulateOp> {
  Work getWork(Operation *op, SymbolTableCollection &) const {
    Computation work;
    work.bytes = 3 * double(getMemoryBytes(op->getResult(0).getType()));
    work.isOnHost = isOnHost(op->getResult(0).getType());
    return work;
  }
};

/// A measure reads the shard.
struct MeasureModel : CostOpInterface::ExternalModel<MeasureModel, MeasureOp> {
  Work getWork(Operation *op, SymbolTableCollection &) const {
    Computation work;
    Type shard = cast<MeasureOp>(op).getShard().getType();
    work.bytes = double(getMemoryBytes(shard));
    work.isOnHost = isOnHost(shard);
    return work;
  }
};

/// An update reads and writes the shard and each state, and reads the gradient.
template <typename UpdateOp>
struct UpdateModel
    : CostOpInterface::template ExternalModel<UpdateModel<UpdateOp>, UpdateOp> {
  Work getWork(Operation *op, SymbolTableCollection &) const {
    Computation work;
    for (TypeRange types :
         {TypeRange(op->getOperandTypes()), TypeRange(op->getResultTypes())})
      for (Type type : types)
        if (auto shard = dyn_cast<ShardType>(type))
          work.bytes += double(shard.getLocalNumel()) *
                        double(aten::getItemSize(shard.getElementType()));
    auto shard = cast<ShardType>(op->getResult(0).getType());
    work.flops = 12 * double(shard.getLocalNumel());
    work.isOnHost = shard.isOnHost();
    return work;
  }
};

planner::CollectiveKind convert(CollectiveKind kind) {
  switch (kind) {
  case CollectiveKind::AllGather:
    return planner::CollectiveKind::AllGather;
  case CollectiveKind::ReduceScatter:
    return planner::CollectiveKind::ReduceScatter;
  case CollectiveKind::AllReduce:
    return planner::CollectiveKind::AllReduce;
  }
  llvm_unreachable("not a kind");
}

/// Says where the ranks of a group are. Those that differ along the last axis
/// of the mesh are neighbours.
void place(RankGroup group, Communication &sent) {
  sent.span = 1;
  if (!group.mesh)
    return;
  int64_t stride = 1;
  for (auto axis : llvm::reverse(group.mesh.getAxes().getAsRange<AxisAttr>())) {
    if (llvm::is_contained(group.axes, axis)) {
      sent.span += (axis.getSize() - 1) * stride;
      if (sent.block == stride)
        sent.block *= axis.getSize();
    }
    stride *= axis.getSize();
  }
}

/// A collective, or a shard on its way between host and device.
template <typename LaunchOp>
struct LaunchModel
    : CostOpInterface::template ExternalModel<LaunchModel<LaunchOp>, LaunchOp> {
  Work getWork(Operation *op, SymbolTableCollection &symbols) const {
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    if (!collective)
      return planner::Transfer{
          double(getMemoryBytes(op->getResult(0).getType()))};
    RankGroup group = getRankGroup(collective, symbols);
    Communication sent{convert(collective.getKind()),
                       double(collective.getBytes()), group.getNumRanks(),
                       getCopiedBytes(collective, symbols)};
    place(group, sent);
    return sent;
  }

  /// What is copied on the stream of the launch: shards, cast into the buffer;
  /// and sums, out to their units if these are several.
  static double getCopiedBytes(CollectiveOpInterface collective,
                               SymbolTableCollection &symbols) {
    if (!isCopied(collective, symbols))
      return 0;
    Type source = collective->getOperand(0).getType();
    if (collective.isGather())
      return double(
          getMemoryBytes(source) +
          fsdp::getBytes(getLocalNumel(source), collective.getWireType()));
    return collective.getBucketAttr()
               ? 2 * double(getMemoryBytes(collective->getResult(0).getType()))
               : 0;
  }
};

} // namespace

template <template <typename> typename Model, typename... Ops>
static void attach(MLIRContext *context) {
  (Ops::template attachInterface<Model<Ops>>(*context), ...);
}

void fsdp::registerCostModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, aten::ATenDialect *) {
    aten::CallOp::attachInterface<CallModel>(*context);
  });
  registry.addExtension(+[](MLIRContext *context, FSDPDialect *) {
    FlattenGradsOp::attachInterface<FlattenModel>(*context);
    PieceOp::attachInterface<PieceModel>(*context);
    AccumulateOp::attachInterface<AccumulateModel>(*context);
    MeasureOp::attachInterface<MeasureModel>(*context);
    AsyncWaitOp::attachInterface<WaitModel>(*context);
    attach<UpdateModel, AdamWOp, SGDOp>(context);
    attach<LaunchModel, AsyncUnshardOp, AsyncReduceScatterOp, AsyncAllReduceOp,
           AsyncCopyOp>(context);
  });
}

planner::LinkUse fsdp::getLinks(Operation *op) {
  planner::LinkUse links = {};
  if (auto parts =
          op->getAttrOfType<DenseI32ArrayAttr>(FSDPDialect::getLinksAttrName()))
    llvm::copy(parts.asArrayRef(), links.begin());
  return links;
}

int64_t fsdp::getCost(Operation *op) {
  auto cost = op->getAttrOfType<IntegerAttr>(FSDPDialect::getCostAttrName());
  return cost ? cost.getInt() : 0;
}
