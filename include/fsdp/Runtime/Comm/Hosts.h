//===- Hosts.h - Which machine each rank is on ------------------*- C++ -*-===//
//
// Ranks are numbered row-major over the mesh, outermost axis first: if those of
// one machine are consecutive, the inner axes lie inside it.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_COMM_HOSTS_H
#define FSDP_RUNTIME_COMM_HOSTS_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Comm/Comm.h"
#include "fsdp/Runtime/Support/Error.h"

#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// The rank of each process, given the host of each. Those of one host are
/// consecutive, in the order of the processes; hosts are in the order of their
/// first processes. Or all keep the numbers that they have.
std::vector<unsigned> mapRanks(std::span<const std::string> hosts,
                               RankMap map = RankMap::Hosts);

/// The world of these processes, which are in the order of the launcher, as the
/// one with number `own` sees it; without a store.
World makeWorld(std::span<const Process> processes, unsigned own, RankMap map);

/// "WORLD_SIZE is 4" if a launcher has started several processes like this one,
/// by the environment; or else nothing.
std::string describeLaunch();

/// Processes that are given different maps.
Error differentMaps();

/// For each axis of a mesh of these sizes, whether two ranks that differ in
/// nothing else are on different hosts; `hosts` are of the ranks.
std::vector<bool> findCrossingAxes(std::span<const unsigned> mesh,
                                   std::span<const std::string> hosts);

/// "2 machines: axis replicate crosses machines, axis shard lies inside one"
std::string describeHosts(const planfile::Plan &plan,
                          std::span<const std::string> hosts);

} // namespace fsdp

#endif // FSDP_RUNTIME_COMM_HOSTS_H
