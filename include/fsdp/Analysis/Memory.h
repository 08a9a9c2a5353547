//===- Memory.h - What a scheduled step holds in memory ---------*- C++ -*-===//
//
// The most bytes that are alive at once, told from values alone: what an arena
// needs before anybody knows kernels, alignment or places.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_MEMORY_H
#define FSDP_ANALYSIS_MEMORY_H

#include "fsdp/Analysis/StreamOrder.h"
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

  /// The arguments, shards, states, inputs and constants, and the loss, also
  /// those of the other programs of the module. They live throughout.
  int64_t persistent = 0;
  /// What the step made, and has not used for the last time.
  int64_t transient = 0;
  /// The operation that runs then; null if the step makes nothing.
  mlir::Operation *at = nullptr;
  /// What `transient` consists of, largest first.
  llvm::SmallVector<Alive> alive;

  int64_t getTotal() const { return persistent + transient; }
};

/// Memory that a step takes for one of its values: from one place in the order
/// of issue to another, both included.
struct MemoryLife {
  mlir::Value value;
  int64_t bytes;
  unsigned begin, end;
  /// What is copied into and out of for the value, not its own memory.
  bool isCommunication = false;
  /// The places to which something keeps it alive; `end` is the last.
  llvm::SmallVector<unsigned, 2> uses = {};

  void keep(unsigned until) {
    end = std::max(end, until);
    if (uses.empty() || uses.back() != until)
      uses.push_back(until);
  }
};

/// The lives of a step of the scheduled level without regions inside, in the
/// order of what makes the values. Memory is a function of places in the order
/// of issue, not of times: what a computation touches lives at its place, and
/// what a launch touches from where the launch may start to where the compute
/// stream has waited for it (`StreamOrder`). So memory that one life after the
/// other takes needs no wait of its own. An update is in place. Where a bucket
/// is copied, its buffers count until the first wait, and the units from there
/// on. Takes linear time. Of the values in one memory.
llvm::SmallVector<MemoryLife, 0>
findMemoryLives(const StreamOrder &order,
                MemorySpace space = MemorySpace::Device);

/// Finds the peak of a step in one memory; its block is in the order of issue.
MemoryPeak findMemoryPeak(mlir::func::FuncOp step,
                          MemorySpace space = MemorySpace::Device);

/// The bytes that all programs keep: `MemoryPeak::persistent`.
int64_t getPersistentBytes(mlir::func::FuncOp step,
                           MemorySpace space = MemorySpace::Device);

/// Sums up lives by what they are, largest first.
llvm::SmallVector<MemoryPeak::Alive>
summarizeMemory(llvm::ArrayRef<MemoryLife> lives);

} // namespace fsdp

#endif // FSDP_ANALYSIS_MEMORY_H
