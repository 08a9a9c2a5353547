//===- Backend.h - What libfsdp_nccl.so exports -----------------*- C++ -*-===//
//
// Processes become the ranks of a run, each with a GPU of its machine: those of
// a world that is given, or those that torchrun, mpirun or srun has started,
// whose environment says where their store is.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_NCCL_BACKEND_H
#define FSDP_LIB_RUNTIME_COMM_NCCL_BACKEND_H

#include "../Launcher.h"
#include "World.h"

#include <optional>

namespace fsdp {

/// The processes, and the number of this one on its machine where a launcher
/// has started them.
struct NCCLProcesses {
  World world;
  std::optional<unsigned> local = {};
};

/// Those that are given, or else those of the launcher, whom it waits for.
NCCLProcesses findProcesses(const BackendOptions &options);

class NCCLBackend : public Backend {
public:
  NCCLBackend(const CudaApi &cuda, World world);

  World world() const override { return seen; }
  c10::DeviceType deviceType() const override { return c10::kCUDA; }
  bool overlaps() const override { return true; }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned,
                                 const Group &group, Device &device) override {
    return nccl.openComm(rank, group, static_cast<NCCLDevice &>(device));
  }
  std::uint64_t libraryBytes(std::size_t members) const override;
  void finish() override {
    // All have come to their ends: what is left is a request.
    leaveWorld(seen, std::chrono::seconds(30));
  }
  void abort() noexcept override { nccl.abort(); }

private:
  World seen;

protected:
  NCCLWorld nccl;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_NCCL_BACKEND_H
