//===- Mesh.cpp - Ranks, groups and shards --------------------------------===//
#include "Mesh.h"

#include "fsdp/Runtime/Error.h"

#include <string>

using namespace fsdp;

std::string_view fsdp::stringOf(const planfile::Plan &plan,
                                std::uint32_t index) {
  return index == none ? std::string_view()
                       : plan.strings()->Get(index)->string_view();
}

unsigned fsdp::rankCount(const planfile::Plan &plan) {
  unsigned ranks = 1;
  for (const planfile::MeshAxis *axis : *plan.mesh())
    ranks *= axis->size();
  return ranks;
}

Group fsdp::groupOf(const planfile::Plan &plan, std::uint32_t communicator,
                    unsigned rank) {
  const auto &mesh = *plan.mesh();
  std::vector<unsigned> pitch(mesh.size(), 1);
  for (unsigned axis = mesh.size(); axis-- > 1;)
    pitch[axis - 1] = pitch[axis] * mesh.Get(axis)->size();

  // Start with all of the group's coordinates at zero, then count through.
  Group group;
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

std::vector<unsigned> fsdp::shardIndices(const planfile::Plan &plan,
                                         unsigned rank) {
  std::vector<std::uint32_t> over(plan.units()->size(), none);
  // What gathers pieces for a smaller group does not say how a unit is cut.
  auto cut = [&](std::uint32_t unit, std::uint32_t communicator) {
    if (unit != none && groupOf(plan, communicator, rank).members.size() ==
                            plan.units()->Get(unit)->shards())
      over[unit] = communicator;
  };
  for (const planfile::Program *program : *plan.programs())
    for (const planfile::Command *command : *program->commands()) {
      if (const auto *gather = command->step_as_AllGather())
        cut(gather->unit(), gather->communicator());
      else if (const auto *scatter = command->step_as_ReduceScatter())
        cut(scatter->unit(), scatter->communicator());
    }
  std::vector<unsigned> indices;
  for (unsigned unit = 0; unit != plan.units()->size(); ++unit) {
    unsigned shards = plan.units()->Get(unit)->shards();
    if (shards == 1) {
      indices.push_back(0);
      continue;
    }
    // A unit that no program uses is cut as any communicator would cut it.
    for (unsigned c = 0;
         over[unit] == none && c != plan.communicators()->size(); ++c)
      if (groupOf(plan, c, rank).members.size() == shards)
        over[unit] = c;
    Group group;
    if (over[unit] != none)
      group = groupOf(plan, over[unit], rank);
    if (group.members.size() != shards)
      throw Error("unit " +
                  std::string(stringOf(plan, plan.units()->Get(unit)->name())) +
                  " has " + std::to_string(shards) +
                  " shards, and no communicator of so many ranks");
    indices.push_back(group.index);
  }
  return indices;
}
