//===- PlanDialect.cpp - The plan dialect ---------------------------------===//
//
// Initialisation, and what passes ask about buffers.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/Plan/IR/Plan.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace fsdp;
using fsdp::plan::PlanDialect;

#include "fsdp/Dialect/Plan/IR/PlanDialect.cpp.inc"
#include "fsdp/Dialect/Plan/IR/PlanEnums.cpp.inc"
#include "fsdp/Dialect/Plan/IR/PlanInterfaces.cpp.inc"

#define GET_TYPEDEF_CLASSES
#include "fsdp/Dialect/Plan/IR/PlanTypes.cpp.inc"

#define GET_ATTRDEF_CLASSES
#include "fsdp/Dialect/Plan/IR/PlanAttributes.cpp.inc"

void PlanDialect::initialize() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "fsdp/Dialect/Plan/IR/PlanTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "fsdp/Dialect/Plan/IR/PlanAttributes.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "fsdp/Dialect/Plan/IR/PlanOps.cpp.inc"
      >();
}

//===----------------------------------------------------------------------===//
// Questions about buffers
//===----------------------------------------------------------------------===//

RankedTensorType plan::getTensorType(Value buffer) {
  if (auto view = buffer.getDefiningOp<plan::ViewOp>())
    return view.getTensorType();
  return buffer.getDefiningOp<plan::BufferOp>().getTensorType();
}

plan::BufferOp plan::getRoot(Value buffer) {
  if (auto view = buffer.getDefiningOp<plan::ViewOp>())
    return view.getBuffer();
  return buffer.getDefiningOp<plan::BufferOp>();
}

int64_t plan::getRootOffset(Value buffer) {
  if (auto view = buffer.getDefiningOp<plan::ViewOp>())
    return view.getOffset();
  return 0;
}

int64_t plan::getExtent(RankedTensorType type) {
  if (type.getNumElements() == 0)
    return 0;
  int64_t itemSize = aten::getItemSize(type.getElementType());
  if (aten::isDense(type))
    return type.getNumElements() * itemSize;
  int64_t last = 0;
  for (auto [size, stride] :
       llvm::zip_equal(type.getShape(), aten::getStrides(type)))
    last += (size - 1) * stride;
  return (last + 1) * itemSize;
}

RankedTensorType plan::dropOffset(RankedTensorType type) {
  if (aten::isDense(type))
    return type;
  return aten::getTensorType(type.getShape(), type.getElementType(),
                             aten::getStrides(type));
}
