//===- StepVariants.h - What may be computed, in one order ------*- C++ -*-===//
//
// A program as it is with nothing recomputed, with everything, and with what is
// cheap, side by side: what is in all of them is there whatever is decided, and
// each copy depends on one module.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_DIALECT_FSDP_TRANSFORMS_SCHEDULED_STEPVARIANTS_H
#define FSDP_LIB_DIALECT_FSDP_TRANSFORMS_SCHEDULED_STEPVARIANTS_H

#include "fsdp/Analysis/Memory.h"
#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"

#include <memory>

namespace fsdp {

/// A program of the scheduled level, with so much of all modules recomputed.
/// Computations have the numbers of `StepVariants`.
struct StepVariant {
  StepVariant(mlir::func::FuncOp program, planner::Recompute recompute);

  planner::Recompute recompute;
  StreamOrder order;
  llvm::SmallVector<MemoryLife, 0> lives;
  llvm::DenseMap<mlir::Operation *, uint32_t> numbers;
  // By place: the computation there or before it, and the one there or after.
  llvm::SmallVector<uint32_t, 0> latest, next;
};

class StepVariants {
public:
  struct Computation {
    mlir::Operation *op;
    /// The module of which it is a copy, as the planner counts; or `nobody`.
    uint32_t onlyIf = planner::nobody;
    planner::Recompute recompute = planner::Recompute::None;
    int64_t duration = 0; ///< Nanoseconds, as annotated.
  };

  /// Adds a program in which so much of all modules was recomputed: the copies
  /// that this made, and the numbers of the modules. The first has nothing of
  /// that.
  void add(mlir::func::FuncOp program, planner::Recompute recompute,
           llvm::ArrayRef<Recomputed> copies, llvm::ArrayRef<uint32_t> modules);
  /// Finds one order of all. Says why there is none, or nothing.
  std::string merge();

  std::vector<std::unique_ptr<StepVariant>> variants;
  std::vector<Computation> computations; ///< The terminator is the last.
  /// Computations of the forward that modules recompute, and these.
  llvm::DenseMap<uint32_t, uint32_t> repeatedBy;

private:
  /// An operation that is there in any case, and the copies in front of it.
  struct Part {
    mlir::Operation *op;
    std::vector<Computation> copies;
  };
  std::vector<Part> split(const StepVariant &variant) const;
  static void findPlaces(StepVariant &variant);
  void findOriginals(const StepVariant &variant);

  struct Copy {
    mlir::Operation *original;
    uint32_t module;
  };
  llvm::DenseMap<mlir::Operation *, Copy> copies;
};

} // namespace fsdp

#endif // FSDP_LIB_DIALECT_FSDP_TRANSFORMS_SCHEDULED_STEPVARIANTS_H
