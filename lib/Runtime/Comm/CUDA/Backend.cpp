//===- Backend.cpp - What libfsdp_cuda.so exports -------------------------===//
#include "../../Device/CUDA/Device.h"
#include "Local.h"

using namespace fsdp;

namespace {

class CUDABackend : public Backend {
public:
  explicit CUDABackend(unsigned ranks) : ranks(ranks), isAlone(ranks == 1) {}

  c10::DeviceType deviceType() const override { return c10::kCUDA; }
  bool overlaps() const override { return true; }

  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    startCuda(rank.rank, rank.device);
    return std::make_unique<CUDADevice>(cudaApi(), rank.rank, rank.device,
                                        isAlone);
  }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &device) override {
    return ranks.openComm(communicator, group,
                          static_cast<CUDADevice &>(device), rank.timeout);
  }
  void abort() noexcept override { ranks.abort(); }

private:
  LocalCUDAWorld ranks;
  bool isAlone; ///< No other rank reads its memory.
};

} // namespace

extern "C" Backend *fsdpMakeBackend(const BackendOptions &options) {
  return std::make_unique<CUDABackend>(options.ranks).release();
}
