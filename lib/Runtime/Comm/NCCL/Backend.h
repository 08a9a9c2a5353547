//===- Backend.h - What libfsdp_nccl.so exports -----------------*- C++ -*-===//
//
// Processes that torchrun, mpirun or srun has started become the ranks of a
// run, each with a GPU of its machine. The environment tells them where their
// store is.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_NCCL_BACKEND_H
#define FSDP_LIB_RUNTIME_COMM_NCCL_BACKEND_H

#include "../Launcher.h"
#include "World.h"

namespace fsdp {

class NCCLBackend : public Backend {
public:
  NCCLBackend(const CudaApi &cuda, RankMap map);

  World world() const override { return seen; }
  c10::DeviceType deviceType() const override { return c10::kCUDA; }
  bool overlaps() const override { return true; }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned,
                                 const Group &group, Device &device) override {
    return nccl.openComm(rank, group, static_cast<NCCLDevice &>(device));
  }
  std::uint64_t libraryBytes(std::size_t members) const override;
  void finish() override { leaveWorld(seen); }
  void abort() noexcept override { nccl.abort(); }

protected:
  /// Its number on its machine, from 0.
  unsigned local() const;

private:
  LaunchedProcess launch;
  World seen;

protected:
  NCCLWorld nccl;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_NCCL_BACKEND_H
