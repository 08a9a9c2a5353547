//===- FSDPDialect.cpp - The fsdp dialect ---------------------------------===//
//
// Registration, and verification of the roles of arguments and results.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

#include <cmath>

using namespace mlir;

#include "fsdp/Dialect/FSDP/IR/FSDPDialect.cpp.inc"
#include "fsdp/Dialect/FSDP/IR/FSDPEnums.cpp.inc"
#include "fsdp/Dialect/FSDP/IR/FSDPInterfaces.cpp.inc"

namespace fsdp {

void FSDPDialect::initialize() {
  registerAttributes();
  registerTypes();
  addOperations<
#define GET_OP_LIST
#include "fsdp/Dialect/FSDP/IR/FSDPOps.cpp.inc"
      >();
}

static constexpr std::pair<MeasureKind, double> normOrders[] = {
    {MeasureKind::SquaredNorm, 2},
    {MeasureKind::AbsSum, 1},
    {MeasureKind::AbsMax, std::numeric_limits<double>::infinity()}};

SyncBuffers getSyncBuffers(Operation *program) {
  auto name =
      program->getAttrOfType<StringAttr>(FSDPDialect::getSyncBuffersAttrName());
  return symbolizeSyncBuffers(name ? name.getValue() : "")
      .value_or(SyncBuffers::None);
}

ClipGradNorm getClipGradNorm(Operation *program) {
  auto numbers = program->getAttrOfType<DenseF64ArrayAttr>(
      FSDPDialect::getClipGradNormAttrName());
  if (!numbers || numbers.size() != 2 || !std::isfinite(numbers[0]) ||
      numbers[0] <= 0)
    return {};
  for (auto [kind, order] : normOrders)
    if (numbers[1] == order)
      return {numbers[0], kind};
  return {};
}

Attribute getAttribute(const ClipGradNorm &clip, MLIRContext *context) {
  for (auto [kind, order] : normOrders)
    if (clip.kind == kind)
      return DenseF64ArrayAttr::get(context, {clip.maxNorm, order});
  llvm_unreachable("not a norm");
}

GradScaler getGradScaler(Operation *program) {
  auto numbers = program->getAttrOfType<DenseF64ArrayAttr>(
      FSDPDialect::getGradScalerAttrName());
  if (!numbers || numbers.size() != 4 ||
      !(numbers[0] > 0 && std::isfinite(numbers[0])) ||
      !(numbers[1] > 1 && std::isfinite(numbers[1])) ||
      !(numbers[2] > 0 && numbers[2] < 1) || !(numbers[3] >= 1) ||
      numbers[3] > std::numeric_limits<int32_t>::max())
    return {};
  return {numbers[0], numbers[1], numbers[2], int64_t(numbers[3])};
}

Attribute getAttribute(const GradScaler &scaler, MLIRContext *context) {
  return DenseF64ArrayAttr::get(context, {scaler.initScale, scaler.growthFactor,
                                          scaler.backoffFactor,
                                          double(scaler.growthInterval)});
}

static LogicalResult misplaced(Operation *op, NamedAttribute attr,
                               StringRef place) {
  return op->emitOpError("attribute ")
         << attr.getName() << " does not stand on " << place;
}

static LogicalResult wrongKind(Operation *op, NamedAttribute attr,
                               StringRef expected) {
  return op->emitOpError("expected attribute ")
         << attr.getName() << " to be " << expected << ", got "
         << attr.getValue();
}

/// The check that arguments and results share.
static LogicalResult verifyState(Operation *op, NamedAttribute attr,
                                 Type type) {
  auto state = dyn_cast<StateAttr>(attr.getValue());
  if (!state)
    return wrongKind(op, attr, "a state of a unit");
  auto check = [&](bool isRight, StringRef expected) -> LogicalResult {
    if (!isRight)
      return op->emitOpError("expected a ")
             << expected << " as " << state << ", got " << type;
    if (!SymbolTable::lookupNearestSymbolFrom<UnitOp>(op, state.getUnit()))
      return op->emitOpError("no unit is called '")
             << state.getUnit().getValue() << "', of which " << state << " is";
    return success();
  };
  if (state.getKind() == StateAttr::getUnshardedGradientKind())
    return check(isa<RankedTensorType>(type), "tensor");
  if (state.getKind() == StateAttr::getUnshardedParameterKind())
    return check(isa<GatheredType>(type), "gathered unit");
  return check(isa<ShardType>(type), "shard");
}

static LogicalResult verifyHyper(Operation *op, NamedAttribute attr,
                                 Type type) {
  if (cast<IntegerAttr>(attr.getValue()).getInt() < 0)
    return wrongKind(op, attr, "the number of a decay group");
  if (type != getHyperType(op->getContext()))
    return op->emitOpError("expected hyper-parameters of type ")
           << getHyperType(op->getContext()) << ", got " << type;
  return success();
}

LogicalResult FSDPDialect::verifyOperationAttribute(Operation *op,
                                                    NamedAttribute attr) {
  if (attr.getName() == getCostAttrName() ||
      attr.getName() == getIssueAttrName()) {
    auto number = dyn_cast<IntegerAttr>(attr.getValue());
    return number && number.getType().isInteger(64) && number.getInt() >= 0
               ? success()
               : wrongKind(op, attr, "an i64 of at least 0");
  }
  if (attr.getName() == getLinksAttrName()) {
    auto parts = dyn_cast<DenseI32ArrayAttr>(attr.getValue());
    if (!isa<CollectiveOpInterface>(op))
      return misplaced(op, attr, "an operation other than a collective");
    bool isRight = parts && parts.size() == 2 &&
                   llvm::all_of(parts.asArrayRef(), [](int32_t part) {
                     return part >= 0 && part <= 1024;
                   });
    return isRight ? success() : wrongKind(op, attr, "two i32 from 0 to 1024");
  }
  if (attr.getName() == getAfterAttrName())
    return isa<DenseI64ArrayAttr>(attr.getValue())
               ? success()
               : wrongKind(op, attr, "an array of i64");
  if (attr.getName() == getMicroBatchesAttrName()) {
    auto number = dyn_cast<IntegerAttr>(attr.getValue());
    if (!isa<ModuleOp>(op))
      return misplaced(op, attr, "an operation other than a module");
    return number && number.getType().isInteger(64) && number.getInt() >= 1
               ? success()
               : wrongKind(op, attr, "an i64 of at least 1");
  }
  if (attr.getName() == getMeanLossAttrName()) {
    if (!isa<ModuleOp>(op) || !op->hasAttr(getMicroBatchesAttrName()))
      return misplaced(op, attr,
                       "an operation other than a module with micro-batches");
    return isa<UnitAttr>(attr.getValue())
               ? success()
               : wrongKind(op, attr, "without a value");
  }
  if (attr.getName() == getReductionsAttrName()) {
    auto list = dyn_cast<ArrayAttr>(attr.getValue());
    if (!isa<UnitOp>(op))
      return misplaced(op, attr, "an operation other than a unit");
    return list && llvm::all_of(list, llvm::IsaPred<ReductionAttr>)
               ? success()
               : wrongKind(op, attr, "a list of reductions");
  }
  const std::pair<bool, StringRef> *row = nullptr;
  auto names = dyn_cast<ArrayAttr>(attr.getValue());
  bool isMark = isa<UnitAttr>(attr.getValue());
  auto contention = dyn_cast<IntegerAttr>(attr.getValue());
  const std::pair<StringRef, std::pair<bool, StringRef>> ofFunctions[] = {
      {getInitAttrName(), {isMark, "without a value"}},
      {getSharedCoreAttrName(), {isMark, "without a value"}},
      {getContentionAttrName(),
       {contention && contention.getType().isSignlessInteger(64) &&
            contention.getInt() > 0 && contention.getInt() <= 8192,
        "an i64 from 1 to 8192"}},
      {getSourceAttrName(),
       {isa<FlatSymbolRefAttr>(attr.getValue()), "the symbol of a function"}},
      {getPartAttrName(), {isa<PartAttr>(attr.getValue()), "a part of a step"}},
      {getNoDecayAttrName(),
       {names && llvm::all_of(names, llvm::IsaPred<StringAttr>),
        "the names of parameters"}},
      {getSyncBuffersAttrName(),
       {getSyncBuffers(op) != SyncBuffers::None, "\"mean\" or \"broadcast\""}},
      {getClipGradNormAttrName(),
       {bool(getClipGradNorm(op)),
        "a finite norm above 0 and an order of 1, 2 or infinity"}},
      {getGradScalerAttrName(),
       {bool(getGradScaler(op)),
        "an initial scale above 0, a factor of growth above 1, one of backoff "
        "below 1, and an interval"}}};
  for (const auto &[name, check] : ofFunctions)
    if (attr.getName() == name)
      row = &check;
  if (!row)
    return misplaced(op, attr, "an operation");
  if (!isa<FunctionOpInterface>(op))
    return misplaced(op, attr, "an operation other than a function");
  auto [isRight, expected] = *row;
  return isRight ? success() : wrongKind(op, attr, expected);
}

LogicalResult FSDPDialect::verifyRegionArgAttribute(Operation *op, unsigned,
                                                    unsigned index,
                                                    NamedAttribute attr) {
  // A declaration has arguments, but no block.
  auto func = dyn_cast<FunctionOpInterface>(op);
  if (!func)
    return misplaced(op, attr, "an argument other than a function's");
  Type type = func.getArgumentTypes()[index];
  if (attr.getName() == getStateAttrName())
    return verifyState(op, attr, type);
  if (attr.getName() == getHyperAttrName())
    return isa<IntegerAttr>(attr.getValue())
               ? verifyHyper(op, attr, type)
               : wrongKind(op, attr, "the number of a decay group");
  if (attr.getName() == getNoDecayAttrName()) {
    if (!isa<UnitAttr>(attr.getValue()))
      return wrongKind(op, attr, "without a value");
    return func.getArgAttr(index, getHyperAttrName())
               ? success()
               : misplaced(op, attr, "anything but hyper-parameters");
  }
  if (attr.getName() == getResultAttrName())
    return isa<IntegerAttr>(attr.getValue())
               ? success()
               : wrongKind(op, attr, "an integer");
  if (attr.getName() == getRootAttrName() ||
      attr.getName() == getIgnoredAttrName()) {
    if (!isa<UnitAttr>(attr.getValue()))
      return wrongKind(op, attr, "without a value");
    return func.getArgAttr(index, getUnitAttrName())
               ? success()
               : misplaced(op, attr, "anything but a parameter of a unit");
  }
  if (attr.getName() == getUnitAttrName())
    return isa<StringAttr>(attr.getValue())
               ? success()
               : wrongKind(op, attr, "the name of a unit");
  return misplaced(op, attr, "an argument");
}

LogicalResult FSDPDialect::verifyRegionResultAttribute(Operation *op, unsigned,
                                                       unsigned index,
                                                       NamedAttribute attr) {
  if (attr.getName() != getStateAttrName())
    return misplaced(op, attr, "a result");
  return verifyState(op, attr,
                     cast<FunctionOpInterface>(op).getResultTypes()[index]);
}

} // namespace fsdp
