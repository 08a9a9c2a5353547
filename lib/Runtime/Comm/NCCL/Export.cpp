//===- Export.cpp - What libfsdp_nccl.so exports --------------------------===//
#include "Backend.h"

using namespace fsdp;

namespace {

class GPUs : public NCCLBackend {
public:
  explicit GPUs(RankMap map) : NCCLBackend(cudaApi(), map) {}

  /// A launcher may show each process its own GPU alone.
  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    int count = 1;
    cudaApi().check(cudaGetDeviceCount(&count), "cudaGetDeviceCount",
                    rank.rank);
    RankContext own = rank;
    own.device = local() % static_cast<unsigned>(count);
    startCuda(rank.rank, own.device);
    return std::make_unique<NCCLDevice>(nccl, own);
  }
};

} // namespace

extern "C" Backend *fsdpMakeBackend(const BackendOptions &options) {
  return std::make_unique<GPUs>(options.map).release();
}
