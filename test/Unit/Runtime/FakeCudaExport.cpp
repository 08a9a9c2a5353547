//===- FakeCudaExport.cpp - A libfsdp_cuda.so without a GPU ---------------===//
//
// One rank, whose GPU is of ordinary memory, and whose host runs ahead.
//
//===----------------------------------------------------------------------===//
#include "FakeCuda.h"
#include "FakeDevice.h"
#include "Runtime/Comm/CUDA/Local.h"

using namespace fsdp;

namespace {

class FakeGPU : public LocalCUDABackend {
public:
  FakeGPU() : LocalCUDABackend(1) {}

  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    std::unique_ptr<Device> cpu = local->openDevice(rank);
    fake.api.malloc = [cpu = cpu.get()](void **place, std::size_t bytes) {
      *place = cpu->allocate(planfile::Space::Device, bytes);
      return cudaSuccess;
    };
    fake.api.free = [](void *) { return cudaSuccess; };
    return std::make_unique<FakeDevice<CUDADevice>>(
        std::move(cpu), fake.api, rank.rank, rank.device, /*ahead=*/true);
  }

private:
  FakeCuda fake{1, /*isEager=*/true};
  std::unique_ptr<Backend> local = makeLocalBackend(1);
};

} // namespace

extern "C" Backend *fsdpMakeBackend(const BackendOptions &) {
  return std::make_unique<FakeGPU>().release();
}
