//===- Export.cpp - What libfsdp_nccl.so exports --------------------------===//
#include "Backend.h"

using namespace fsdp;

namespace {

class GPUs : public NCCLBackend {
public:
  explicit GPUs(NCCLProcesses processes)
      : NCCLBackend(cudaApi(), std::move(processes.world)),
        local(processes.local) {}

  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    int count = 1;
    cudaApi().check(cudaGetDeviceCount(&count), "cudaGetDeviceCount",
                    rank.rank);
    RankContext own = rank;
    // A launcher may show each process its own GPU alone.
    if (local)
      own.device = *local % static_cast<unsigned>(count);
    startCuda(rank.rank, own.device);
    return std::make_unique<NCCLDevice>(nccl, own);
  }

private:
  std::optional<unsigned> local;
};

} // namespace

extern "C" Backend *fsdpMakeBackend(const BackendOptions &options) {
  return std::make_unique<GPUs>(findProcesses(options)).release();
}
