//===- Backend.cpp - Processes that NCCL connects -------------------------===//
#include "Backend.h"

#include <cstdlib>

using namespace fsdp;

NCCLProcesses fsdp::findProcesses(const BackendOptions &options) {
  if (options.world)
    return {*options.world};
  LaunchedProcess launch =
      readLaunch([](const char *name) { return std::getenv(name); });
  World world = joinWorld(launch, ownHost(), options.map);
  unsigned local = launch.local.value_or(world.local());
  return {std::move(world), local};
}

NCCLBackend::NCCLBackend(const CudaApi &cuda, World world)
    : seen(std::move(world)), nccl(cuda, seen.size()) {
  // Kernels of several communicators then start in the order of the plan, the
  // same on all ranks: they can't wait for one another.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
}

/// NCCL 2.28 connects the rings of a communicator in its first collective. In
/// each channel, a member has a buffer of each protocol for its neighbour
/// (init.cc, `DEFAULT_LL_BUFFSIZE`, `DEFAULT_LL128_BUFFSIZE`,
/// `DEFAULT_BUFFSIZE`; p2p.cc, `p2pRecvSetup`), and there are at most 32 of
/// them
/// (`maxChannels` of the ring graph, MAXCHANNELS / 2). Trees and the switch add
/// to this where NCCL takes them; copy engines and symmetric kernels need none.
std::uint64_t NCCLBackend::libraryBytes(std::size_t members) const {
  constexpr std::uint64_t lowLatency = 512 << 10, lowLatency128 = 4800 << 10,
                          simple = 4 << 20, mostChannels = 32;
  return members > 1 ? mostChannels * (lowLatency + lowLatency128 + simple) : 0;
}
