//===- VerifyOrder.cpp - Check the order of collectives -------------------===//
//
// The block is the order of issue, the same on every rank as long as all take
// the same way through it. What is left to check: that they do, that buckets
// are one call, and that groups which share ranks can't start in either order.
// Every dependence points back in the block, so nothing waits in a circle.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Uniformity.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

#include <array>

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYORDERPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

constexpr unsigned numStreams = getMaxEnumValForStream() + 1;

/// For each stream, the number of its latest collective that is known to be
/// done; 0 if none is.
struct Clock : std::array<unsigned, numStreams> {
  Clock() { fill(0); }
  void join(const Clock &other) {
    for (unsigned i = 0; i != numStreams; ++i)
      (*this)[i] = std::max((*this)[i], other[i]);
  }
};

/// Ranks that launch together: the mesh, and those of its axes that have more
/// than one rank. Also the latest launch on each stream, and its number.
struct Communicator {
  MeshOp mesh;
  SmallVector<AxisAttr> axes;
  std::array<std::pair<unsigned, Operation *>, numStreams> latest = {};

  bool operator==(const Communicator &other) const {
    return mesh == other.mesh && axes == other.axes;
  }
  /// True if a group of the one has two ranks or more in common with a group of
  /// the other. Of two meshes nobody knows.
  bool overlaps(const Communicator &other) const {
    if (mesh != other.mesh)
      return !axes.empty() && !other.axes.empty();
    return llvm::any_of(axes, [&](AxisAttr axis) {
      return llvm::is_contained(other.axes, axis);
    });
  }
};

class OrderVerifier {
public:
  explicit OrderVerifier(ModuleOp module) : symbols(module) {}

  LogicalResult verify(func::FuncOp func);

private:
  void findCommunicators(func::FuncOp func);
  Communicator getCommunicator(CollectiveOpInterface op);
  LogicalResult verifyControl(func::FuncOp func);
  LogicalResult verifyBuckets(Block &block);
  LogicalResult verifyOverlaps(Block &block);
  LogicalResult verifyOverlap(CollectiveOpInterface op);

  SymbolTable symbols;
  SmallVector<Communicator, 0> communicators;
  DenseMap<Operation *, unsigned> numbers;  // of communicators, by launch
  SmallVector<Operation *> controlled;      // launches inside of regions
  DenseMap<Attribute, Operation *> buckets; // and their latest launch
  std::array<Clock, numStreams> streams;
  DenseMap<Operation *, Clock> clocks; // what is done when an operation is
  unsigned numLaunches = 0;
};

} // namespace

//===----------------------------------------------------------------------===//
// Communicators
//===----------------------------------------------------------------------===//

Communicator OrderVerifier::getCommunicator(CollectiveOpInterface op) {
  FlatSymbolRefAttr mesh = op.getMeshAttr();
  if (FlatSymbolRefAttr unit = op.getUnitAttr())
    mesh = symbols.lookup<UnitOp>(unit.getAttr()).getMeshAttr();
  Communicator result{symbols.lookup<MeshOp>(mesh.getAttr()), {}, {}};
  SmallVector<StringRef> axes = op.getGroupAxes();
  for (auto axis : result.mesh.getAxes().getAsRange<AxisAttr>())
    if (axis.getSize() > 1 &&
        llvm::is_contained(axes, axis.getName().getValue()))
      result.axes.push_back(axis);
  return result;
}

void OrderVerifier::findCommunicators(func::FuncOp func) {
  Block *body = &func.getBody().front();
  func.walk([&](CollectiveOpInterface op) {
    Communicator communicator = getCommunicator(op);
    auto found = llvm::find(communicators, communicator);
    numbers[op] = found - communicators.begin();
    if (found == communicators.end())
      communicators.push_back(communicator);
    if (op->getBlock() != body)
      controlled.push_back(op);
  });
}

//===----------------------------------------------------------------------===//
// Control
//===----------------------------------------------------------------------===//

LogicalResult OrderVerifier::verifyControl(func::FuncOp func) {
  if (controlled.empty())
    return success();
  Uniformity uniformity(func);
  for (Operation *launch : controlled)
    for (Operation *op = launch->getParentOp(); op != func;
         op = op->getParentOp()) {
      Value source = uniformity.getControlSource(op);
      if (!source && isa<RegionBranchOpInterface>(op))
        continue;
      InFlightDiagnostic diag =
          launch->emitError("some ranks may launch this collective and others "
                            "not: expected control that is the same on all");
      diag.attachNote(op->getLoc()) << "under this";
      if (source)
        diag.attachNote(source.getLoc()) << "which depends on this";
      return diag;
    }
  return success();
}

//===----------------------------------------------------------------------===//
// Buckets
//===----------------------------------------------------------------------===//

