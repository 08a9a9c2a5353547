//===- Local.cpp - Ranks as threads of one process ------------------------===//
#include "Local.h"

#include "../Counter.h"
#include "../DTypes.h"
#include "Reduce.h"
#include "fsdp/Runtime/Error.h"

#include <algorithm>
#include <cstring>

using namespace fsdp;

/// Slices of an all_reduce start at multiples of this many elements.
static constexpr std::size_t sliceElements = 64;

struct fsdp::LocalGroup {
  struct Member {
    /// The number of the latest collective whose source is ready, and of the
    /// latest whose peers' sources this member has read.
    Counter posted, done;
    std::vector<Collective> collectives;
  };
  explicit LocalGroup(std::size_t size) : members(size) {}
  std::vector<Member> members;
};

namespace fsdp {

class LocalComm : public Comm {
public:
  LocalComm(LocalWorld &world, LocalGroup &group, unsigned index)
      : world(world), group(group), self(group.members[index]), index(index),
        size(static_cast<unsigned>(group.members.size())), sources(size) {}

  void prepare(std::span<const Collective> collectives) override {
    self.collectives.assign(collectives.begin(), collectives.end());
    latest.assign(collectives.size(), 0);
  }

  void run(std::size_t which) override {
    if (world.aborted.load(std::memory_order_relaxed))
      fail();
    const Collective &mine = self.collectives[which];
    self.posted.advance(++sequence);
    switch (mine.kind) {
    case Collective::Kind::AllGather:
      allGather(mine, which);
      break;
    case Collective::Kind::ReduceScatter:
      awaitPosted();
      reduceSlice(mine, which, index * mine.count, mine.target, mine.count);
      break;
    case Collective::Kind::AllReduce:
      allReduce(mine, which);
      break;
    }
    latest[which] = sequence;
    self.done.advance(sequence);
  }

  void drain(std::size_t which) override {
    for (unsigned peer = 0; peer != size; ++peer)
      if (peer != index)
        await(group.members[peer].done, latest[which]);
  }

  void barrier() override {
    self.posted.advance(++sequence);
    awaitPosted();
    self.done.advance(sequence);
  }

  void abort() noexcept override { world.aborted.store(true); }

private:
  [[noreturn]] static void fail() {
    throw Error("stopped because another rank failed", Failure::RankFailed);
  }

  void await(Counter &counter, std::uint64_t goal) {
    if (!counter.reached(goal) &&
        !counter.await(goal, world.aborted, world.spins))
      fail();
  }

  void awaitPosted() {
    for (unsigned peer = 0; peer != size; ++peer)
      if (peer != index)
        await(group.members[peer].posted, sequence);
  }

  void allGather(const Collective &mine, std::size_t which) {
    std::size_t bytes = mine.count * itemSize(mine.sourceType);
    // Starting at different peers keeps the ranks from reading one another's
    // memory in the same order. The own piece may already be in place.
    for (unsigned i = 0; i != size; ++i) {
      unsigned peer = (index + i) % size;
      if (!mine.sourceStable && peer != index)
        await(group.members[peer].posted, sequence);
      const std::byte *source = group.members[peer].collectives[which].source;
      std::byte *target = mine.target + peer * bytes;
      if (source != target)
        std::memcpy(target, source, bytes);
    }
  }

  void reduceSlice(const Collective &mine, std::size_t which, std::size_t begin,
                   std::byte *target, std::size_t count) {
    for (unsigned peer = 0; peer != size; ++peer)
      sources[peer] = group.members[peer].collectives[which].source;
    reduce({mine.sourceType, mine.targetType, mine.via, mine.pre, mine.post},
           sources, begin, target, count);
  }

  /// Each rank sums one slice, then fetches the others' sums. In place is
  /// safe: rank r alone reads slice r of all sources, and has done so when it
  /// posts the second time.
  void allReduce(const Collective &mine, std::size_t which) {
    std::size_t slice = (mine.count + size - 1) / size;
    slice = (slice + sliceElements - 1) / sliceElements * sliceElements;
    auto begin = [&](unsigned r) { return std::min(r * slice, mine.count); };
    std::size_t item = itemSize(mine.targetType);
    awaitPosted();
    reduceSlice(mine, which, begin(index), mine.target + begin(index) * item,
                begin(index + 1) - begin(index));
    self.posted.advance(++sequence);
    for (unsigned i = 1; i < size; ++i) {
      unsigned peer = (index + i) % size;
      std::size_t at = begin(peer), count = begin(peer + 1) - at;
      // Even for nothing: the peer must have read this rank's source.
      await(group.members[peer].posted, sequence);
      std::memcpy(mine.target + at * item,
                  group.members[peer].collectives[which].target + at * item,
                  count * item);
    }
  }

  LocalWorld &world;
  LocalGroup &group;
  LocalGroup::Member &self;
  unsigned index, size;
  std::uint64_t sequence = 0;
  std::vector<std::uint64_t> latest; ///< Number of the latest run, by index.
  std::vector<const std::byte *> sources;
};

} // namespace fsdp

LocalWorld::LocalWorld(unsigned ranks) : spins(spinsFor(ranks)) {}
LocalWorld::~LocalWorld() = default;

std::unique_ptr<Comm> LocalWorld::openComm(unsigned communicator,
                                           const Group &group) {
  std::lock_guard lock(mutex);
  std::unique_ptr<LocalGroup> &shared =
      groups[{communicator, group.members.front()}];
  if (!shared)
    shared = std::make_unique<LocalGroup>(group.members.size());
  return std::make_unique<LocalComm>(*this, *shared, group.index);
}
