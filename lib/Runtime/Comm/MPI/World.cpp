//===- World.cpp - Ranks as processes of one MPI job ----------------------===//
#include "World.h"

#include "../../DTypes.h"
#include "../Reduce.h"
#include "../Slices.h"

#include <algorithm>
#include <array>
#include <cstring>

using namespace fsdp;

namespace fsdp {

class MPIComm : public Comm {
public:
  MPIComm(MPIWorld &world, int tag, const Group &group,
          std::chrono::milliseconds timeout)
      : world(world), tag(tag), timeout(timeout), index(group.index),
        size(static_cast<unsigned>(group.members.size())), ranks(group.members),
        sources(size) {}

  ~MPIComm() override {
    // Only after a failure is something still on its way.
    for (Messages &messages : flights)
      for (MPI_Request &request : messages.requests)
        if (request != MPI_REQUEST_NULL) {
          MPI_Cancel(&request);
          MPI_Request_free(&request);
        }
  }

  void prepare(std::span<const Collective> given) override {
    collectives.assign(given.begin(), given.end());
    std::size_t wanted = 0, item = 1;
    for (const Collective &c : collectives) {
      if (c.kind == Collective::Kind::AllGather)
        continue;
      item = std::max(item, itemSize(c.sourceType));
      std::size_t count = c.kind == Collective::Kind::AllReduce
                              ? Slices{size}.most(c.count)
                              : c.count;
      wanted = std::max(wanted, count * itemSize(c.sourceType));
    }
    if (size == 1)
      return;
    std::size_t places = flights.size() * (size - 1);
    std::size_t most = world.limits.workspaceBytes / places;
    place = std::min(wanted, std::max(most / item, std::size_t{1}) * item);
    workspace.resize(place * places);
  }

  void run(std::size_t first, std::size_t count) override {
    world.check();
    for (std::size_t which = first; which != first + count; ++which)
      run(collectives[which]);
  }

  /// Nothing is sent any more when a collective is complete.
  void drain(std::size_t, std::size_t) override { world.check(); }

  /// In each round, everybody hears of twice as many members.
  void barrier() override {
    world.check();
    std::byte token{}, answer{};
    for (unsigned distance = 1; distance < size; distance *= 2) {
      receive(flights[0], (index + size - distance) % size, &answer, 1);
      send(flights[0], (index + distance) % size, &token, 1);
      finish(flights[0], "join it");
    }
  }

  std::size_t workspaceBytes() const override { return workspace.size(); }

private:
  /// On their way at the same time.
  struct Messages {
    std::vector<MPI_Request> requests;
    std::vector<unsigned> peers; ///< Of each, the other member.
  };

  void run(const Collective &mine) {
    switch (mine.kind) {
    case Collective::Kind::AllGather:
      return allGather(mine);
    case Collective::Kind::ReduceScatter:
      return reduce(mine, mine.target, [&](unsigned member) {
        return std::pair(member * mine.count, mine.count);
      });
    case Collective::Kind::AllReduce:
      return allReduce(mine);
    }
  }

  void receive(Messages &messages, unsigned member, std::byte *to,
               std::size_t bytes) {
    cut(bytes, [&](std::size_t at, int count) {
      post(messages, member, "MPI_Irecv", [&](MPI_Request *request) {
        return MPI_Irecv(to + at, count, MPI_BYTE,
                         static_cast<int>(ranks[member]), tag, world.comm,
                         request);
      });
    });
  }

  void send(Messages &messages, unsigned member, const std::byte *from,
            std::size_t bytes) {
    cut(bytes, [&](std::size_t at, int count) {
      post(messages, member, "MPI_Isend", [&](MPI_Request *request) {
        return MPI_Isend(from + at, count, MPI_BYTE,
                         static_cast<int>(ranks[member]), tag, world.comm,
                         request);
      });
    });
  }

  /// Both ends cut alike.
  template <typename Post> void cut(std::size_t bytes, const Post &post) const {
    for (std::size_t at = 0; at < bytes; at += world.limits.messageBytes)
      post(at,
           static_cast<int>(std::min(bytes - at, world.limits.messageBytes)));
  }

  template <typename Call>
  void post(Messages &messages, unsigned member, const char *name,
            const Call &call) {
    MPI_Request &request = messages.requests.emplace_back(MPI_REQUEST_NULL);
    messages.peers.push_back(member);
    world.call(name, [&] { return call(&request); });
  }

  /// Waits until they have arrived, here and there.
  void finish(Messages &messages, const char *deed) {
    auto count = static_cast<int>(messages.requests.size());
    auto test = [&] {
      int done = 0;
      world.call("MPI_Testall", [&] {
        return MPI_Testall(count, messages.requests.data(), &done,
                           MPI_STATUSES_IGNORE);
      });
      return done != 0;
    };
    world.await(test, timeout, [&] {
      // Those that are done become null.
      for (std::size_t i = 0; i != messages.requests.size(); ++i) {
        int done = 0;
        world.call("MPI_Test", [&] {
          return MPI_Test(&messages.requests[i], &done, MPI_STATUS_IGNORE);
        });
        if (!done)
          return "rank " + std::to_string(ranks[messages.peers[i]]) + " to " +
                 deed;
      }
      return std::string("nobody any more");
    });
    messages.requests.clear();
    messages.peers.clear();
  }

  /// The others, each starting with the next one, so that not all send to the
  /// same member first.
  template <typename Visit> void forPeers(const Visit &visit) const {
    for (unsigned i = 1; i < size; ++i)
      visit((index + i) % size);
  }

