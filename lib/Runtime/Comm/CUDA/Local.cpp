//===- LocalCUDA.cpp - Ranks as threads that share a GPU ------------------===//
#include "Local.h"

#include "../../Device/CUDA/Device.h"
#include "../../Support/DTypes.h"
#include "../LocalPeers.h"

#include <algorithm>

using namespace fsdp;

/// Sums go through scratch in pieces of at most this many elements.
static constexpr std::size_t chunkElements = std::size_t{1} << 20;

/// Events are made once. A collective runs once in a run of its program, and
/// the ranks meet between runs: nobody records an event again while a peer has
/// yet to ask for the wait.
struct fsdp::LocalCUDAGroup {
  struct Events {
    CudaEvent ready;  ///< The source may be read.
    CudaEvent summed; ///< all_reduce: the own slice of the target may be read.
    CudaEvent done;   ///< The peers' memory has been read.
  };
  struct Member {
    /// The number of the latest collective whose source (or sum) is announced
    /// by a recorded event, and of the latest whose reads are.
    Counter posted, done;
    std::vector<Collective> collectives;
    std::vector<Events> events;
  };
  explicit LocalCUDAGroup(std::size_t size) : members(size) {}
  std::vector<Member> members;
};

namespace fsdp {

class LocalCUDAComm : public Comm {
public:
  LocalCUDAComm(const Waits &waits, std::chrono::milliseconds timeout,
                LocalCUDAGroup &shared, const Group &own, CUDADevice &device)
      : peers(waits, timeout, own), group(shared),
        self(shared.members[own.index]), device(device),
        stream(device.stream(own.stream)), sources(peers.size) {}

  void prepare(std::span<const Collective> collectives) override {
    self.collectives.assign(collectives.begin(), collectives.end());
    latest.assign(collectives.size(), 0);
    self.events.clear();
    std::size_t largest = 0;
    for (const Collective &c : collectives) {
      bool isReduce = c.kind == Collective::Kind::AllReduce;
      self.events.push_back(
          {event(), isReduce ? event() : CudaEvent{}, event()});
      if (c.kind != Collective::Kind::AllGather)
        largest = std::max(largest, isReduce ? peers.slice(c.count) : c.count);
    }
    chunk = std::min(largest, chunkElements);
    scratch =
        device.allocate(planfile::Space::Device, chunk * Sum::scratchItem);
  }

  void run(std::size_t first, std::size_t count) override {
    peers.check();
    for (std::size_t which = first; which != first + count; ++which)
      run(which);
  }

  void drain(std::size_t first, std::size_t count) override {
    for (std::size_t which = first; which != first + count; ++which)
      drain(which);
  }

  void barrier() override {
    device.synchronize();
    self.posted.advance(++sequence);
    for (unsigned peer = 0; peer != peers.size; ++peer)
      if (peer != peers.index)
        peers.await(group.members[peer].posted, sequence, peer, "join it");
    self.done.advance(sequence);
  }

  std::size_t workspaceBytes() const override {
    return chunk * Sum::scratchItem;
  }

private:
  CudaEvent event() const {
    return makeEvent(device.cuda(), peers.rank(peers.index));
  }

  void run(std::size_t which) {
    const Collective &mine = self.collectives[which];
    ++sequence;
    if (!mine.sourceStable || mine.kind != Collective::Kind::AllGather)
      device.record(stream, self.events[which].ready.get());
    self.posted.advance(sequence);
    switch (mine.kind) {
    case Collective::Kind::AllGather:
      allGather(mine, which);
      break;
    case Collective::Kind::ReduceScatter:
      awaitSources(which);
      sumSlice(mine, which, peers.index * mine.count, mine.target, mine.count);
      break;
    case Collective::Kind::AllReduce:
      allReduce(mine, which);
      break;
    }
    device.record(stream, self.events[which].done.get());
    latest[which] = sequence;
    self.done.advance(sequence);
  }

  void drain(std::size_t which) {
    if (latest[which] == 0)
      return;
    cudaStream_t writer = device.selectedStream();
    for (unsigned peer = 0; peer != peers.size; ++peer)
      if (peer != peers.index) {
        peers.await(group.members[peer].done, latest[which], peer,
                    "read this rank's part");
        device.wait(writer, group.members[peer].events[which].done.get());
      }
  }

