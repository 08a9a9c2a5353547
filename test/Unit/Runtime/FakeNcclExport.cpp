//===- FakeNcclExport.cpp - A libfsdp_nccl.so without GPUs ----------------===//
//
// The backend itself, with processes whose GPUs and whose NCCL are of ordinary
// memory. FSDP_FAKE_NCCL may say what goes wrong: "RANK WORD NUMBER", with a
// word out of `Setup`.
//
//===----------------------------------------------------------------------===//
#include "FakeDevice.h"
#include "FakeNccl.h"
#include "Runtime/Comm/NCCL/Backend.h"

#include <sstream>

using namespace fsdp;

namespace {

struct Fake {
  FakeCuda fake{1, /*isEager=*/true};
};

class FakeRank : public FakeDevice<NCCLDevice> {
public:
  FakeRank(const fakenccl::Setup &setup, std::unique_ptr<Device> cpu,
           NCCLWorld &world, const RankContext &rank)
      : FakeDevice(std::move(cpu), world, rank), setup(setup) {}

  void enter() override {
    fakenccl::goOn(setup);
    FakeDevice::enter();
  }

private:
  fakenccl::Setup setup;
};

class FakeGPUs : Fake, public NCCLBackend {
public:
  explicit FakeGPUs(World world) : NCCLBackend(fake.api, std::move(world)) {}

  c10::DeviceType deviceType() const override { return c10::kCPU; }

  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    std::unique_ptr<Device> cpu = local->openDevice(rank);
    fakenccl::Setup setup;
    setup.cuda = &fake;
    setup.seed = rank.rank + 1;
    setup.allocate = [cpu = cpu.get()](std::size_t bytes) {
      return cpu->allocate(planfile::Space::Device, bytes);
    };
    const char *text = std::getenv("FSDP_FAKE_NCCL");
    std::istringstream words(text ? text : "");
    unsigned who = 0;
    std::string word;
    int number = 0;
    if (words >> who >> word >> number && who == rank.rank) {
      if (word == "failsAt")
        setup.failsAt = static_cast<unsigned>(number);
      else if (word == "hangsAt")
        setup.hangsAt = static_cast<unsigned>(number);
      else
        setup.absentFrom = number;
    }
    fakenccl::setUp(setup);
    return std::make_unique<FakeRank>(setup, std::move(cpu), nccl, rank);
  }

private:
  std::unique_ptr<Backend> local = makeLocalBackend(1);
};

} // namespace

extern "C" Backend *fsdpMakeBackend(const BackendOptions &options) {
  return std::make_unique<FakeGPUs>(findProcesses(options).world).release();
}
