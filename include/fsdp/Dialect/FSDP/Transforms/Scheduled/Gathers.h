//===- Gathers.h - The gathers of a scheduled step --------------*- C++ -*-===//
//
// What passes that move gathers share: launch, wait and end of each, and which
// gather a tensor is memory of.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_GATHERS_H
#define FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_GATHERS_H

#include "fsdp/Analysis/IssueOrder.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

namespace fsdp {

/// One gather, from its launch to the end of its memory; null if the program
/// returns it.
struct Gather {
  LaunchOpInterface launch;
  AsyncWaitOp wait;
  AsyncReshardOp reshard;

  llvm::StringRef getUnit() { return launch.getUnitAttr().getValue(); }
  aten::Phase getPhase() {
    return getGatherPhase(launch.getPhaseAttr().getValue());
  }
  /// The memory of the whole unit.
  int64_t getBytes();
};

/// The gathers of a block, in the order in which they are waited for. One that
/// is never waited for or never ends is left out: `--fsdp-verify-futures`
/// rejects it.
class Gathers {
public:
  explicit Gathers(mlir::Block &block);

  auto begin() { return gathers.begin(); }
  auto end() { return gathers.end(); }

  /// The gather whose memory `value` is, or null.
  Gather *lookup(mlir::Value value);

private:
  llvm::SmallVector<Gather, 0> gathers;
  llvm::DenseMap<mlir::Value, unsigned> indices; // by gathered value
};

/// Moves the copies of shards that launches take in flight in front of the
/// first of these, which stand next to each other: they go with the gathers.
void bringCopies(IssueOrder &order, llvm::ArrayRef<LaunchOpInterface> launches);

/// The first operation after `op` that is not the launch of a gather, or a copy
/// for one, which a pass may be about to move.
mlir::Operation *getPlaceAfter(const IssueOrder &order, mlir::Operation *op);

} // namespace fsdp

#endif // FSDP_DIALECT_FSDP_TRANSFORMS_SCHEDULED_GATHERS_H
