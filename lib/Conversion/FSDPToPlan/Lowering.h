//===- Lowering.h - A function becomes a program ----------------*- C++ -*-===//
//
// Goes through one function of the scheduled level: every value gets a buffer,
// every operation its commands. StepToProgram.cpp says which, and where.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_CONVERSION_FSDPTOPLAN_LOWERING_H
#define FSDP_LIB_CONVERSION_FSDPTOPLAN_LOWERING_H

#include "StepToProgram.h"

#include "fsdp/Analysis/StreamOrder.h"

namespace fsdp::detail {

/// Goes through one function.
class Lowering {
public:
  Lowering(mlir::func::FuncOp func, Tables &tables, plan::ProgramOp program)
      : func(func), tables(tables), isInit(program.getInit()),
        builder(mlir::OpBuilder::atBlockEnd(&program.getBody().front())),
        role(isInit ? plan::Role::Init : plan::Role::Forward) {}

  mlir::LogicalResult run();

private:
  mlir::LogicalResult lowerArgument(mlir::BlockArgument argument);
  mlir::LogicalResult lower(aten::CallOp op);
  mlir::LogicalResult lower(LaunchOpInterface op);
  mlir::LogicalResult lower(AsyncWaitOp op);
  mlir::LogicalResult lower(AsyncReshardOp op);
  mlir::LogicalResult lower(PieceOp op);
  mlir::LogicalResult lower(ViewOp op);
  mlir::LogicalResult lower(FlattenGradsOp op);
  mlir::LogicalResult lower(AccumulateOp op);
  mlir::LogicalResult lower(UpdateOpInterface op);
  mlir::LogicalResult lower(MeasureOp op);
  mlir::LogicalResult lower(ClipFactorOp op);
  mlir::LogicalResult lower(ScaleOp op);
  mlir::LogicalResult lower(mlir::func::ReturnOp op);

  /// What is gathered as one and copied out at the first wait.
  struct CopiedGather {
    llvm::SmallVector<LaunchOpInterface> launches;
    mlir::Value whole;
    plan::Role role;
  };

  void setPhase(aten::Phase phase);
  void setInsertionPointBefore(mlir::IntegerAttr group);
  void addAfter(mlir::ValueRange freed, mlir::Value memory);
  void lowerGather(LaunchOpInterface op);
  void gatherCopied(LaunchOpInterface first,
                    mlir::FlatSymbolRefAttr communicator);
  void copyOut(const CopiedGather &gather);
  void lowerCopy(LaunchOpInterface op);
  void lowerReduction(LaunchOpInterface launch);
  void reduceCopied(LaunchOpInterface launch,
                    mlir::FlatSymbolRefAttr communicator);
  plan::CommandOpInterface reduce(CollectiveOpInterface op,
                                  mlir::FlatSymbolRefAttr communicator,
                                  mlir::Value source, mlir::Value sum,
                                  mlir::FlatSymbolRefAttr unit,
                                  mlir::IntegerAttr group);
  void concatenate(mlir::Location loc, llvm::ArrayRef<mlir::Value> sources,
                   int64_t rows, mlir::Value target, Stream stream);
  plan::LaunchOp split(mlir::Location loc, mlir::Value source, int64_t rows,
                       llvm::ArrayRef<mlir::Value> targets, Stream stream);
  plan::CommandOpInterface castOut(mlir::Location loc, mlir::Value source,
                                   llvm::ArrayRef<mlir::Value> targets,
                                   Stream stream);
  mlir::Value asRows(mlir::Value vector, int64_t rows);
  mlir::Value getSource(CollectiveOpInterface op, mlir::Value value);
  /// Where what a reduction reads is copied: a value in flight on the
  /// reduction's own stream, which waits for it.
  static Stream getSourceStream(mlir::Operation *op) {
    return mlir::isa<FutureType>(op->getOperand(0).getType()) ? getStream(op)
                                                              : Stream::Compute;
  }
  /// True if the two launches are issued in one call.
  static bool isInOneBucket(mlir::Operation *launch, mlir::Operation *next) {
    return getBucket(launch) && getBucket(launch) == getBucket(next) &&
           launch->getName() == next->getName();
  }
  static llvm::SmallVector<LaunchOpInterface>
  getCopiedBucket(LaunchOpInterface first);
  void addReduction(CollectiveOpInterface op,
                    plan::CommandOpInterface reduction, mlir::Value sum,
                    mlir::Value target);
  mlir::Value getFlatPlace(FlattenGradsOp op);
  mlir::Value getReduced(CollectiveOpInterface op);
  void zeroGaps(FlattenGradsOp op, mlir::Value flat, LayoutAttr layout);
  mlir::Value getCopyTarget(LaunchOpInterface op);
  mlir::Value getScalar(mlir::Value scalar, plan::Space space);
  mlir::FailureOr<mlir::Value> getDestination(unsigned index,
                                              mlir::Value value);

  /// Memory for what is reduced in `via` and belongs into `target`: that, if it
  /// is of that type.
  mlir::Value getSum(mlir::Value target, mlir::Type via) {
    mlir::RankedTensorType type = plan::getTensorType(target);
    return type.getElementType() == via
               ? target
               : addTransient(
                     target.getLoc(),
                     mlir::cast<mlir::RankedTensorType>(type.clone(via)));
  }
  /// Null if there is nothing to copy.
  plan::CommandOpInterface copy(mlir::Location loc, mlir::Value source,
                                mlir::Value target, Stream stream) {
    if (source == target)
      return {};
    return plan::CopyOp::create(builder, loc, source, target, role, stream);
  }
  void waitFor(mlir::Location loc, plan::CommandOpInterface command,
               Stream waiter);
  void hold(mlir::Operation *launch);
  /// The program, as the owner of its inputs, outputs and loss.
  mlir::FlatSymbolRefAttr getOwner() {
    return mlir::FlatSymbolRefAttr::get(func);
  }
  mlir::Value addTransient(mlir::Location loc, mlir::RankedTensorType type) {
    return tables.addBuffer(loc, plan::BufferRole::Transient, type);
  }
  plan::BufferOp getState(mlir::Operation *op, mlir::FlatSymbolRefAttr unit,
                          llvm::StringRef kind, ShardType type) {
    return tables.getState(
        op->getLoc(),
        StateAttr::get(builder.getContext(), unit, builder.getStringAttr(kind)),
        type);
  }

  mlir::func::FuncOp func;
  Tables &tables;
  bool isInit;
  mlir::OpBuilder builder;
  /// That of the latest operation with a phase: some have none.
  plan::Role role;
  /// Where each value is, and the role of the command that puts it there.
  llvm::DenseMap<mlir::Value, mlir::Value> buffers;
  llvm::DenseMap<mlir::Value, plan::Role> roles;
  /// The last command of each launch, by its future: none of what only
  /// computes, and of an alias.
  llvm::DenseMap<mlir::Value, plan::CommandOpInterface> launches;
  /// By the futures.
  llvm::DenseMap<mlir::Value, CopiedGather> copiedGathers;
  /// Where gradients are reduced that are copied to the host, by unit.
  llvm::DenseMap<mlir::Attribute, mlir::Value> reduced;
  /// Copies of scalars in the other memory.
  llvm::DenseMap<mlir::Value, mlir::Value> scalars;
  /// Sums that are cast once all collectives of their group are there.
  struct Sum {
    mlir::Value future, sum, target;
    Stream stream;
  };
  llvm::SmallVector<Sum> sums;
};

} // namespace fsdp::detail

#endif // FSDP_LIB_CONVERSION_FSDPTOPLAN_LOWERING_H
