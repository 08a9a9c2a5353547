//===- VerifyOrder.cpp - Check the order of collectives -------------------===//
//
// That every rank launches the same collectives in the same order.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Step.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYORDERPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

/// Ranks that launch collectives together: the mesh, and those of its axes that
/// have more than one rank.
struct Communicator {
  MeshOp mesh;
  SmallVector<StringRef> axes;

  bool operator==(const Communicator &other) const {
    return mesh == other.mesh && axes == other.axes;
  }
};

class OrderVerifier {
public:
  explicit OrderVerifier(ModuleOp module) : symbols(module) {}

  LogicalResult verify(Block &block);

private:
  Communicator getCommunicator(CollectiveOpInterface op);
  LogicalResult verifyBucket(CollectiveOpInterface op);

  SymbolTable symbols;
  DenseMap<Attribute, CollectiveOpInterface> buckets; // and their latest launch
};

} // namespace

Communicator OrderVerifier::getCommunicator(CollectiveOpInterface op) {
  FlatSymbolRefAttr mesh = op.getMeshAttr();
  if (FlatSymbolRefAttr unit = op.getUnitAttr())
    mesh = symbols.lookup<UnitOp>(unit.getAttr()).getMeshAttr();
  Communicator result{symbols.lookup<MeshOp>(mesh.getAttr()), {}};
  SmallVector<StringRef> axes = op.getGroupAxes();
  for (auto axis : result.mesh.getAxes().getAsRange<AxisAttr>())
    if (axis.getSize() > 1 &&
        llvm::is_contained(axes, axis.getName().getValue()))
      result.axes.push_back(axis.getName());
  return result;
}

LogicalResult OrderVerifier::verifyBucket(CollectiveOpInterface op) {
  auto [found, isFirst] = buckets.try_emplace(op.getBucketAttr(), op);
  CollectiveOpInterface before = found->second;
  if (isFirst)
    return success();
  auto refuse = [&](const Twine &what) {
    InFlightDiagnostic diag = op.emitError("bucket ")
                              << op.getBucketAttr().getInt() << ": " << what;
    diag.attachNote(before.getLoc()) << "an earlier launch of it";
    return diag;
  };
  if (op->getPrevNode() != before)
    return refuse("B1: expected its launches next to each other");
  auto getPhase = [](Operation *op) {
    auto gather = dyn_cast<AsyncUnshardOp>(op);
    return gather ? gather.getPhaseAttr() : aten::PhaseAttr();
  };
  if (op->getName() != before->getName() || getPhase(op) != getPhase(before) ||
      !(getCommunicator(op) == getCommunicator(before)))
    return refuse("B2: expected launches of one operation, communicator and "
                  "phase");
  found->second = op;
  return success();
}

LogicalResult OrderVerifier::verify(Block &block) {
  for (Operation &op : block) {
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    if (collective && collective.getBucketAttr() &&
        failed(verifyBucket(collective)))
      return failure();
  }
  return success();
}

namespace {
class VerifyOrderPass : public impl::VerifyOrderPassBase<VerifyOrderPass> {
  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step) ||
        failed(OrderVerifier(getOperation()).verify(step->getBody().front())))
      return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
