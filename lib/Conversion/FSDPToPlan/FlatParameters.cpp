//===- FlatParameters.cpp - Flat parameters and gradients -----------------===//
//
// A parameter is a window on the gathered unit, at its offset in the layout,
// and a gradient one on the flat gradient. That is laid out where it is reduced
// or kept, if it can be.
//
//===----------------------------------------------------------------------===//

#include "Lowering.h"

using namespace mlir;
using namespace fsdp;
using namespace fsdp::detail;

//===----------------------------------------------------------------------===//
// Parameters
//===----------------------------------------------------------------------===//

LogicalResult Lowering::lower(PieceOp op) {
  Location loc = op.getLoc();
  Value full = buffers.lookup(op.getFull());
  Value piece = addTransient(loc, getMemoryType(op.getPiece().getType()));
  if (FlatSymbolRefAttr communicator = tables.getCommunicator(
          llvm::to_vector(op.getAxes().getAsValueRange<StringAttr>()),
          Stream::Gather))
    plan::PieceOp::create(builder, loc, communicator.getValue(), full, piece,
                          op.getUnitAttr(), role, Stream::Compute);
  else
    copy(loc, full, piece, Stream::Compute);
  buffers[op.getPiece()] = piece;
  return success();
}

LogicalResult Lowering::lower(ViewOp op) {
  ParameterAttr parameter =
      tables.getLayout(op.getUnitAttr()).find(op.getParameter());
  auto type = cast<RankedTensorType>(op.getTensor().getType());
  int64_t offset =
      parameter.getOffset() * aten::getItemSize(type.getElementType());
  buffers[op.getTensor()] =
      tables.addView(op.getLoc(), buffers.lookup(op.getFull()), offset, type);
  return success();
}

//===----------------------------------------------------------------------===//
// Gradients
//===----------------------------------------------------------------------===//

/// Zeroes what no gradient is copied to.
void Lowering::zeroGaps(FlattenGradsOp op, Value flat, LayoutAttr layout) {
  Type elementType = plan::getTensorType(flat).getElementType();
  auto zero = [&](int64_t begin, int64_t end) {
    if (begin == end)
      return;
    Value gap = tables.addView(
        op.getLoc(), flat, begin * aten::getItemSize(elementType),
        RankedTensorType::get({end - begin}, elementType));
    plan::ZeroOp::create(builder, op.getLoc(), gap, role, Stream::Compute);
  };
  int64_t end = 0;
  for (auto [parameter, isPresent] :
       llvm::zip_equal(layout.getParameters(), op.getPresent())) {
    if (!isPresent)
      continue;
    zero(end, parameter.getOffset());
    end = parameter.getEnd();
  }
  zero(end, layout.getPadded());
}

/// Where a flat gradient is laid out at once: where it is reduced in place, or
/// where it waits for the next micro-batch; or in memory of its own.
Value Lowering::getFlatPlace(FlattenGradsOp op) {
  auto flatType = cast<RankedTensorType>(op.getFlat().getType());
  if (!op.getFlat().hasOneUse())
    return addTransient(op.getLoc(), flatType);
  OpOperand &use = *op.getFlat().use_begin();
  // Where the whole is reduced into a whole of the same type.
  if (auto reduce = dyn_cast<CollectiveOpInterface>(use.getOwner());
      reduce && reduce.getKind() == CollectiveKind::AllReduce &&
      !reduce.getCopy()) {
    if (getMemoryType(reduce->getResult(0).getType()) == flatType)
      return getReduced(reduce);
  }
  if (isa<func::ReturnOp>(use.getOwner()))
    if (auto state = func.getResultAttrOfType<StateAttr>(
            use.getOperandNumber(), FSDPDialect::getStateAttrName()))
      return tables.getState(op.getLoc(), state, flatType);
  return addTransient(op.getLoc(), flatType);
}

LogicalResult Lowering::lower(FlattenGradsOp op) {
  setPhase(aten::Phase::Backward);
  auto flatType = cast<RankedTensorType>(op.getFlat().getType());
  Type elementType = flatType.getElementType();
  Value flat = getFlatPlace(op);
  LayoutAttr layout = tables.getLayout(op.getUnitAttr());
  auto gradients = op.getGradients();
  auto next = gradients.begin();
  for (auto [parameter, isPresent] :
       llvm::zip_equal(layout.getParameters(), op.getPresent())) {
    if (!isPresent)
      continue;
    RankedTensorType type =
        parameter.getStrides().empty()
            ? RankedTensorType::get(parameter.getSizes(), elementType)
            : aten::getTensorType(parameter.getSizes(), elementType,
                                  parameter.getStrides());
    Value place = tables.addView(
        op.getLoc(), flat,
        parameter.getOffset() * aten::getItemSize(elementType), type);
    copy(op.getLoc(), buffers.lookup(*next++), place, Stream::Compute);
  }
  zeroGaps(op, flat, layout);
  buffers[op.getFlat()] = flat;
  return success();
}

/// In the place of the first operand.
LogicalResult Lowering::lower(AccumulateOp op) {
  setPhase(aten::Phase::Backward);
  Value sum = buffers.lookup(op.getSum());
  plan::AccumulateOp::create(builder, op.getLoc(), op.getUnit(),
                             buffers.lookup(op.getGradient()), sum, role,
                             Stream::Compute);
  buffers[op.getTotal()] = sum;
  return success();
}
