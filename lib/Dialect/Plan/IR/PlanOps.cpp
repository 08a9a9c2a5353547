//===- PlanOps.cpp - Tables of a plan -------------------------------------===//
//
// Verification and syntax of the module, units, communicators and buffers.
//
//===----------------------------------------------------------------------===//

#include "CommandSyntax.h"

#include "fsdp/Dialect/ATen/IR/Limits.h"
#include "fsdp/PlanFile/PlanFile.h"

#include "mlir/IR/Builders.h"

using namespace mlir;

// Both dialects have a view, a unit, ...: here these are of this one.
namespace fsdp::plan {

//===----------------------------------------------------------------------===//
// ModuleOp
//===----------------------------------------------------------------------===//

static ParseResult parseAxes(OpAsmParser &parser, ArrayAttr &axes) {
  SmallVector<Attribute> elements;
  auto parseAxis = [&]() -> ParseResult {
    std::string name;
    int64_t size = 0;
    if (parser.parseString(&name) || parser.parseEqual() ||
        parser.parseInteger(size))
      return failure();
    elements.push_back(AxisAttr::get(
        parser.getContext(), parser.getBuilder().getStringAttr(name), size));
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseAxis))
    return failure();
  axes = parser.getBuilder().getArrayAttr(elements);
  return success();
}

static void printAxes(OpAsmPrinter &printer, Operation *, ArrayAttr axes) {
  printer << '[';
  llvm::interleaveComma(axes.getAsRange<AxisAttr>(), printer,
                        [&](AxisAttr axis) {
                          printer.printString(axis.getName().getValue());
                          printer << " = " << axis.getSize();
                        });
  printer << ']';
}

int64_t ModuleOp::getNumRanks() {
  int64_t ranks = 1;
  for (auto axis : getMesh().getAsRange<AxisAttr>())
    ranks *= axis.getSize();
  return ranks;
}

LogicalResult ModuleOp::verify() {
  int64_t ranks = 1;
  for (auto axis : getMesh().getAsRange<AxisAttr>())
    if (axis.getSize() < 1 || llvm::MulOverflow(ranks, axis.getSize(), ranks) ||
        ranks > std::numeric_limits<int32_t>::max())
      return emitOpError("C2: expected axes of positive sizes, and less than "
                         "2^31 ranks, got ")
             << axis;
  DenseSet<std::pair<Attribute, Attribute>> communicators;
  for (Operation &op : getBody().front()) {
    if (!isa<CommunicatorOp, UnitOp, BufferOp, ViewOp, ProgramOp, MeaningOp>(
            op))
      return emitOpError("C1: expected only tables and programs in the body, "
                         "got '")
             << op.getName() << "'";
    if (auto communicator = dyn_cast<CommunicatorOp>(op))
      if (!communicators
               .insert(
                   {communicator.getAxesAttr(), communicator.getStreamAttr()})
               .second)
        return communicator.emitOpError("C3: expected other axes or another "
                                        "stream than those of an earlier "
                                        "communicator");
  }
  return success();
}

//===----------------------------------------------------------------------===//
// CommunicatorOp
//===----------------------------------------------------------------------===//

int64_t CommunicatorOp::getGroupSize() {
  ArrayAttr mesh = cast<ModuleOp>((*this)->getParentOp()).getMesh();
  int64_t size = 1;
  for (int64_t axis : getAxes())
    size *= cast<AxisAttr>(mesh[axis]).getSize();
  return size;
}

LogicalResult CommunicatorOp::verify() {
  int64_t numAxes = cast<ModuleOp>((*this)->getParentOp()).getMesh().size();
  int64_t next = 0;
  for (int64_t axis : getAxes()) {
    if (axis < next || axis >= numAxes)
      return emitOpError("C1: expected ascending axes below ")
             << numAxes << ", got " << axis;
    next = axis + 1;
  }
  if (getAxes().empty())
    return emitOpError("C1: expected at least one axis, got none");
  return success();
}

//===----------------------------------------------------------------------===//
// UnitOp
//===----------------------------------------------------------------------===//

int64_t UnitOp::getShards() {
  ArrayAttr mesh = cast<ModuleOp>((*this)->getParentOp()).getMesh();
  int64_t shards = 1;
  for (int64_t axis : getShardAxes())
    shards *= cast<AxisAttr>(mesh[axis]).getSize();
  return shards;
}

