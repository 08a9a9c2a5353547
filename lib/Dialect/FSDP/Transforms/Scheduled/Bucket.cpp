//===- Bucket.cpp - Issue several collectives in one call -----------------===//
//
// Launches of one kind that follow each other join while there is room. Each
// keeps its own memory, or all are copied into one buffer and out of it.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Dialect/FSDP/Transforms/Logical/Decisions.h"
#include "fsdp/Dialect/FSDP/Transforms/Passes.h"
#include "fsdp/Dialect/FSDP/Transforms/Scheduled/Gathers.h"

#include "mlir/IR/Remarks.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace fsdp {
#define GEN_PASS_DEF_BUCKETPASS
#include "fsdp/Dialect/FSDP/Transforms/Passes.h.inc"

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

namespace {
class Bucketer {
public:
  Bucketer(IssueOrder &order, const fsdp::Bucket &limit)
      : order(order), limit(limit), copies(limit.mode == BucketMode::Copy) {}

  void run();

private:
  using Bucket = SmallVector<CollectiveOpInterface>;

  bool joins(ArrayRef<CollectiveOpInterface> bucket,
             CollectiveOpInterface next) const;
  void issueTogether(ArrayRef<CollectiveOpInterface> bucket);

  IssueOrder &order;
  fsdp::Bucket limit;
  bool copies;
  int64_t numBuckets = 0;
};
} // namespace

/// True if `next` has room in the bucket, and what is in it is not needed
/// before `next` can be launched.
bool Bucketer::joins(ArrayRef<CollectiveOpInterface> bucket,
                     CollectiveOpInterface next) const {
  int64_t sum = next.getBytes();
  for (CollectiveOpInterface launch : bucket) {
    if (launch.getGroupAxes() != next.getGroupAxes())
      return false;
    sum += launch.getBytes();
  }
  if ((limit.units && int64_t(bucket.size()) >= limit.units) ||
      (limit.bytes && sum > limit.bytes))
    return false;
  return next.isGather() ||
         llvm::none_of(bucket, [&](CollectiveOpInterface launch) {
           return llvm::any_of(launch->getUsers(), [&](Operation *user) {
             return !isCopy(user) && order.isBefore(user, next);
           });
         });
}

/// A gather may be launched earlier than it was, a reduction only later. What
/// is copied for the one or of the other goes with it.
void Bucketer::issueTogether(ArrayRef<CollectiveOpInterface> bucket) {
  if (bucket.empty()) // before a launch that exceeds the limit alone
    return;
  CollectiveOpInterface first = bucket.front(), last = bucket.back();
  // What an all-reduce alone sums is one buffer already.
  if (copies &&
      (bucket.size() > 1 || first.getKind() != CollectiveKind::AllReduce))
    for (CollectiveOpInterface launch : bucket)
      launch->setAttr("copy", UnitAttr::get(launch->getContext()));
  if (bucket.size() < 2)
    return;
  Operation *place = first.isGather() ? first : last;
  int64_t sum = 0;
  auto number = Builder(place->getContext()).getI64IntegerAttr(numBuckets++);
  for (CollectiveOpInterface launch : bucket) {
    sum += launch.getBytes();
    launch->setAttr("bucket", number);
  }
  if (first.isGather()) {
    for (CollectiveOpInterface launch : llvm::reverse(bucket.drop_front()))
      order.moveAfter(launch, place);
    bringCopies(order, llvm::map_to_vector(bucket, [](auto launch) {
                  return cast<LaunchOpInterface>(launch.getOperation());
                }));
  } else {
    for (CollectiveOpInterface launch : bucket.drop_back())
      order.moveBefore(launch, place);
    for (CollectiveOpInterface launch : llvm::reverse(bucket.drop_back()))
      for (Operation *user : launch->getUsers())
        if (isCopy(user))
          order.moveAfter(user, place);
  }
  remark::passed(place->getLoc(), getRemark("fsdp-bucket", "bucket", place))
      << remark::metric("Launch", place->getName().stripDialect())
      << remark::metric("First", first.getUnitAttr().getValue())
      << remark::metric("Calls", bucket.size()) << remark::metric("Bytes", sum);
}

void Bucketer::run() {
  // One open bucket for each kind of launch and phase, and for each type of
  // buffer.
  llvm::MapVector<std::tuple<StringRef, Attribute, Attribute>, Bucket> open;
  SmallVector<Bucket> closed;
  for (Operation *op : order.getOperations()) {
    auto launch = dyn_cast<CollectiveOpInterface>(op);
    // The loss, and what is not of this level.
    if (!launch || !launch.getUnitAttr() || !isa<LaunchOpInterface>(op))
      continue;
    Bucket &bucket =
        open[{launch->getName().getStringRef(), launch.getPhaseAttr(),
              copies ? getCopyKey(launch) : Attribute()}];
    if (!joins(bucket, launch))
      closed.push_back(std::exchange(bucket, {}));
    bucket.push_back(launch);
  }
  for (auto &[kind, bucket] : open)
    closed.push_back(std::move(bucket));
  for (const Bucket &bucket : closed)
    issueTogether(bucket);
}

//===----------------------------------------------------------------------===//
// The pass
//===----------------------------------------------------------------------===//

namespace {
class BucketPass : public impl::BucketPassBase<BucketPass> {
  using BucketPassBase::BucketPassBase;

  LogicalResult apply() {
    auto programs = getPrograms(getOperation());
    if (failed(programs))
      return failure();
    func::FuncOp first = programs->front();
    bool isMerge = bucket.mode == BucketMode::Merge;
    for (func::FuncOp program : *programs)
      if (failed(checkLevel(program, isMerge ? Level::ATen : Level::Scheduled)))
        return failure();
    if (!bucket.units && !bucket.bytes)
      return success();
    if (isMerge)
      mergeUnits(first, bucket, getParameterTypes(*programs));
    for (func::FuncOp program : *programs)
      if (isMerge ? program != first && failed(copyUnits(first, program))
                  : failed(join(program)))
        return failure();
    return success();
  }

  LogicalResult join(func::FuncOp program) {
    auto order = IssueOrder::read(program.getBody().front());
    if (failed(order))
      return failure();
    Bucketer(*order, bucket).run();
    order->write();
    return success();
  }

  void runOnOperation() final {
    if (failed(apply()))
      signalPassFailure();
  }
};
} // namespace

} // namespace fsdp
