//===- Backend.cpp - Processes that NCCL connects -------------------------===//
#include "Backend.h"

#include <algorithm>
#include <cstdlib>

using namespace fsdp;

NCCLBackend::NCCLBackend(const CudaApi &cuda, RankMap map)
    : launch(readLaunch([](const char *name) { return std::getenv(name); })),
      seen(joinWorld(launch, ownHost(), map)), nccl(cuda, seen.size()) {
  // Kernels of several communicators then start in the order of the plan, the
  // same on all ranks: they can't wait for one another.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
}

unsigned NCCLBackend::local() const {
  auto own = seen.hosts.begin() + seen.rank;
  return launch.local.value_or(
      static_cast<unsigned>(std::count(seen.hosts.begin(), own, *own)));
}
