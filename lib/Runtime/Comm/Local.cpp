//===- Local.cpp - Ranks as threads of one process ------------------------===//
#include "Local.h"

#include "../Device/CPU.h"
#include "../Device/Reduce.h"
#include "../Support/DTypes.h"
#include "../Support/Tsan.h"
#include "LocalPeers.h"

#include <cstring>

using namespace fsdp;

/// Reads memory of a peer.
static void copyPeer(std::byte *target, const std::byte *source,
                     std::size_t bytes) {
#ifdef FSDP_TSAN
  // What memcpy reads and writes is not seen while uninstrumented modules are
  // ignored.
  __tsan_read_range(const_cast<std::byte *>(source), bytes);
  __tsan_write_range(target, bytes);
#endif
  std::memcpy(target, source, bytes);
}

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
  LocalComm(const Waits &waits, std::chrono::milliseconds timeout,
            LocalGroup &shared, const Group &own)
      : peers(waits, timeout, own), group(shared),
        self(shared.members[own.index]), sources(peers.size) {}

  void prepare(std::span<const Collective> collectives) override {
    self.collectives.assign(collectives.begin(), collectives.end());
    latest.assign(collectives.size(), 0);
  }

  void run(std::size_t first, std::size_t count) override {
    peers.check();
    for (std::size_t which = first; which != first + count; ++which)
      run(which);
  }

  /// Collectives are done in the order in which they were run.
  void drain(std::size_t first, std::size_t count) override {
    std::uint64_t last = latest[first + count - 1];
    for (unsigned peer = 0; peer != peers.size; ++peer)
      if (peer != peers.index)
        peers.await(group.members[peer].done, last, peer,
                    "read this rank's part");
  }

  void barrier() override {
    self.posted.advance(++sequence);
    awaitPosted();
    self.done.advance(sequence);
  }

private:
  void run(std::size_t which) {
    const Collective &mine = self.collectives[which];
    self.posted.advance(++sequence);
    switch (mine.kind) {
    case Collective::Kind::AllGather:
      allGather(mine, which);
      break;
    case Collective::Kind::ReduceScatter:
      awaitPosted();
      reduceSlice(mine, which, peers.index * mine.count, mine.target,
                  mine.count);
      break;
    case Collective::Kind::AllReduce:
      allReduce(mine, which);
      break;
    }
    latest[which] = sequence;
    self.done.advance(sequence);
  }

  void awaitPosted() {
    for (unsigned peer = 0; peer != peers.size; ++peer)
      if (peer != peers.index)
        peers.await(group.members[peer].posted, sequence, peer, "join it");
  }

  void allGather(const Collective &mine, std::size_t which) {
    if (mine.toFirst && peers.index != 0)
      return;
    std::size_t bytes = mine.count * itemSize(mine.sourceType);
    // Starting at different peers keeps the ranks from reading one another's
    // memory in the same order. The own piece may already be in place.
    for (unsigned i = 0; i != peers.size; ++i) {
      unsigned peer = (peers.index + i) % peers.size;
      if (!mine.sourceStable && peer != peers.index)
        peers.await(group.members[peer].posted, sequence, peer, "join it");
      const std::byte *source = group.members[peer].collectives[which].source;
      std::byte *target = mine.target + peer * bytes;
      if (source != target)
        copyPeer(target, source, bytes);
    }
  }

  void reduceSlice(const Collective &mine, std::size_t which, std::size_t begin,
                   std::byte *target, std::size_t count) {
    for (unsigned peer = 0; peer != peers.size; ++peer)
      sources[peer] = group.members[peer].collectives[which].source;
    reduce({mine.sourceType, mine.targetType, mine.via, mine.pre, mine.post,
            mine.reduce},
           sources, begin, target, count);
  }

  /// Each rank sums one slice, then fetches the others' sums. In place is
  /// safe: rank r alone reads slice r of all sources, and has done so when it
  /// posts the second time.
  void allReduce(const Collective &mine, std::size_t which) {
    std::size_t item = itemSize(mine.targetType);
    std::size_t own = peers.begin(peers.index, mine.count);
    awaitPosted();
    reduceSlice(mine, which, own, mine.target + own * item,
                peers.begin(peers.index + 1, mine.count) - own);
    self.posted.advance(++sequence);
    for (unsigned i = 1; i < peers.size; ++i) {
      unsigned peer = (peers.index + i) % peers.size;
      std::size_t at = peers.begin(peer, mine.count);
      std::size_t count = peers.begin(peer + 1, mine.count) - at;
      // Even for nothing: the peer must have read this rank's source.
      peers.await(group.members[peer].posted, sequence, peer, "sum its part");
      copyPeer(mine.target + at * item,
               group.members[peer].collectives[which].target + at * item,
               count * item);
    }
  }

  const LocalPeers peers;
  LocalGroup &group;
  LocalGroup::Member &self;
  std::uint64_t sequence = 0;
  std::vector<std::uint64_t> latest; ///< Number of the latest run, by index.
  std::vector<const std::byte *> sources;
};

} // namespace fsdp

LocalWorld::LocalWorld(unsigned ranks) : waits(ranks) {}
LocalWorld::~LocalWorld() = default;

std::unique_ptr<Comm> LocalWorld::openComm(unsigned communicator,
                                           const Group &group,
                                           std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex);
  std::unique_ptr<LocalGroup> &shared =
      groups[{communicator, group.members.front()}];
  if (!shared)
    shared = std::make_unique<LocalGroup>(group.members.size());
  return std::make_unique<LocalComm>(waits, timeout, *shared, group);
}

namespace {

class LocalBackend : public Backend {
public:
  explicit LocalBackend(unsigned ranks) : ranks(ranks) {
    CPUDevice::installAllocator();
  }

  std::unique_ptr<Device> openDevice(const RankContext &) override {
    return std::make_unique<CPUDevice>();
  }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &) override {
    return ranks.openComm(communicator, group, rank.timeout);
  }
  void abort() noexcept override { ranks.abort(); }

private:
  LocalWorld ranks;
};

} // namespace

std::unique_ptr<Backend> fsdp::makeLocalBackend(unsigned ranks) {
  return std::make_unique<LocalBackend>(ranks);
}
