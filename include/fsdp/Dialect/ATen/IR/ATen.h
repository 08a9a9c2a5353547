//===- ATen.h - The ATen dialect --------------------------------*- C++ -*-===//
//
// The dialect of what a training step computes: `aten.call`, its attributes,
// and what passes ask about calls and tensor layouts.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_ATEN_IR_ATEN_H
#define FSDP_DIALECT_ATEN_IR_ATEN_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/TensorEncoding.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include <memory>
#include <optional>
#include <string>

namespace fsdp::operators {
struct OperatorSchema;
struct OpFacts;
} // namespace fsdp::operators
namespace fsdp::aten::detail {
struct OpNameAttrStorage;
struct Schemas;
} // namespace fsdp::aten::detail

#include "fsdp/Dialect/ATen/IR/ATenDialect.h.inc"
#include "fsdp/Dialect/ATen/IR/ATenEnums.h.inc"

namespace fsdp::aten {
/// Text at the end of a file.
using ResourceHandle = mlir::DialectResourceBlobHandle<ATenDialect>;
} // namespace fsdp::aten

#define GET_ATTRDEF_CLASSES
#include "fsdp/Dialect/ATen/IR/ATenAttributes.h.inc"

#define GET_OP_CLASSES
#include "fsdp/Dialect/ATen/IR/ATenOps.h.inc"

namespace fsdp::aten {

/// The class of the module at each scope, from `aten.classes`. Null if the
/// module does not say.
mlir::DictionaryAttr getClasses(mlir::ModuleOp module);

//===----------------------------------------------------------------------===//
// Effects
//===----------------------------------------------------------------------===//

/// The state of the random number generator.
struct GeneratorResource
    : mlir::SideEffects::Resource::Base<GeneratorResource> {
  llvm::StringRef getName() final { return "generator"; }
};

/// Whatever an operator that nobody knows may touch.
struct OpaqueResource : mlir::SideEffects::Resource::Base<OpaqueResource> {
  llvm::StringRef getName() final { return "opaque"; }
};

//===----------------------------------------------------------------------===//
// Questions about calls
//===----------------------------------------------------------------------===//

/// The operand whose memory the results of `op` are, if it is a view: that of
/// `ViewLikeOpInterface`, or the first of a call of an operator that says so.
/// Null if its results have memory of their own.
mlir::Value getViewSource(mlir::Operation *op);

/// The value whose memory `value` is: where its chain of views begins.
mlir::Value getViewRoot(mlir::Value value);

/// Checks the arguments of a known operator against its schema: each is one
/// that the operator has, of a kind that it takes, and none that it needs is
/// missing. Those that it writes stand elsewhere. Passes rely on it.
mlir::LogicalResult verifyArguments(mlir::Operation *op, OpNameAttr callee,
                                    ArgsAttr args, mlir::OperandRange inputs);

//===----------------------------------------------------------------------===//
// Element types and layouts
//===----------------------------------------------------------------------===//

/// The element type that is written `name` ("f32", "complex<f64>"), or null.
mlir::Type getElementType(mlir::MLIRContext *context, llvm::StringRef name);

/// True if a tensor can have elements of this type.
bool isElementType(mlir::Type type);

/// The size of an element in bytes; a truth value takes one.
int64_t getItemSize(mlir::Type elementType);

/// True if the tensor is dense, row-major and starts at offset 0.
inline bool isDense(mlir::RankedTensorType type) { return !type.getEncoding(); }

/// The strides of a dense row-major tensor; a stride is dynamic if a size that
/// it depends on is. As in PyTorch, a size of 0 counts as 1.
llvm::SmallVector<int64_t> getDenseStrides(llvm::ArrayRef<int64_t> shape);

/// The strides of a tensor, in elements.
llvm::SmallVector<int64_t> getStrides(mlir::RankedTensorType type);

/// The offset of the first element in the tensor's own storage, in elements.
int64_t getOffset(mlir::RankedTensorType type);

/// True if all sizes, strides and the offset are numbers.
bool hasKnownLayout(mlir::RankedTensorType type);

/// The tensor type with these strides, without a layout if they are dense.
mlir::RankedTensorType getTensorType(llvm::ArrayRef<int64_t> shape,
                                     mlir::Type elementType,
                                     llvm::ArrayRef<int64_t> strides,
                                     int64_t offset = 0);

/// True if the elements fill the memory from the first to the last without a
/// hole, each once, in whatever order.
bool isGapless(mlir::RankedTensorType type);

} // namespace fsdp::aten

#endif // FSDP_DIALECT_ATEN_IR_ATEN_H
