//===- Mesh.cpp - Ranks, groups and shards --------------------------------===//
#include "Mesh.h"

#include "fsdp/Archive/Box.h"

#include <algorithm>
#include <functional>

using namespace fsdp;

std::string_view fsdp::stringOf(const planfile::Plan &plan,
                                std::uint32_t index) {
  return index == none ? std::string_view()
                       : plan.strings()->Get(index)->string_view();
}

Group fsdp::groupOf(const planfile::Plan &plan, std::uint32_t communicator,
                    unsigned rank) {
  const auto &mesh = *plan.mesh();
  std::vector<unsigned> pitch(mesh.size(), 1);
  for (unsigned axis = mesh.size(); axis-- > 1;)
    pitch[axis - 1] = pitch[axis] * mesh.Get(axis)->size();

  // Start with all of the group's coordinates at zero, then count through.
  Group group;
  group.stream = plan.communicators()->Get(communicator)->stream();
  unsigned origin = rank;
  for (unsigned axis : *plan.communicators()->Get(communicator)->axes())
    origin -= rank / pitch[axis] % mesh.Get(axis)->size() * pitch[axis];
  group.members = {origin};
  for (unsigned axis : *plan.communicators()->Get(communicator)->axes()) {
    std::vector<unsigned> wider;
    for (unsigned member : group.members)
      for (unsigned i = 0; i != mesh.Get(axis)->size(); ++i)
        wider.push_back(member + i * pitch[axis]);
    group.members = std::move(wider);
  }
  while (group.members[group.index] != rank)
    ++group.index;
  return group;
}

unsigned fsdp::shardIndex(const planfile::Plan &plan,
                          const planfile::Unit &unit, unsigned rank) {
  const auto &mesh = *plan.mesh();
  std::vector<unsigned> coordinates(mesh.size());
  for (unsigned axis = mesh.size(); axis-- > 0;) {
    coordinates[axis] = rank % mesh.Get(axis)->size();
    rank /= mesh.Get(axis)->size();
  }
  unsigned index = 0;
  if (unit.shard_axes())
    for (unsigned axis : *unit.shard_axes())
      index = index * mesh.Get(axis)->size() + coordinates[axis];
  return index;
}

std::vector<unsigned> fsdp::shardIndices(const planfile::Plan &plan,
                                         unsigned rank) {
  std::vector<unsigned> indices;
  for (const planfile::Unit *unit : *plan.units())
    indices.push_back(shardIndex(plan, *unit, rank));
  return indices;
}

std::vector<unsigned> fsdp::firstHolders(const planfile::Plan &plan,
                                         const planfile::Unit &unit) {
  std::vector<unsigned> holders(unit.shards(), none);
  for (unsigned rank = 0; rank != planfile::getRankCount(plan); ++rank) {
    unsigned &holder = holders[shardIndex(plan, unit, rank)];
    holder = std::min(holder, rank);
  }
  return holders;
}

std::vector<std::int64_t>
fsdp::storageOrder(const planfile::Plan &plan,
                   const planfile::Parameter &parameter) {
  if (parameter.strides() == none)
    return {};
  const auto &strides = *plan.shapes()->Get(parameter.strides())->values();
  std::vector<std::int64_t> axes = archive::rowMajor(strides.size());
  // Those of one stride stay in order.
  std::ranges::sort(axes, {}, [&](std::int64_t axis) {
    return std::pair(-strides.Get(static_cast<unsigned>(axis)), axis);
  });
  return axes;
}

ShardPart fsdp::intersect(const planfile::Unit &unit, unsigned shard,
                          std::uint64_t begin, std::uint64_t end) {
  std::uint64_t length = unit.numel() / unit.shards(), first = shard * length;
  std::uint64_t low = std::max(begin, first);
  std::uint64_t high = std::min(end, first + length);
  if (low >= high)
    return {};
  return {low - first, low - begin, high - low};
}
