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

/// Finds the peak of a step of the scheduled level, which is one block without
/// regions inside. A gathered unit counts from its launch to its reshard, a
/// reduction from its launch, anything else from where it is made; each to the
/// last use of itself or a view. An update is in place. Where a bucket is
/// copied, its buffers count until the first wait, and the units from there on.
/// Takes linear time.
MemoryPeak findMemoryPeak(mlir::func::FuncOp step);

/// The bytes of the arguments of a step: `MemoryPeak::persistent`.
int64_t getPersistentBytes(mlir::func::FuncOp step);

/// The value in whose memory a result lies; null if it has its own.
mlir::Value getMemoryOf(mlir::OpResult result);

/// The bytes that a copied launch takes beside operands and result: its part of
/// the bucket's buffer, and of the sums of several units. (As elsewhere, the
/// shard in the type in which it is gathered is not counted.)
int64_t getCommunicationBytes(CollectiveOpInterface launch);

/// Sums up results with memory of their own by what they are, largest first.
llvm::SmallVector<MemoryPeak::Alive>
summarizeMemory(llvm::ArrayRef<mlir::Value> values);

} // namespace fsdp

#endif // FSDP_ANALYSIS_MEMORY_H