  void awaitSource(unsigned peer, std::size_t which) {
    peers.await(group.members[peer].posted, sequence, peer, "join it");
    device.wait(stream, group.members[peer].events[which].ready.get());
  }

  void awaitSources(std::size_t which) {
    for (unsigned peer = 0; peer != peers.size; ++peer)
      if (peer != peers.index)
        awaitSource(peer, which);
  }

  void copy(std::byte *target, const std::byte *source, std::size_t bytes) {
    if (source != target && bytes != 0)
      device.check(device.cuda().memcpyAsync(target, source, bytes,
                                             cudaMemcpyDeviceToDevice, stream),
                   "cudaMemcpyAsync");
  }

  void allGather(const Collective &mine, std::size_t which) {
    std::size_t bytes = mine.count * itemSize(mine.sourceType);
    // Starting with the own piece: the others may not be ready yet.
    for (unsigned i = 0; i != peers.size; ++i) {
      unsigned peer = (peers.index + i) % peers.size;
      if (!mine.sourceStable && peer != peers.index)
        awaitSource(peer, which);
      copy(mine.target + peer * bytes,
           group.members[peer].collectives[which].source, bytes);
    }
  }

  void sumSlice(const Collective &mine, std::size_t which, std::size_t begin,
                std::byte *target, std::size_t count) {
    for (unsigned peer = 0; peer != peers.size; ++peer)
      sources[peer] = group.members[peer].collectives[which].source;
    if (count != 0)
      device.cuda().sum({{mine.sourceType, mine.targetType, mine.via, mine.pre,
                          mine.post, mine.reduce},
                         sources,
                         begin,
                         target,
                         count,
                         scratch,
                         chunk},
                        stream);
  }

  /// Each rank sums one slice, then fetches the others' sums. In place is
  /// safe: rank r alone reads slice r of all sources, and has done so when its
  /// sum is there.
  void allReduce(const Collective &mine, std::size_t which) {
    std::size_t item = itemSize(mine.targetType);
    std::size_t own = peers.begin(peers.index, mine.count);
    awaitSources(which);
    sumSlice(mine, which, own, mine.target + own * item,
             peers.begin(peers.index + 1, mine.count) - own);
    device.record(stream, self.events[which].summed.get());
    self.posted.advance(++sequence);
    for (unsigned i = 1; i < peers.size; ++i) {
      unsigned peer = (peers.index + i) % peers.size;
      LocalCUDAGroup::Member &other = group.members[peer];
      std::size_t at = peers.begin(peer, mine.count) * item;
      peers.await(other.posted, sequence, peer, "sum its part");
      device.wait(stream, other.events[which].summed.get());
      copy(mine.target + at, other.collectives[which].target + at,
           peers.begin(peer + 1, mine.count) * item - at);
    }
  }

  const LocalPeers peers;
  LocalCUDAGroup &group;
  LocalCUDAGroup::Member &self;
  CUDADevice &device;
  cudaStream_t stream;
  std::uint64_t sequence = 0;
  std::vector<std::uint64_t> latest; ///< Number of the latest run, by index.
  std::vector<const std::byte *> sources;
  std::byte *scratch = nullptr;
  std::size_t chunk = 0; ///< Elements that it has room for.
};

} // namespace fsdp

LocalCUDAWorld::LocalCUDAWorld(unsigned ranks) : waits(ranks) {}
LocalCUDAWorld::~LocalCUDAWorld() = default;

std::unique_ptr<Comm>
LocalCUDAWorld::openComm(unsigned communicator, const Group &group,
                         CUDADevice &device,
                         std::chrono::milliseconds timeout) {
  std::lock_guard lock(mutex);
  std::unique_ptr<LocalCUDAGroup> &shared =
      groups[{communicator, group.members.front()}];
  if (!shared)
    shared = std::make_unique<LocalCUDAGroup>(group.members.size());
  return std::make_unique<LocalCUDAComm>(waits, timeout, *shared, group,
                                         device);
}

std::unique_ptr<Comm> LocalCUDABackend::openComm(const RankContext &rank,
                                                 unsigned communicator,
                                                 const Group &group,
                                                 Device &device) {
  return ranks.openComm(communicator, group, static_cast<CUDADevice &>(device),
                        rank.timeout);
}
