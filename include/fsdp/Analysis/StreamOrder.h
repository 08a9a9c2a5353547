//===- StreamOrder.h - What streams know of each other ----------*- C++ -*-===//
//
// The host issues a scheduled step far ahead of time; what runs when is up to
// streams, and to what each waits for. So a launch runs at any time between two
// places of the order: from where the last computation has ended that it waits
// for, to where the compute stream has waited for it.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ANALYSIS_STREAMORDER_H
#define FSDP_ANALYSIS_STREAMORDER_H

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Dialect/FSDP/IR/FSDP.h"

#include <array>

namespace fsdp {

/// The stream on which an operation of the scheduled level acts.
Stream getStream(mlir::Operation *op);

/// True for a launch that does not wait for the computations before it.
bool runsAhead(mlir::Operation *op);

/// The number of the bucket of a launch, or null.
mlir::IntegerAttr getBucket(mlir::Operation *op);

/// Of a step without regions inside. Takes linear time.
class StreamOrder {
public:
  explicit StreamOrder(const IssueOrder &order);

  /// The operations by their places; the terminator is the last.
  llvm::ArrayRef<mlir::Operation *> getOperations() const { return operations; }
  unsigned getPlace(mlir::Operation *op) const { return places.lookup(op); }

  /// From here on, what is at this place may run. Of a computation, and of what
  /// waits for those before it: the place itself.
  unsigned getStart(unsigned place) const { return starts[place]; }
  /// From here on, the compute stream knows that it is done: the terminator if
  /// nothing waits for it.
  unsigned getEnd(unsigned place) const { return ends[place]; }
  /// The launches over other groups that it waits for, the latest of each
  /// stream, since the groups share ranks, but are not the same (see
  /// `--plan-insert-sync`).
  llvm::ArrayRef<mlir::Operation *> getTurns(mlir::Operation *launch) const {
    auto found = turns.find(launch);
    return found == turns.end() ? llvm::ArrayRef<mlir::Operation *>()
                                : found->second;
  }

private:
  static constexpr unsigned numStreams = getMaxEnumValForStream() + 1;
  /// By stream: one more than the place of the latest operation that is known
  /// to be done.
  using Clock = std::array<unsigned, numStreams>;

  void findTurns();
  Clock getNeeded(const IssueOrder &order, unsigned place) const;

  llvm::SmallVector<mlir::Operation *, 0> operations;
  llvm::DenseMap<mlir::Operation *, unsigned> places;
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<mlir::Operation *, 1>>
      turns;
  llvm::SmallVector<Clock, 0> clocks; // of its stream, after it
  llvm::SmallVector<unsigned, 0> starts, ends;
};

} // namespace fsdp

#endif // FSDP_ANALYSIS_STREAMORDER_H
