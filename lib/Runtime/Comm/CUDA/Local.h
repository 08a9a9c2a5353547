//===- LocalCUDA.h - Ranks as threads that share a GPU ----------*- C++ -*-===//
//
// Collectives as copies and sums on the streams of the ranks that call them.
// Host threads only tell one another, by counters, that an event has been
// recorded; the GPU does the waiting. A rank's stream waits until its peers'
// sources are ready; that they have been read is waited for by `drain`, on the
// stream that is selected: the one that writes next.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_CUDA_LOCAL_H
#define FSDP_LIB_RUNTIME_COMM_CUDA_LOCAL_H

#include "../../Support/Waits.h"
#include "fsdp/Runtime/Comm/Comm.h"

#include <map>
#include <mutex>

namespace fsdp {

class CUDADevice;

/// What the members of one group share.
struct LocalCUDAGroup;

/// All groups of one set of ranks.
class LocalCUDAWorld {
public:
  explicit LocalCUDAWorld(unsigned ranks);
  ~LocalCUDAWorld();

  std::unique_ptr<Comm>
  openComm(unsigned communicator, const Group &group, CUDADevice &device,
           std::chrono::milliseconds timeout = defaultTimeout);
  void abort() noexcept { waits.abort(); }

private:
  Waits waits;
  std::mutex mutex;
  /// By communicator and first member.
  std::map<std::pair<unsigned, unsigned>, std::unique_ptr<LocalCUDAGroup>>
      groups;
};

/// A backend of such ranks; devices are somebody else's to open.
class LocalCUDABackend : public Backend {
public:
  explicit LocalCUDABackend(unsigned ranks) : ranks(ranks) {}

  bool overlaps() const override { return true; }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &device) override;
  void abort() noexcept override { ranks.abort(); }

private:
  LocalCUDAWorld ranks;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_CUDA_LOCAL_H
