//===- Launcher.h - What has started the processes of a run -----*- C++ -*-===//
//
// Processes learn from their environment how many they are and where they meet:
// from torchrun's variables, or those of Open MPI, MPICH or Slurm. Rank 0
// serves their store, unless an agent of torchrun does.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_LAUNCHER_H
#define FSDP_LIB_RUNTIME_COMM_LAUNCHER_H

#include "fsdp/Runtime/Comm/Comm.h"

#include <functional>
#include <optional>
#include <string>

namespace fsdp {

/// One process, as its launcher numbers them.
struct LaunchedProcess {
  unsigned process = 0, processes = 1;
  std::optional<unsigned> local = {}; ///< On its machine, if it is told.
  std::string host = "127.0.0.1";
  std::uint16_t port = 29500; ///< As PyTorch's.
  bool isServed = false;      ///< Somebody else serves the store.
  std::string prefix = {};    ///< Of all keys in the store.
};

/// `variable`: the value of a variable of the environment, or null. Without
/// variables of a launcher, the process is alone. Throws if they do not go
/// together.
LaunchedProcess
readLaunch(const std::function<const char *(const char *)> &variable);

/// The first host of a list of Slurm: "gpu[007-9,12],cpu1" is gpu007.
std::string firstHost(const std::string &list);

/// The name of this machine.
std::string ownHost();

/// The lines of all processes, by number: each says its own. Waits for all of
/// them.
std::vector<std::string> exchange(unsigned process, unsigned processes,
                                  const std::string &line, Store &store,
                                  std::chrono::milliseconds timeout);

/// Meets the other processes, who are given the same `map`. Waits for all of
/// them. `ownHost`: the name of this machine.
World joinWorld(const LaunchedProcess &launch, const std::string &ownHost,
                RankMap map = RankMap::Hosts,
                std::chrono::milliseconds timeout = defaultTimeout);

/// Waits until nobody needs the store any more that rank 0 serves.
void leaveWorld(const World &world, std::chrono::milliseconds timeout);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_LAUNCHER_H
