//===- StreamOrder.cpp - What streams know of each other ------------------===//
//
// Vector clocks, in one walk along the order of issue.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Analysis/StreamOrder.h"

using namespace mlir;

namespace fsdp {

Stream getStream(Operation *op) {
  auto launch = dyn_cast<LaunchOpInterface>(op);
  return launch ? launch.getStream() : Stream::Compute;
}

bool runsAhead(Operation *op) {
  auto launch = dyn_cast<LaunchOpInterface>(op);
  return launch && launch.getAhead();
}

IntegerAttr getBucket(Operation *op) {
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  return collective ? collective.getBucketAttr() : IntegerAttr();
}

void StreamOrder::findTurns() {
  SymbolTableCollection symbols;
  SmallVector<std::pair<RankGroup, Operation *>> latest; // on their streams
  for (Operation *op : operations) {
    auto collective = dyn_cast<CollectiveOpInterface>(op);
    if (!collective || !isa<LaunchOpInterface>(op))
      continue;
    RankGroup group = getRankGroup(collective, symbols);
    std::pair<RankGroup, Operation *> *own = nullptr;
    for (auto &entry : latest)
      if (entry.first == group) {
        if (getStream(entry.second) == getStream(op))
          own = &entry;
      } else if (entry.first.overlaps(group)) {
        turns[op].push_back(entry.second);
      }
    if (own)
      own->second = op;
    else
      latest.emplace_back(group, op);
  }
}

/// What has to be done before the operation, apart from what is before it on
/// its stream.
StreamOrder::Clock StreamOrder::getNeeded(const IssueOrder &order,
                                          unsigned place) const {
  Operation *op = operations[place];
  Clock needed = {};
  auto await = [&](Operation *before) {
    auto found = places.find(before);
    if (found == places.end() || found->second >= place)
      return;
    const Clock &other = clocks[found->second];
    for (unsigned stream = 0; stream != numStreams; ++stream)
      needed[stream] = std::max(needed[stream], other[stream]);
  };
  for (Value operand : op->getOperands())
    if (Operation *producer = operand.getDefiningOp())
      await(producer);
  for (Operation *reshard : order.getAfter(op))
    await(reshard);
  for (Operation *other : getTurns(op))
    await(other);
  return needed;
}

StreamOrder::StreamOrder(const IssueOrder &order)
    : operations(order.getOperations().begin(), order.getOperations().end()) {
  constexpr auto compute = static_cast<unsigned>(Stream::Compute);
  unsigned count = operations.size(), last = count - 1;
  places.reserve(count);
  for (auto [place, op] : llvm::enumerate(operations))
    places[op] = place;
  findTurns();
  clocks.resize(count);
  starts.resize(count);
  ends.assign(count, last);

  Clock streams[numStreams] = {};
  auto join = [](Clock &clock, const Clock &other) {
    for (unsigned stream = 0; stream != numStreams; ++stream)
      clock[stream] = std::max(clock[stream], other[stream]);
  };
  // The launches of each stream, and how many the compute stream knows to be
  // done.
  std::array<SmallVector<unsigned>, numStreams> launches;
  std::array<size_t, numStreams> done = {};
  for (unsigned begin = 0, end; begin != count; begin = end) {
    // The launches of a bucket start together, and are done together.
    Operation *op = operations[begin];
    end = begin + 1;
    if (IntegerAttr bucket = getBucket(op))
      while (end != count && getBucket(operations[end]) == bucket)
        ++end;
    auto self = static_cast<unsigned>(getStream(op));
    Clock &clock = streams[self];
    for (unsigned place = begin; place != end; ++place)
      join(clock, getNeeded(order, place));
    unsigned start = begin;
    if (self != compute && runsAhead(op))
      start = std::min(start, clock[compute]);
    else if (self != compute)
      join(clock, streams[compute]);
    clock[self] = end;
    for (unsigned place = begin; place != end; ++place) {
      starts[place] = self == compute ? place : start;
      clocks[place] = clock;
      if (self == compute)
        ends[place] = place;
      else
        launches[self].push_back(place);
    }
    if (self != compute)
      continue;
    for (unsigned stream = 0; stream != numStreams; ++stream)
      for (size_t &next = done[stream]; next != launches[stream].size() &&
                                        launches[stream][next] < clock[stream];
           ++next)
        ends[launches[stream][next]] = begin;
  }
}

} // namespace fsdp
