//===- World.h - Ranks as processes that NCCL connects ----------*- C++ -*-===//
//
// Every communicator of the plan is one of NCCL's. They are split from one of
// all ranks, in which no call blocks: so a rank that waits for the others to
// connect polls, and gives up by itself. The calls of those that were split
// block, since NCCL starts a thread for each that does not; `NCCLWatch` ends
// them. Where the rank waits for its GPU, it polls. So waits end with their
// time-out, with an error of any communicator, or when the run is aborted.
// Device memory comes from NCCL and is registered with each communicator as a
// symmetric window: its addresses never change, and the plan's offsets are the
// same on all ranks.
//
// Sums have the order and the rounding of NCCL, not those of the local backend.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_NCCL_WORLD_H
#define FSDP_LIB_RUNTIME_COMM_NCCL_WORLD_H

#include "../../Device/CUDA/Device.h"
#include "../../Support/Text.h"
#include "Watch.h"
#include "fsdp/Runtime/Comm/Comm.h"
#include "fsdp/Runtime/Support/Error.h"

#include <nccl.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

namespace fsdp {

class NCCLDevice;

/// What the communicators of one rank share.
class NCCLWorld {
public:
  /// `size`: how many ranks the run has.
  NCCLWorld(const CudaApi &cuda, unsigned size);
  ~NCCLWorld() { watching->stop(); }
  NCCLWorld(const NCCLWorld &) = delete;
  NCCLWorld &operator=(const NCCLWorld &) = delete;

  /// Waits for all ranks, who open their communicators in the same order.
  std::unique_ptr<Comm> openComm(const RankContext &rank, const Group &group,
                                 NCCLDevice &device);
  void abort() noexcept { watching->abort(); }

  // For the device and the communicators.

  /// CUDA, but for memory, which is NCCL's.
  const CudaApi &cuda() const { return api; }
  struct Block {
    void *begin;
    std::size_t bytes;
  };
  /// Memory of the device, in the order in which it was allocated.
  const std::vector<Block> &blocks() const { return allocated; }

  NCCLWatch &watch() const { return *watching; }

  /// Polls until `test` is true. `describe`: what is waited for.
  template <typename Test, typename Describe>
  void await(const Test &test, std::chrono::milliseconds timeout,
             const Describe &describe) const;

private:
  friend class NCCLDevice;

  /// Made by rank 0, and known to the others through the store.
  ncclUniqueId agreeOnId(const RankContext &rank);

  CudaApi api;
  const unsigned size;
  std::vector<Block> allocated;
  unsigned connected = 0; ///< How often the ranks have.
  std::shared_ptr<NCCLWatch> watching;
};

class NCCLDevice : public CUDADevice {
public:
  NCCLDevice(NCCLWorld &world, const RankContext &rank)
      : CUDADevice(world.cuda(), rank.rank, rank.device, /*ahead=*/true),
        world(world), index(rank.device), timeout(rank.timeout) {}
  ~NCCLDevice() override;

  /// Those of one color become a communicator, ordered by `key`, whose calls
  /// block. Waits for all ranks of the run.
  NCCLWatch::Place split(const RankContext &rank, int color, int key,
                         const std::vector<unsigned> &members);
  /// Destroys it if nothing has failed.
  void close(NCCLWatch::Place comm);

private:
  /// A collective may wait for a rank that has died: polls.
  void finish(cudaStream_t stream) const override;
  void finish(cudaEvent_t event) const override;
  void awaitWork(const std::function<cudaError_t()> &query) const;
  void connect(const RankContext &rank);
  void settle(const char *call) const;
  /// All communicators, in one group.
  void abortAll();

  NCCLWorld &world;
  unsigned index;
  std::chrono::milliseconds timeout;
  ncclComm_t everyone = nullptr; ///< Of all ranks; its calls do not block.
  /// One that everyone is being split into; NCCL's thread writes it.
  ncclComm_t coming = nullptr;
  std::vector<ncclComm_t> comms; ///< That are open.
};

/// Throws with the name of the call and NCCL's reason if it failed. A call that
/// is not complete yet has not.
void checkNCCL(ncclResult_t result, const char *call);

/// False as long as a call of the communicator is not complete. Throws if it,
/// or an earlier collective, has failed.
bool isSettled(ncclComm_t comm, const char *call);

template <typename Test, typename Describe>
void NCCLWorld::await(const Test &test, std::chrono::milliseconds timeout,
                      const Describe &describe) const {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds isLate{1};
  // The longer it has waited, the less often it asks.
  constexpr Clock::duration shortest = std::chrono::microseconds(50),
                            longest = std::chrono::milliseconds(5);
  Clock::time_point begin = Clock::now();
  for (;;) {
    watch().check();
    if (test())
      return;
    auto waited = Clock::now() - begin;
    if (waited >= timeout)
      throw Error("waited " + spellSeconds(timeout) + " for " + describe(),
                  Failure::RankFailed);
    if (waited >= isLate)
      std::this_thread::sleep_for(std::clamp(waited / 256, shortest, longest));
  }
}

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_NCCL_WORLD_H
