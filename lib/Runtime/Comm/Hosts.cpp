//===- Hosts.cpp - Which machine each rank is on --------------------------===//
#include "fsdp/Runtime/Comm/Hosts.h"

#include "Mesh.h"

#include <map>
#include <numeric>
#include <set>

using namespace fsdp;

std::vector<unsigned> fsdp::mapRanks(std::span<const std::string> hosts,
                                     RankMap map) {
  if (map == RankMap::Launcher) {
    std::vector<unsigned> ranks(hosts.size());
    std::iota(ranks.begin(), ranks.end(), 0u);
    return ranks;
  }
  std::map<std::string_view, unsigned> counts;
  for (const std::string &host : hosts)
    ++counts[host];
  // Where the ranks of each host begin.
  std::map<std::string_view, unsigned> next;
  unsigned begin = 0;
  for (const std::string &host : hosts)
    if (next.emplace(host, begin).second)
      begin += counts[host];
  std::vector<unsigned> ranks;
  for (const std::string &host : hosts)
    ranks.push_back(next[host]++);
  return ranks;
}

World fsdp::makeWorld(std::span<const Process> processes, unsigned own,
                      RankMap map) {
  World world;
  world.processes.assign(processes.begin(), processes.end());
  std::vector<unsigned> ranks = mapRanks(world.hosts(), map);
  world.rank = ranks[own];
  for (std::size_t number = 0; number != ranks.size(); ++number)
    world.processes[ranks[number]] = processes[number];
  return world;
}

Error fsdp::differentMaps() {
  return Error("--map: expected the same for all processes, found two");
}

std::vector<bool> fsdp::findCrossingAxes(std::span<const unsigned> mesh,
                                         std::span<const std::string> hosts) {
  std::vector<bool> crosses(mesh.size());
  std::size_t pitch = hosts.size();
  for (std::size_t axis = 0; axis != mesh.size(); ++axis) {
    pitch /= mesh[axis];
    for (std::size_t rank = 0; rank != hosts.size(); ++rank) {
      std::size_t first = rank - rank / pitch % mesh[axis] * pitch;
      crosses[axis] = crosses[axis] || hosts[rank] != hosts[first];
    }
  }
  return crosses;
}

std::string fsdp::describeHosts(const planfile::Plan &plan,
                                std::span<const std::string> hosts) {
  std::size_t machines = std::set(hosts.begin(), hosts.end()).size();
  if (machines == 1)
    return "1 machine";
  std::vector<unsigned> mesh;
  for (const planfile::MeshAxis *axis : *plan.mesh())
    mesh.push_back(axis->size());
  std::vector<bool> crosses = findCrossingAxes(mesh, hosts);
  std::string text = std::to_string(machines) + " machines";
  for (unsigned axis = 0; axis != mesh.size(); ++axis)
    if (mesh[axis] > 1)
      text += (text.find(':') == std::string::npos ? ": axis " : ", axis ") +
              std::string(stringOf(plan, plan.mesh()->Get(axis)->name())) +
              (crosses[axis] ? " crosses machines" : " lies inside one");
  return text;
}
