//===- Backend.cpp - What libfsdp_cuda.so exports -------------------------===//
#include "../../Device/CUDA/Device.h"
#include "Local.h"

using namespace fsdp;

namespace {

class CUDABackend : public LocalCUDABackend {
public:
  explicit CUDABackend(unsigned ranks)
      : LocalCUDABackend(ranks), isAlone(ranks == 1) {}

  c10::DeviceType deviceType() const override { return c10::kCUDA; }
  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    startCuda(rank.rank, rank.device);
    return std::make_unique<CUDADevice>(cudaApi(), rank.rank, rank.device,
                                        isAlone);
  }

private:
  bool isAlone; ///< No other rank reads its memory.
};

} // namespace

extern "C" Backend *fsdpMakeBackend(const BackendOptions &options) {
  return std::make_unique<CUDABackend>(options.ranks).release();
}
