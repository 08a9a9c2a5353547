//===- Bucket.cpp - Issue several collectives in one call -----------------===//
//
// Launches of one kind that follow each other join while there is room; each
// keeps its own memory, so nothing is copied.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Gathers.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_BUCKETPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

namespace {
class Bucketer {
public:
  Bucketer(Block &block, int64_t blocks, int64_t bytes)
      : block(block), blocks(blocks), bytes(bytes) {}

  void run();

private:
  using Bucket = SmallVector<CollectiveOpInterface>;

  bool joins(ArrayRef<CollectiveOpInterface> bucket,
             CollectiveOpInterface next) const;
  void issueTogether(ArrayRef<CollectiveOpInterface> bucket);

  Block &block;
  int64_t blocks, bytes; // 0: any number
  int64_t numBuckets = 0;
};
} // namespace

/// True if `next` has room in the bucket, and what is in it is not needed
/// before `next` can be launched.
bool Bucketer::joins(ArrayRef<CollectiveOpInterface> bucket,
                     CollectiveOpInterface next) const {
  int64_t sum = next.getBytes();
  for (CollectiveOpInterface launch : bucket)
    sum += launch.getBytes();
  if ((blocks && int64_t(bucket.size()) >= blocks) || (bytes && sum > bytes))
    return false;
  return isa<AsyncUnshardOp>(next.getOperation()) ||
         llvm::none_of(bucket, [&](CollectiveOpInterface launch) {
           return llvm::any_of(launch->getUsers(), [&](Operation *user) {
             return user->isBeforeInBlock(next);
           });
         });
}

/// A gather may be launched earlier than it was, a reduction only later.
void Bucketer::issueTogether(ArrayRef<CollectiveOpInterface> bucket) {
  if (bucket.size() < 2)
    return;
  CollectiveOpInterface first = bucket.front(), last = bucket.back();
  bool isGather = isa<AsyncUnshardOp>(first.getOperation());
  Operation *place = isGather ? first : last;
  int64_t sum = 0;
  auto number = Builder(place->getContext()).getI64IntegerAttr(numBuckets++);
  for (CollectiveOpInterface launch : bucket) {
    sum += launch.getBytes();
    launch->setAttr("bucket", number);
  }
  if (isGather)
    for (CollectiveOpInterface launch : llvm::reverse(bucket.drop_front()))
      launch->moveAfter(place);
  else
    for (CollectiveOpInterface launch : bucket.drop_back())
      launch->moveBefore(place);
  remark::passed(place->getLoc(), remark::RemarkOpts::name("bucket")
                                      .category("fsdp-bucket")
                                      .function("step"))
      << remark::metric("Launch", place->getName().stripDialect())
      << remark::metric("First", first.getUnitAttr().getValue())
      << remark::metric("Calls", bucket.size()) << remark::metric("Bytes", sum);
}

void Bucketer::run() {
  // One open bucket for each kind of launch and phase.
  llvm::MapVector<std::pair<StringRef, Attribute>, Bucket> open;
  SmallVector<Bucket> closed;
  for (auto launch : block.getOps<CollectiveOpInterface>()) {
    if (!launch.getUnitAttr()) // the loss
      continue;
    auto gather = dyn_cast<AsyncUnshardOp>(launch.getOperation());
    Bucket &bucket =
        open[{launch->getName().getStringRef(),
              gather ? Attribute(gather.getPhaseAttr()) : Attribute()}];
    if (!joins(bucket, launch)) {
      closed.push_back(std::move(bucket));
      bucket.clear();
    }
    bucket.push_back(launch);
  }
  for (auto &[kind, bucket] : open)
    closed.push_back(std::move(bucket));
  for (const Bucket &bucket : closed)
    issueTogether(bucket);
}

namespace {
class BucketPass : public impl::BucketPassBase<BucketPass> {
  using BucketPassBase::BucketPassBase;

  void runOnOperation() final {
    FailureOr<func::FuncOp> step = getStep(getOperation());
    if (failed(step))
      return signalPassFailure();
    for (int64_t number : {int64_t(blocks), int64_t(bytes)})
      if (number < 0) {
        step->emitError("expected buckets of at least 0, got ") << number;
        return signalPassFailure();
      }
    if (blocks || bytes)
      Bucketer(step->getBody().front(), blocks, bytes).run();
  }
};
} // namespace

} // namespace fsdp