  void allGather(const Collective &mine) {
    std::size_t bytes = mine.count * itemSize(mine.sourceType);
    Messages &messages = flights[0];
    forPeers([&](unsigned peer) {
      receive(messages, peer, mine.target + peer * bytes, bytes);
    });
    forPeers([&](unsigned peer) { send(messages, peer, mine.source, bytes); });
    // The own piece may already be in place.
    if (std::byte *own = mine.target + index * bytes; own != mine.source)
      std::memcpy(own, mine.source, bytes);
    finish(messages, "join it");
  }

  /// Sums this member's slice of all sources. `sliceOf`: where the elements of
  /// a member's slice begin, and how many they are. While one chunk is summed,
  /// the next one is on its way.
  template <typename SliceOf>
  void reduce(const Collective &mine, std::byte *target,
              const SliceOf &sliceOf) {
    std::size_t item = itemSize(mine.sourceType);
    std::size_t chunk = size == 1 ? mine.count : place / item;
    std::size_t most = 0;
    for (unsigned member = 0; member != size; ++member)
      most = std::max(most, sliceOf(member).second);
    std::size_t chunks = chunk == 0 ? 0 : (most + chunk - 1) / chunk;
    auto part = [&](unsigned member, std::size_t number) {
      auto [begin, count] = sliceOf(member);
      std::size_t at = std::min(number * chunk, count);
      return std::pair(begin + at, std::min(chunk, count - at));
    };
    auto start = [&](std::size_t number) {
      Messages &messages = flights[number % 2];
      std::size_t bytes = part(index, number).second * item;
      forPeers([&](unsigned peer) {
        receive(messages, peer, arrival(number, peer), bytes);
      });
      forPeers([&](unsigned peer) {
        auto [begin, count] = part(peer, number);
        send(messages, peer, mine.source + begin * item, count * item);
      });
    };
    if (chunks != 0)
      start(0);
    for (std::size_t number = 0; number != chunks; ++number) {
      if (number + 1 != chunks)
        start(number + 1);
      finish(flights[number % 2], "join it");
      auto [begin, count] = part(index, number);
      for (unsigned member = 0; member != size; ++member)
        sources[member] = member == index ? mine.source + begin * item
                                          : arrival(number, member);
      fsdp::reduce({mine.sourceType, mine.targetType, mine.via, mine.pre,
                    mine.post, mine.reduce},
                   sources, 0, target, count);
      target += count * itemSize(mine.targetType);
    }
  }

  /// Where a member's part of a chunk arrives.
  std::byte *arrival(std::size_t chunk, unsigned member) {
    std::size_t other = member < index ? member : member - 1;
    return workspace.data() + (chunk % 2 * (size - 1) + other) * place;
  }

  /// Each rank sums one slice, then fetches the others' sums. In place is
  /// safe: all has been sent that the sums of others overwrite, and nobody
  /// else needs the slice that this rank overwrites with its own.
  void allReduce(const Collective &mine) {
    Slices slices{size};
    auto sliceOf = [&](unsigned member) {
      std::size_t begin = slices.begin(member, mine.count);
      return std::pair(begin, slices.begin(member + 1, mine.count) - begin);
    };
    std::size_t item = itemSize(mine.targetType);
    auto [own, count] = sliceOf(index);
    reduce(mine, mine.target + own * item, sliceOf);
    Messages &messages = flights[0];
    forPeers([&](unsigned peer) {
      auto [begin, elements] = sliceOf(peer);
      receive(messages, peer, mine.target + begin * item, elements * item);
    });
    forPeers([&](unsigned peer) {
      send(messages, peer, mine.target + own * item, count * item);
    });
    finish(messages, "sum its part");
  }

  MPIWorld &world;
  const int tag;
  const std::chrono::milliseconds timeout;
  const unsigned index, size;
  const std::vector<unsigned> ranks; ///< Of the members.
  std::vector<Collective> collectives;
  std::array<Messages, 2> flights;
  /// For each flight, a place for each other member.
  std::vector<std::byte> workspace;
  std::size_t place = 0;
  std::vector<const std::byte *> sources; ///< Of a sum.
};

} // namespace fsdp

MPIWorld::MPIWorld(MPI_Comm given, unsigned spins, MPILimits limits)
    : spins(spins), limits(limits) {
  call("MPI_Comm_dup", [&] { return MPI_Comm_dup(given, &comm); });
  call("MPI_Comm_set_errhandler",
       [&] { return MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); });
}

std::unique_ptr<Comm> MPIWorld::openComm(unsigned communicator,
                                         const Group &group,
                                         std::chrono::milliseconds timeout) {
  void *most = nullptr;
  int isGiven = 0;
  call("MPI_Comm_get_attr",
       [&] { return MPI_Comm_get_attr(comm, MPI_TAG_UB, &most, &isGiven); });
  if (isGiven &&
      communicator > static_cast<unsigned>(*static_cast<int *>(most)))
    throw Error("MPI has tags for " +
                std::to_string(*static_cast<int *>(most)) +
                " communicators, the plan has more");
  return std::make_unique<MPIComm>(*this, static_cast<int>(communicator), group,
                                   timeout);
}

void MPIWorld::fail(const char *name, int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(std::string(name) + ": " + text, Failure::RankFailed);
}

void MPIWorld::check() const {
  if (aborted.load(std::memory_order_relaxed))
    throw Error("stopped because another rank failed", Failure::RankFailed);
}
