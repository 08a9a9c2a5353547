//===- World.h - Ranks as processes that NCCL connects ----------*- C++ -*-===//
//
// Every communicator of the plan is one of NCCL's, in which no call blocks: all
// waits are polled here, so that they end with their time-out, with an error of
// any communicator, or when the run is aborted. Device memory comes from NCCL
// and is registered with each communicator as a symmetric window: its addresses
// never change, and the plan's offsets are the same on all ranks.
//
// Sums have the order and the rounding of NCCL, not those of the local backend.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_NCCL_WORLD_H
#define FSDP_LIB_RUNTIME_COMM_NCCL_WORLD_H

#include "../../Device/CUDA/Device.h"
#include "../../Text.h"
#include "fsdp/Runtime/Comm.h"
#include "fsdp/Runtime/Error.h"

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <vector>

namespace fsdp {

class NCCLDevice;

/// What the communicators of one rank share.
class NCCLWorld {
public:
  explicit NCCLWorld(const CudaApi &cuda);
  NCCLWorld(const NCCLWorld &) = delete;
  NCCLWorld &operator=(const NCCLWorld &) = delete;

  /// Waits for the other members.
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, NCCLDevice &device);
  void abort() noexcept { aborted.store(true); }

  // For the device and the communicators.

  /// CUDA, but for memory, which is NCCL's.
  const CudaApi &cuda() const { return api; }
  struct Block {
    void *begin;
    std::size_t bytes;
  };
  /// Memory of the device, in the order in which it was allocated.
  const std::vector<Block> &blocks() const { return allocated; }

  bool isAborted() const { return aborted.load(std::memory_order_relaxed); }

  /// Polls until `test` is true. `describe`: what is waited for.
  template <typename Test, typename Describe>
  void await(const Test &test, std::chrono::milliseconds timeout,
             const Describe &describe) const;

private:
  friend class NCCLComm;

  /// Made by the first member, and known to the others through the store.
  ncclUniqueId agreeOnId(const RankContext &rank, unsigned communicator,
                         const Group &group);

  CudaApi api;
  std::vector<Block> allocated;
  /// How often the group of a communicator has been opened.
  std::map<std::pair<unsigned, unsigned>, unsigned> opened;
  std::atomic<bool> aborted{false};
};

class NCCLDevice : public CUDADevice {
public:
  NCCLDevice(NCCLWorld &world, const RankContext &rank)
      : CUDADevice(world.cuda(), rank.rank, rank.device), world(world),
        timeout(rank.timeout) {}

private:
  friend class NCCLComm;

  /// A collective may wait for a rank that has died: polls.
  void finish(cudaStream_t stream) const override;

  NCCLWorld &world;
  std::chrono::milliseconds timeout;
  std::vector<ncclComm_t> comms; ///< That are open.
};

/// Throws with the name of the call and NCCL's reason if it failed. A call that
/// is not complete yet has not.
void checkNCCL(ncclResult_t result, const char *call);

/// False as long as the latest call of the communicator is not complete. Throws
/// if it, or an earlier collective, has failed.
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
    if (isAborted())
      throw Error("stopped because another rank failed", Failure::RankFailed);
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