LogicalResult UnitOp::verify() {
  int64_t numAxes = cast<ModuleOp>((*this)->getParentOp()).getMesh().size();
  llvm::SmallDenseSet<int64_t> seen;
  for (ArrayRef<int64_t> axes : {getShardAxes(), getReplicateAxes()}) {
    for (int64_t axis : axes)
      if (axis < 0 || axis >= numAxes || !seen.insert(axis).second)
        return emitOpError("C1: expected distinct axes below ")
               << numAxes << ", got " << axis;
    if (!llvm::is_sorted(axes))
      return emitOpError("C1: expected ascending axes");
  }
  int64_t shards = getShards();
  if (shards <= 0 || getLayout().getPadded() % shards != 0)
    return emitOpError("C2: expected a padded length that is a multiple of ")
           << shards << " shards, got " << getLayout().getPadded();
  return success();
}

//===----------------------------------------------------------------------===//
// BufferOp
//===----------------------------------------------------------------------===//

void BufferOp::build(OpBuilder &builder, OperationState &state, BufferRole role,
                     RankedTensorType type) {
  auto &properties = state.getOrAddProperties<Properties>();
  properties.role = BufferRoleAttr::get(builder.getContext(), role);
  properties.type = TypeAttr::get(type);
  state.addTypes(BufferType::get(builder.getContext()));
}

void BufferOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  if (auto name = dyn_cast<NameLoc>(getLoc()))
    setName(getBuffer(), name.getName().getValue());
}

bool BufferOp::isPersistent() {
  switch (getRole()) {
  case BufferRole::Transient:
  case BufferRole::Gradient:
  case BufferRole::Output:
    return false;
  case BufferRole::Shard:
  case BufferRole::OptimizerState:
  case BufferRole::ModelBuffer:
  case BufferRole::Constant:
  case BufferRole::Result:
  case BufferRole::Input:
  case BufferRole::Loss:
  case BufferRole::Hyper:
  case BufferRole::Accumulator:
  case BufferRole::Unsharded:
    return true;
  }
  llvm_unreachable("covered switch");
}

bool BufferOp::isReadAfterProgram() {
  return getRole() != BufferRole::Transient;
}

/// Sizes are known and the layout has no offset.
static LogicalResult verifyWindow(Operation *op, StringRef label,
                                  RankedTensorType type,
                                  bool mayHaveOffset = false) {
  if (!aten::hasKnownLayout(type))
    return op->emitOpError()
           << label << ": expected a known layout, got " << type;
  if (!aten::isElementType(type.getElementType()))
    return op->emitOpError()
           << label << ": expected elements of PyTorch's types, got " << type;
  if (aten::isTooLarge(type))
    return op->emitOpError() << label << ": expected at most "
                             << aten::mostElements << " elements, got " << type;
  if (int64_t offset = aten::getOffset(type); offset && !mayHaveOffset)
    return op->emitOpError()
           << label << ": expected a layout without offset, got " << offset;
  return success();
}

