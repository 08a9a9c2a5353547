//===- Backend.cpp - What libfsdp_mpi.so exports --------------------------===//
//
// Processes that mpirun or srun has started become the ranks of a run, those of
// one machine next to each other. MPI tells them where their store is.
//
//===----------------------------------------------------------------------===//
#include "World.h"

#include "../../Support/Counter.h"
#include "fsdp/Runtime/Comm/Hosts.h"

#include <array>
#include <cstdlib>
#include <cstring>

using namespace fsdp;

namespace {

/// While the run begins, MPI ends it itself if something fails.
void check(int code, const char *name) {
  if (code != MPI_SUCCESS)
    throw Error(std::string(name) + " has failed");
}

class MPIBackend : public Backend {
public:
  explicit MPIBackend(RankMap map);

  World world() const override { return seen; }
  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    return local->openDevice(rank);
  }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &) override {
    return messages->openComm(communicator, group, rank.timeout);
  }
  void finish() override { check(MPI_Finalize(), "MPI_Finalize"); }
  void abort() noexcept override { messages->abort(); }

private:
  std::vector<Process> gatherProcesses() const;
  std::shared_ptr<Store> openStore(MPI_Comm comm) const;

  World seen;
  std::unique_ptr<Backend> local = makeLocalBackend(1); ///< For devices.
  std::unique_ptr<MPIWorld> messages;
};

} // namespace

MPIBackend::MPIBackend(RankMap map) {
  int isDone = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&isDone);
  if (isDone)
    throw Error("MPI has been initialized before");
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided),
        "MPI_Init_thread");
  if (provided < MPI_THREAD_SERIALIZED)
    throw Error("expected an MPI library that threads may call in turns "
                "(MPI_THREAD_SERIALIZED), found one without");
  int process = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &process), "MPI_Comm_rank");
  std::vector<Process> processes = gatherProcesses();
  int own[] = {static_cast<int>(map), -static_cast<int>(map)}, least[2] = {};
  check(MPI_Allreduce(own, least, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD),
        "MPI_Allreduce");
  if (least[0] != -least[1])
    throw differentMaps();
  seen = makeWorld(processes, static_cast<unsigned>(process), map);

  MPI_Comm ordered = MPI_COMM_NULL;
  check(
      MPI_Comm_split(MPI_COMM_WORLD, 0, static_cast<int>(seen.rank), &ordered),
      "MPI_Comm_split");
  messages =
      std::make_unique<MPIWorld>(ordered, spinsFor(seen.onThisMachine()));
  if (seen.size() > 1)
    seen.store = openStore(ordered);
}

/// All of them, in the order of MPI.
std::vector<Process> MPIBackend::gatherProcesses() const {
  char host[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0, size = 1;
  check(MPI_Get_processor_name(host, &length), "MPI_Get_processor_name");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  using Line = std::array<char, MPI_MAX_PROCESSOR_NAME + 64>;
  Line own{};
  encodeProcess(ownProcess(host)).copy(own.data(), own.size());
  std::vector<Line> all(static_cast<std::size_t>(size));
  check(MPI_Allgather(own.data(), own.size(), MPI_CHAR, all.data(), own.size(),
                      MPI_CHAR, MPI_COMM_WORLD),
        "MPI_Allgather");
  std::vector<Process> processes;
  for (const Line &line : all)
    processes.push_back(decodeProcess(
        std::string(line.data(), ::strnlen(line.data(), line.size()))));
  return processes;
}

/// Rank 0 serves it, where others find it: under the address of torchrun's
/// variable, or the name of its machine.
std::shared_ptr<Store> MPIBackend::openStore(MPI_Comm comm) const {
  struct {
    char error[256];
    char host[256];
    std::uint16_t port;
  } place{};
  std::shared_ptr<Store> store;
  bool isOneMachine = seen.onThisMachine() == seen.size();
  auto write = [](char (&target)[256], const std::string &text) {
    text.copy(target, sizeof target - 1);
  };
  if (seen.rank == 0) {
    const char *given = std::getenv("MASTER_ADDR");
    write(place.host, isOneMachine ? "127.0.0.1"
                      : given      ? given
                                   : seen.processes.front().host);
    try {
      store = serveStore(place.host, place.port);
    } catch (const Error &error) {
      write(place.error, error.what());
    }
  }
  check(MPI_Bcast(&place, sizeof place, MPI_BYTE, 0, comm), "MPI_Bcast");
  if (place.error[0])
    throw Error(place.error);
  return store ? store : connectStore(place.host, place.port);
}

extern "C" Backend *fsdpMakeBackend(const BackendOptions &options) {
  return std::make_unique<MPIBackend>(options.map).release();
}
