//===- Memory.h - What a scheduled step holds in memory ---------*- C++ -*-===//
//
// The most bytes that are alive at once, told from values alone: what an arena
// needs before anybody knows kernels, alignment or places.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_MEMORY_H
#define FSDP_ANALYSIS_MEMORY_H

#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <string>

namespace fsdp {

/// Where a rank's step holds the most memory. All figures are in bytes.
struct MemoryPeak {
  /// Some of what is alive, all of it of one kind.
  struct Alive {
    std::string what;
    mlir::Location loc; // of one of the values
    int64_t bytes = 0;
    unsigned values = 0;
  };

  /// The arguments: shards, states, inputs, constants. They live throughout.
  int64_t persistent = 0;
  /// What the step made, and has not used for the last time.
  int64_t transient = 0;
  /// The operation that runs then; null if the step makes nothing.
  mlir::Operation *at = nullptr;
  /// What `transient` consists of, largest first.
  llvm::SmallVector<Alive> alive;

  int64_t getTotal() const { return persistent + transient; }
};

/// Memory that a step takes for one of its values, from the operation that
/// makes it to the last that uses it: by their positions in the order.
struct MemoryLife {
  mlir::Value value;
  int64_t bytes;
  unsigned begin, end;
  /// Each as often as it has the value, or a view of it, as an operand.
  llvm::SmallVector<mlir::Operation *, 2> users = {};
  /// What is copied into and out of for the value, not its own memory.
  bool isCommunication = false;
};

/// The lives of a step of the scheduled level without regions inside, whose
/// operations are issued in this order, by when they begin. A gathered unit
/// counts from its launch to its reshard, a reduction from its launch, anything
/// else from where it is made; each to the last use of itself or a view. An
/// update is in place. Where a bucket is copied, its buffers count until the
/// first wait, and the units from there on. Takes linear time.
/// Of the values in one memory.
llvm::SmallVector<MemoryLife, 0>
findMemoryLives(llvm::ArrayRef<mlir::Operation *> order,
                MemorySpace space = MemorySpace::Device);

/// Finds the peak of such a step in one memory.
MemoryPeak findMemoryPeak(mlir::func::FuncOp step,
                          MemorySpace space = MemorySpace::Device);

/// The bytes of the arguments of a step: `MemoryPeak::persistent`.
int64_t getPersistentBytes(mlir::func::FuncOp step,
                           MemorySpace space = MemorySpace::Device);

/// The value in whose memory a result lies; null if it has its own.
mlir::Value getMemoryOf(mlir::OpResult result);

/// Sums up lives by what they are, largest first.
llvm::SmallVector<MemoryPeak::Alive>
summarizeMemory(llvm::ArrayRef<MemoryLife> lives);

} // namespace fsdp

#endif // FSDP_ANALYSIS_MEMORY_H
