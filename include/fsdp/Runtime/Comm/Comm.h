//===- Comm.h - Collectives between ranks -----------------------*- C++ -*-===//
//
// A `Comm` is one communicator as one rank sees it. Addresses never change in
// a plan, so all collectives are announced once (`prepare`) and then only run
// by index; every member of the group announces the same list and runs the
// same indices in the same order. As in NCCL, once a collective is complete
// on rank r, r's source may be overwritten; a backend may complete earlier,
// while peers still read, and then makes up for it in `drain`. Counts are in
// elements. A collective waits in vain only until the backend's `abort`, or
// until the rank's time-out is over; then it throws `fsdp::Error`.
//
// A communicator is one of axes and a stream: its collectives run in the order
// of that stream, which is that of the plan, the same on all ranks. Several
// communicators of the same ranks, one for each stream, are busy at once, so a
// backend keeps them from blocking each other: whenever a collective may start
// (all commands before it on its stream are done, and so are the events that it
// waits for), it starts, or else those start first that stand before it in the
// plan. Then no run hangs: of all commands that wait, on all ranks, look at one
// that stands first in the plan. It waits for events and drains of commands
// before it, which do not wait, and for peers that have only such commands
// ahead of the same one.
//
// The local backend does the first: a rank's thread for compute and its thread
// for all else wait for nothing but this, each in the order of the plan. On a
// GPU, the host calls `run` in the order of the plan, but kernels of several
// streams start in any order: NCCL needs a communicator of its own for each of
// ours and room for one collective of each stream at once
// (`ncclConfig_t.maxCTAs`), or kernels that start in the order of the calls
// (`NCCL_LAUNCH_ORDER_IMPLICIT`).
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_COMM_COMM_H
#define FSDP_RUNTIME_COMM_COMM_H

#include "fsdp/Runtime/Device/Device.h"
#include "fsdp/Runtime/Processes/Process.h"
#include "fsdp/Runtime/Processes/Store.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

struct Collective {
  enum class Kind : std::uint8_t { AllGather, ReduceScatter, AllReduce };

  Kind kind = Kind::AllGather;
  planfile::DType sourceType = planfile::DType::F32;
  planfile::DType targetType = planfile::DType::F32; ///< Gathers: the source's.
  planfile::DType via = planfile::DType::F32; ///< What the sum is rounded to.
  const std::byte *source = nullptr;
  std::byte *target = nullptr;
  /// Of one rank's piece: all_gather's source, reduce_scatter's target; the
  /// whole of an all_reduce.
  std::size_t count = 0;
  double pre = 1, post = 1; ///< (sum of source / pre) / post
  /// Of an all_reduce: Max is NaN if a source is; First is of any type.
  planfile::ReduceKind reduce = planfile::ReduceKind::Sum;
  /// All members' sources are as they were when the program began: a gather
  /// need not wait for its peers to arrive.
  bool sourceStable = false;
  /// Of a gather: the first member alone wants it. The targets of the others
  /// may be written to or not.
  bool toFirst = false;
};

/// The ranks of one communicator that contain one rank.
struct Group {
  std::vector<unsigned> members; ///< Ranks, in the order of gathers and sums.
  unsigned index = 0;            ///< Of the rank in `members`.
  planfile::Stream stream = planfile::Stream::Gather; ///< Of all collectives.
};

class Comm {
public:
  virtual ~Comm() = default;

  /// All collectives of all programs. Once, before the first run.
  virtual void prepare(std::span<const Collective> collectives) = 0;

  /// Enqueues `count` collectives from `first` on, all of one kind, as one
  /// call: none starts before all may, none is done before all are.
  virtual void run(std::size_t first, std::size_t count) = 0;

  /// Lets the stream that is selected go on (on the CPU: returns) when no peer
  /// reads the sources of the latest run of these collectives any more. Called
  /// before those bytes are written.
  virtual void drain(std::size_t first, std::size_t count) = 0;

  virtual void barrier() = 0;

  /// Memory that it holds beside the plan's, since `prepare`.
  virtual std::size_t workspaceBytes() const { return 0; }
};