LogicalResult BufferOp::verify() {
  bool isPlaced = getRole() != BufferRole::Transient || getOffset().has_value();
  if (failed(verifyWindow(*this, "C1", getTensorType(), !isPlaced)))
    return failure();

  StringRef role = stringifyBufferRole(getRole());
  auto check = [&](StringRef label, bool expected, bool found,
                   StringRef what) -> LogicalResult {
    if (expected == found)
      return success();
    return emitOpError() << label << ": expected " << (expected ? "" : "no ")
                         << what << " of a buffer of role '" << role << "'";
  };
  bool isState = getRole() == BufferRole::OptimizerState ||
                 getRole() == BufferRole::Accumulator;
  bool ofUnit = isState || getRole() == BufferRole::Shard ||
                getRole() == BufferRole::Gradient ||
                getRole() == BufferRole::Unsharded;
  bool ofUser =
      getRole() == BufferRole::Input || getRole() == BufferRole::Output;
  bool ofProgram = ofUser || getRole() == BufferRole::Loss;
  bool isHyper = getRole() == BufferRole::Hyper;
  bool isModelBuffer = getRole() == BufferRole::ModelBuffer;
  bool isConstant = getRole() == BufferRole::Constant;
  if (failed(check("C2", ofUnit || ofProgram, getOwner().has_value(),
                   ofProgram ? "program" : "unit")) ||
      failed(check("C3", ofUser || isHyper, getIndex().has_value(), "number")))
    return failure();
  if (isHyper && (getTensorType() != getHyperType(getContext()) ||
                  getSpace() != Space::Host))
    return emitOpError("C6: expected hyper-parameters to be a ")
           << getHyperType(getContext()) << " on the host";
  if (!isModelBuffer &&
      failed(check("C4", isConstant, getValue().has_value(), "value")))
    return failure();
  if (isHyper && getName() && *getName() != StringRef(planfile::noDecay))
    return emitOpError("C5: expected no name of a decay group but '")
           << StringRef(planfile::noDecay) << "', got '" << *getName() << "'";
  if (!isModelBuffer && !isHyper && getRole() != BufferRole::Input &&
      failed(check("C5", isState, getName().has_value(), "name")))
    return failure();

  if (std::optional<ElementsAttr> value = getValue()) {
    auto type = dyn_cast<RankedTensorType>(value->getType());
    if (!type || type.getShape() != getTensorType().getShape() ||
        type.getElementType() != getTensorType().getElementType())
      return emitOpError("C4: expected a value like ")
             << getTensorType() << ", got one of type " << value->getType();
  }
  return success();
}

LogicalResult BufferOp::verifySymbolUses(SymbolTableCollection &symbols) {
  FlatSymbolRefAttr owner = getOwnerAttr();
  if (!owner)
    return success();
  bool isOfUnit = getRole() == BufferRole::Shard ||
                  getRole() == BufferRole::OptimizerState ||
                  getRole() == BufferRole::Accumulator ||
                  getRole() == BufferRole::Unsharded ||
                  getRole() == BufferRole::Gradient;
  Operation *found = symbols.lookupNearestSymbolFrom(*this, owner);
  if (isOfUnit ? isa_and_nonnull<UnitOp>(found)
               : isa_and_nonnull<ProgramOp>(found))
    return success();
  return emitOpError("C2: no ") << (isOfUnit ? "unit" : "program")
                                << " is called '" << owner.getValue() << "'";
}

//===----------------------------------------------------------------------===//
// ViewOp
//===----------------------------------------------------------------------===//

void ViewOp::build(OpBuilder &builder, OperationState &state, Value root,
                   int64_t offset, RankedTensorType type) {
  build(builder, state, BufferType::get(builder.getContext()), root,
        static_cast<uint64_t>(offset), type);
}

void ViewOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  if (auto name = dyn_cast<NameLoc>(getLoc()))
    setName(getView(), name.getName().getValue());
}

LogicalResult ViewOp::verify() {
  auto root = getRoot().getDefiningOp<BufferOp>();
  if (!root)
    return emitOpError("C1: expected a buffer that owns bytes, got a view");
  // A root that stands after its view is not verified yet.
  if (!aten::isElementType(root.getTensorType().getElementType()))
    return emitOpError("C1: expected a buffer of numbers, got ")
           << root.getTensorType();
  if (failed(verifyWindow(*this, "C2", getTensorType())))
    return failure();
  int64_t begin = getOffset(), extent = getExtent(getTensorType());
  int64_t size = getExtent(root.getTensorType());
  if (begin < 0 || begin > size - extent)
    return emitOpError("C3: expected a window inside of ")
           << size << " bytes, got [" << begin << ", "
           << uint64_t(begin) + uint64_t(extent) << ")";
  return success();
}

//===----------------------------------------------------------------------===//
// ProgramOp
//===----------------------------------------------------------------------===//

LogicalResult ProgramOp::verify() {
  for (Operation &op : getBody().front())
    if (!isa<CommandOpInterface>(op))
      return emitOpError("C1: expected only commands in the body, got '")
             << op.getName() << "'";
  return success();
}

} // namespace fsdp::plan

//===----------------------------------------------------------------------===//
// Generated
//===----------------------------------------------------------------------===//

#define GET_OP_CLASSES
#include "fsdp/Dialect/Plan/IR/PlanOps.cpp.inc"
