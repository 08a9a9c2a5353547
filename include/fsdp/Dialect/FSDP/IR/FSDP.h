//===- FSDP.h - The fsdp dialect --------------------------------*- C++ -*-===//
//
// The dialect of sharded training: units and their layouts, collectives as pure
// values, and the same collectives as launches, futures and waits.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_IR_FSDP_H
#define FSDP_DIALECT_FSDP_IR_FSDP_H

#include "fsdp/Dialect/ATen/IR/ATen.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Interfaces/ViewLikeInterface.h"
#include "llvm/ADT/STLExtras.h"

#include <array>
#include <optional>

#include "fsdp/Dialect/FSDP/IR/FSDPDialect.h.inc"
#include "fsdp/Dialect/FSDP/IR/FSDPEnums.h.inc"

#define GET_TYPEDEF_CLASSES
#include "fsdp/Dialect/FSDP/IR/FSDPTypes.h.inc"

#define GET_ATTRDEF_CLASSES
#include "fsdp/Dialect/FSDP/IR/FSDPAttributes.h.inc"

namespace fsdp {

/// The elements that a value of this type has on one rank: what is in flight
/// counts as if it had arrived. 0 for what is no memory, or of unknown size.
int64_t getLocalNumel(mlir::Type type);

/// So many elements in bytes; 0 for what is no type of elements.
int64_t getBytes(int64_t numel, mlir::Type elementType);

/// The bytes of the local elements of such a value.
int64_t getMemoryBytes(mlir::Type type);

/// What a future promises; any other type itself.
mlir::Type getArrived(mlir::Type type);

/// True of a shard in host memory, also of one in flight.
bool isOnHost(mlir::Type type);

/// The memory in which a value of a type is.
MemorySpace getMemorySpace(mlir::Type type);

/// The element type of a shard, a gathered unit or a tensor, or of such a value
/// in flight; or null.
mlir::Type getElementType(mlir::Type type);

//===----------------------------------------------------------------------===//
// Traits
//===----------------------------------------------------------------------===//

/// Of the logical level: gone once the step is scheduled.
template <typename ConcreteOp>
class LogicalOp : public mlir::OpTrait::TraitBase<ConcreteOp, LogicalOp> {};

/// Of the scheduled level.
template <typename ConcreteOp>
class ScheduledOp : public mlir::OpTrait::TraitBase<ConcreteOp, ScheduledOp> {};

//===----------------------------------------------------------------------===//
// Resources
//===----------------------------------------------------------------------===//

/// The order in which collectives are launched.
struct CommunicatorResource
    : mlir::SideEffects::Resource::Base<CommunicatorResource> {
  llvm::StringRef getName() final { return "fsdp.communicator"; }
};

/// Collectives between launch and wait.
struct InFlightResource : mlir::SideEffects::Resource::Base<InFlightResource> {
  llvm::StringRef getName() final { return "fsdp.in_flight"; }
};

/// Memory of gathered units, from launch to reshard.
struct GatheredMemoryResource
    : mlir::SideEffects::Resource::Base<GatheredMemoryResource> {
  llvm::StringRef getName() final { return "fsdp.gathered_memory"; }
};

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

/// A state of a unit: its kind, and its values before and after an update; in a
/// plan, which updates in place, there is no other value after it.
struct UpdatedState {
  llvm::StringRef kind;
  mlir::Value before, after;
};

/// The scalars of an update, by their numbers.
constexpr unsigned numUpdateScalars = getMaxEnumValForUpdateScalar() + 1;
using UpdateScalars = std::array<mlir::Value, numUpdateScalars>;

/// The hyper-parameters of a decay group: learning rate, beta1, beta2, epsilon,
/// weight decay, momentum, number of the update from 1.
mlir::RankedTensorType getHyperType(mlir::MLIRContext *context);

/// True if measures join by the largest of them, others by their sum.
inline bool isMaximum(MeasureKind kind) {
  return kind == MeasureKind::AbsMax || kind == MeasureKind::FoundInf;
}

/// To what the norm of all gradients is clipped, and how it is measured; 0: it
/// is not.
struct ClipGradNorm {
  double maxNorm = 0;
  MeasureKind kind = MeasureKind::SquaredNorm;
  explicit operator bool() const { return maxNorm != 0; }
};

/// What `fsdp.clip_grad_norm` says; 0 if it is not there, or malformed.
ClipGradNorm getClipGradNorm(mlir::Operation *program);

/// What becomes of the buffers that a program changes.
SyncBuffers getSyncBuffers(mlir::Operation *program);
/// The attribute that says it.
mlir::Attribute getAttribute(const ClipGradNorm &clip,
                             mlir::MLIRContext *context);

/// How the loss is scaled, as `torch.amp.GradScaler` does; 0: it is not.
struct GradScaler {
  double initScale = 0;
  double growthFactor = 2, backoffFactor = 0.5;
  int64_t growthInterval = 2000;
  explicit operator bool() const { return initScale != 0; }

  /// Its state, in buffers of one number: the scale, for how many steps all was
  /// finite, and how many updates were skipped because something was not.
  static llvm::StringRef getScaleName() { return "grad_scaler.scale"; }
  static llvm::StringRef getGrowthTrackerName() {
    return "grad_scaler.growth_tracker";
  }
  static llvm::StringRef getSkippedName() { return "grad_scaler.skipped"; }
  static bool isState(llvm::StringRef buffer) {
    return buffer.starts_with("grad_scaler.");
  }
};

/// What `fsdp.grad_scaler` says; 0 if it is not there, or malformed.
GradScaler getGradScaler(mlir::Operation *program);
/// The attribute that says it.
mlir::Attribute getAttribute(const GradScaler &scaler,
                             mlir::MLIRContext *context);

} // namespace fsdp

#include "fsdp/Dialect/FSDP/IR/FSDPInterfaces.h.inc"

#define GET_OP_CLASSES
#include "fsdp/Dialect/FSDP/IR/FSDPOps.h.inc"

namespace fsdp {

/// The ranks that take part in a collective together.
struct RankGroup {
  MeshOp mesh; ///< Null if there is none.
  /// Those over which the collective is, and which have more than one rank, in
  /// the order of the mesh.
  llvm::SmallVector<AxisAttr, 2> axes;

  bool operator==(const RankGroup &other) const {
    return mesh == other.mesh && axes == other.axes;
  }
  /// Some group of the one may have several ranks in common with one of the
  /// other.
  bool overlaps(const RankGroup &other) const;
  int64_t getNumRanks() const;
};

/// True of a copy from one memory to another, at either level.
bool isCopy(mlir::Operation *op);

/// What `value` is a copy of in another memory, also one that is waited for, or
/// the value itself.
mlir::Value skipCopies(mlir::Value value);

/// The launch of what an op of the logical level does.
LaunchOpInterface createLaunch(mlir::OpBuilder &builder,
                               mlir::Operation *logical);

/// The group along axes of a mesh.
RankGroup getRankGroup(MeshOp mesh, llvm::ArrayRef<llvm::StringRef> axes);

/// The group of a collective, whose unit or mesh is looked up in `symbols`.
RankGroup getRankGroup(CollectiveOpInterface collective,
                       mlir::SymbolTableCollection &symbols);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_IR_FSDP_H
