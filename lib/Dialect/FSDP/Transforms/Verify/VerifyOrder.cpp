//===- VerifyOrder.cpp - Check the order of collectives -------------------===//
//
// The block is the order of issue, the same on every rank as long as all take
// the same way through it. What is left to check: that they do, and that
// buckets are one call. Every dependence points back in the block, so nothing
// waits in a circle.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/Uniformity.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_VERIFYORDERPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {

class OrderVerifier {
public:
  LogicalResult verify(func::FuncOp func);

private:
  void findCommunicators(func::FuncOp func);
  LogicalResult verifyControl(func::FuncOp func);
  LogicalResult verifyBuckets(Block &block);

  SymbolTableCollection symbols;
  SmallVector<RankGroup, 0> communicators;
  DenseMap<Operation *, unsigned> numbers;  // of communicators, by launch
  SmallVector<Operation *> controlled;      // launches inside of regions
  DenseMap<Attribute, Operation *> buckets; // and their latest launch
};

} // namespace

//===----------------------------------------------------------------------===//
// Communicators
//===----------------------------------------------------------------------===//

void OrderVerifier::findCommunicators(func::FuncOp func) {
  Block *body = &func.getBody().front();
  func.walk([&](CollectiveOpInterface op) {
    RankGroup communicator = getRankGroup(op, symbols);
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
    auto reject = [&](const Twine &what) {
      InFlightDiagnostic diag = op.emitError("bucket ")
                                << bucket.getInt() << ": " << what;
      diag.attachNote(before->getLoc()) << "an earlier launch of it";
      return diag;
    };
    if (op->getPrevNode() != before)
      return reject("B1: expected its launches next to each other");
    auto earlier = cast<CollectiveOpInterface>(before);
    if (op->getName() != before->getName() ||
        op.getPhaseAttr() != earlier.getPhaseAttr() ||
        numbers.lookup(op) != numbers.lookup(before))
      return reject("B2: expected launches of one operation, communicator and "
                    "phase");
    if (op.getCopy() != earlier.getCopy())
      return reject("B3: expected all of its launches to be copied, or none");
    if (op.getCopy() && getCopyKey(op) != getCopyKey(earlier))
      return reject("B3: expected copied launches of one element type that "
                    "divide alike");
    found->second = op;
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
  return failure(walk.wasInterrupted());
}

namespace {
class VerifyOrderPass : public impl::VerifyOrderPassBase<VerifyOrderPass> {
  void runOnOperation() final {
    for (auto func : getOperation().getOps<func::FuncOp>())
      if (!func.isDeclaration() && !isSource(func) &&
          failed(OrderVerifier().verify(func)))
        return signalPassFailure();
    markAllAnalysesPreserved();
  }
};
} // namespace

} // namespace fsdp
