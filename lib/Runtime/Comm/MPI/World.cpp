//===- World.cpp - Ranks as processes of one MPI job ----------------------===//
#include "World.h"

#include <array>

using namespace fsdp;

namespace fsdp {

class MPIComm : public MessageComm {
public:
  MPIComm(MPIWorld &world, int tag, const Group &group,
          std::chrono::milliseconds timeout)
      : MessageComm(group, world.limits), world(world), tag(tag),
        timeout(timeout) {}

  ~MPIComm() override {
    // Only after a failure is something still on its way.
    for (Messages &messages : flights)
      for (MPI_Request &request : messages.requests)
        if (request != MPI_REQUEST_NULL) {
          MPI_Cancel(&request);
          MPI_Request_free(&request);
        }
  }

private:
  /// On their way at the same time.
  struct Messages {
    std::vector<MPI_Request> requests;
    std::vector<unsigned> peers; ///< Of each, the other member.
  };

  void check() const override { world.check(); }

  void receive(unsigned flight, unsigned member, std::byte *to,
               std::size_t bytes) override {
    post(flights[flight], member, "MPI_Irecv", [&](MPI_Request *request) {
      return MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE,
                       static_cast<int>(ranks[member]), tag, world.comm,
                       request);
    });
  }

  void send(unsigned flight, unsigned member, const std::byte *from,
            std::size_t bytes) override {
    post(flights[flight], member, "MPI_Isend", [&](MPI_Request *request) {
      return MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE,
                       static_cast<int>(ranks[member]), tag, world.comm,
                       request);
    });
  }

  template <typename Call>
  void post(Messages &messages, unsigned member, const char *name,
            const Call &call) {
    MPI_Request &request = messages.requests.emplace_back(MPI_REQUEST_NULL);
    messages.peers.push_back(member);
    world.call(name, [&] { return call(&request); });
  }

  void finish(unsigned flight, const char *deed) override {
    Messages &messages = flights[flight];
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

  MPIWorld &world;
  const int tag;
  const std::chrono::milliseconds timeout;
  std::array<Messages, flightCount> flights;
};

} // namespace fsdp

MPIWorld::MPIWorld(MPI_Comm given, unsigned spins, MessageComm::Limits limits)
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