/// How long a rank waits for another one unless it is told otherwise: as long
/// as PyTorch's process groups with NCCL.
inline constexpr std::chrono::milliseconds defaultTimeout =
    std::chrono::minutes(10);

/// Consecutive ranks of a run: those of one process.
struct RankRange {
  /// The first `count` ranks.
  RankRange(unsigned count) : count(count) {}
  RankRange(unsigned first, unsigned count) : first(first), count(count) {}

  unsigned end() const { return first + count; }
  bool contains(unsigned rank) const { return rank >= first && rank < end(); }

  unsigned first = 0, count;
};

/// The processes that were started together, of one rank each, as one of them
/// sees them.
struct World {
  unsigned rank = 0;
  std::vector<Process> processes = {{}};  ///< By rank.
  std::shared_ptr<Store> store = nullptr; ///< Null: there is one process.

  unsigned size() const { return static_cast<unsigned>(processes.size()); }
  /// Of each process, by rank.
  std::vector<std::string> hosts() const {
    std::vector<std::string> names;
    for (const Process &process : processes)
      names.push_back(process.host);
    return names;
  }
  /// How many processes are on the machine of this one.
  unsigned onThisMachine() const {
    return static_cast<unsigned>(
        std::ranges::count(processes, processes[rank].host, &Process::host));
  }
  /// The number of this process among those of its machine, from 0.
  unsigned local() const {
    auto own = processes.begin() + rank;
    return static_cast<unsigned>(
        std::ranges::count(processes.begin(), own, own->host, &Process::host));
  }
};

/// One rank as its backend sees it.
struct RankContext {
  unsigned rank = 0;      ///< Of the run.
  unsigned localRank = 0; ///< Of this process, from 0.
  unsigned device = 0;    ///< The index of its device on this machine.
  std::shared_ptr<Store> store = nullptr;
  std::chrono::milliseconds timeout = defaultTimeout; ///< Of every wait.
};

/// A kind of device together with the way its ranks talk.
class Backend {
public:
  virtual ~Backend() = default;

  /// Of a backend that connects processes.
  virtual World world() const { return {}; }

  /// What plans are for that it can run.
  virtual c10::DeviceType deviceType() const { return c10::kCPU; }

  /// Its devices run streams side by side without a thread for each.
  virtual bool overlaps() const { return false; }

  /// Called from the rank's thread.
  virtual std::unique_ptr<Device> openDevice(const RankContext &rank) = 0;

  /// Called from the rank's thread, in the order of the communicators. May wait
  /// for the other members of the group.
  virtual std::unique_ptr<Comm> openComm(const RankContext &rank,
                                         unsigned communicator,
                                         const Group &group,
                                         Device &device) = 0;

  /// What a library allocates on the device for a communicator of so many
  /// members, beside the plan's memory and the workspace, in bytes: an
  /// estimate.
  virtual std::uint64_t libraryBytes(std::size_t) const { return 0; }

  /// Leaves the other processes, who do so, too: the last call. Not after a
  /// failure.
  virtual void finish() {}

  /// Makes all calls of the backend and its communicators throw, those that
  /// wait now and later ones. May be called from any thread, at any time, also
  /// while communicators are opened.
  virtual void abort() noexcept = 0;
};

/// CPU memory, ranks are threads of this process: `threads` of them wait for
/// one another.
std::unique_ptr<Backend> makeLocalBackend(unsigned threads);

/// Which rank a process is.
enum class RankMap : std::uint8_t {
  Hosts,   ///< Those of one machine are consecutive.
  Launcher ///< The numbers of what has started them.
};

/// What a backend begins with.
struct BackendOptions {
  unsigned ranks = 1; ///< Of this process.
  RankMap map = RankMap::Hosts;
  /// The processes, where somebody has connected them, who then says which
  /// device each rank has; nothing: a backend for processes asks their
  /// launcher.
  std::optional<World> world = {};
};

/// A backend out of a shared library that exports
/// `extern "C" fsdp::Backend *fsdpMakeBackend(const fsdp::BackendOptions &)`.
/// One that connects processes may wait for them.
std::unique_ptr<Backend> loadBackend(const char *library,
                                     const BackendOptions &options);

} // namespace fsdp

#endif // FSDP_RUNTIME_COMM_COMM_H