LogicalResult OrderVerifier::verifyBuckets(Block &block) {
  for (auto op : block.getOps<CollectiveOpInterface>()) {
    IntegerAttr bucket = op.getBucketAttr();
    if (!bucket)
      continue;
    auto [found, isFirst] = buckets.try_emplace(bucket, op);
    Operation *before = found->second;
    if (isFirst)
      continue;
    auto refuse = [&](const Twine &what) {
      InFlightDiagnostic diag = op.emitError("bucket ")
                                << bucket.getInt() << ": " << what;
      diag.attachNote(before->getLoc()) << "an earlier launch of it";
      return diag;
    };
    if (op->getPrevNode() != before)
      return refuse("B1: expected its launches next to each other");
    auto getPhase = [](Operation *op) {
      auto gather = dyn_cast<AsyncUnshardOp>(op);
      return gather ? gather.getPhaseAttr() : aten::PhaseAttr();
    };
    if (op->getName() != before->getName() ||
        getPhase(op) != getPhase(before) ||
        numbers.lookup(op) != numbers.lookup(before))
      return refuse("B2: expected launches of one operation, communicator and "
                    "phase");
    found->second = op;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Overlapping groups
//===----------------------------------------------------------------------===//

/// `op` starts when what is ahead on its stream and what it reads are done.
LogicalResult OrderVerifier::verifyOverlap(CollectiveOpInterface op) {
  auto streamOf = [](Operation *op) {
    auto streamed = dyn_cast<StreamedOpInterface>(op);
    return static_cast<unsigned>(streamed ? streamed.getStream()
                                          : Stream::Compute);
  };
  unsigned self = streamOf(op);
  Clock known = streams[self];
  for (Value operand : op->getOperands())
    if (Operation *producer = operand.getDefiningOp())
      known.join(clocks.lookup(producer));

  Communicator &communicator = communicators[numbers.lookup(op)];
  for (Communicator &other : communicators) {
    if (&other == &communicator || !communicator.overlaps(other))
      continue;
    for (unsigned stream = 0; stream != numStreams; ++stream) {
      auto [number, launch] = other.latest[stream];
      if (stream == self || number <= known[stream])
        continue;
      InFlightDiagnostic diag = op.emitError(
          "this and an earlier collective of another group share ranks, and "
          "may start in either order: wait for that one before this launch");
      diag.attachNote(launch->getLoc()) << "the earlier one";
      return diag;
    }
  }
  communicator.latest[self] = {++numLaunches, op};
  known[self] = numLaunches;
  streams[self] = known;
  clocks[op] = known;
  return success();
}

LogicalResult OrderVerifier::verifyOverlaps(Block &block) {
  Clock &compute = streams[static_cast<unsigned>(Stream::Compute)];
  for (Operation &op : block) {
    if (auto collective = dyn_cast<CollectiveOpInterface>(op)) {
      if (failed(verifyOverlap(collective)))
        return failure();
      continue;
    }
    // What is learned on one way need not hold behind it; a second time, what
    // the first has launched is ahead.
    for (unsigned time = 0; time != 2; ++time)
      for (Region &region : op.getRegions())
        for (Block &inner : region) {
          std::array<Clock, numStreams> before = streams;
          if (failed(verifyOverlaps(inner)))
            return failure();
          streams = before;
        }
    if (auto wait = dyn_cast<AsyncWaitOp>(op))
      if (Operation *launch = wait.getFuture().getDefiningOp())
        compute.join(clocks.lookup(launch));
    clocks[&op] = compute;
  }
  return success();
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

LogicalResult OrderVerifier::verify(func::FuncOp func) {
  if (!func.getBody().hasOneBlock())
    return func.emitError("expected one block");
  findCommunicators(func);
  if (failed(verifyControl(func)))
    return failure();
  WalkResult walk = func.walk(
      [&](Block *block) { return WalkResult(verifyBuckets(*block)); });
  if (walk.wasInterrupted())
    return failure();
  bool mayOverlap = false;
  for (auto [index, communicator] : llvm::enumerate(communicators))
    for (const Communicator &other :
         ArrayRef(communicators).drop_front(index + 1))
      mayOverlap |= communicator.overlaps(other);
  return mayOverlap ? verifyOverlaps(func.getBody().front()) : success();
}

namespace {
class VerifyOrderPass : public impl::VerifyOrderPassBase<VerifyOrderPass> {
  void runOnOperation() final {
    for (auto func : getOperation().getOps<func::FuncOp>())
      if (!func.isDeclaration() &&
          !func->hasAttr(FSDPDialect::getSourceAttrName()) &&
          failed(OrderVerifier(getOperation()).verify(func)))
        return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
