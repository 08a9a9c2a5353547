//===- Watch.h - Who ends waits that the rank cannot end --------*- C++ -*-===//
//
// A rank's thread may be held up inside NCCL, which connects its ranks in the
// first collective, or inside the driver, which has room for so many launches
// while a kernel waits for a peer. A second thread ends that: when a collective
// has not ended with the time-out, or when the run has failed. It only revokes
// the communicators (`ncclCommRevoke`), all in one group: that makes kernels
// and calls return, and frees nothing that they use. The rank's own thread then
// aborts them, in one group, too: one by one, each may wait for the kernels of
// the next (NVIDIA/nccl#1013).
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_NCCL_WATCH_H
#define FSDP_LIB_RUNTIME_COMM_NCCL_WATCH_H

#include "../../Device/CUDA/Device.h"
#include "fsdp/Runtime/Support/Error.h"

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace fsdp {

class NCCLWatch : public std::enable_shared_from_this<NCCLWatch> {
public:
  using Clock = std::chrono::steady_clock;

  /// A communicator whose calls block.
  struct Watched {
    ncclComm_t comm;
    int device; ///< Of this machine.
    std::chrono::milliseconds timeout;
    std::string members; ///< "ranks 0 1".
    CudaEvent done;      ///< Of its latest collective.

    /// When the latest call began, until it is known to be done.
    std::optional<Clock::time_point> since = std::nullopt;
    bool isInside = false; ///< The rank's thread is in that call.
  };
  using Place = std::list<Watched>::iterator;

  explicit NCCLWatch(const CudaApi &api) : api(api) {}
  /// The last call. A thread that is stuck in NCCL is left there.
  void stop();
  NCCLWatch(const NCCLWatch &) = delete;
  NCCLWatch &operator=(const NCCLWatch &) = delete;

  Place add(Watched watched);
  /// Before it is destroyed. False, and it stays, if it has been or is to be
  /// revoked.
  bool remove(Place place);
  /// After `abort`: those that are left, when all have been revoked. Nothing if
  /// that has not ended within `grace`: they must not be touched then.
  std::optional<std::vector<ncclComm_t>> takeRevoked(Clock::duration grace);

  /// The rank's thread is inside NCCL, for this communicator. Throws if it must
  /// not be.
  class Call {
  public:
    Call(NCCLWatch &watch, Place place);
    ~Call();
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

  private:
    NCCLWatch &watch;
    Place place;
  };

  /// Throws why the run has ended, if it has.
  void check() const;
  bool isAborted() const { return aborted.load(std::memory_order_relaxed); }
  void abort() noexcept;
  /// Who has not come to the collective that is under way for longest; nothing
  /// if none is.
  std::optional<std::string> describeLatest();

private:
  void work();
  /// The sentence about the first that is late.
  std::optional<std::string> findLate(Clock::time_point now);
  bool isDone(Watched &watched) const;
  void revoke(std::unique_lock<std::mutex> &lock);

  const CudaApi &api;
  mutable std::mutex mutex; ///< Of all that follows.
  std::condition_variable changed;
  std::list<Watched> all;
  std::string reason = "stopped because another rank failed";
  std::atomic<bool> aborted{false};
  bool isRevoked = false, isOver = false;
  std::thread thread; ///< As soon as there is something to watch.
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_NCCL_WATCH_H
