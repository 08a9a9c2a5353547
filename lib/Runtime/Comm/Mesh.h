//===- Mesh.h - Ranks, groups and shards ------------------------*- C++ -*-===//
//
// Ranks are numbered row-major over the mesh, outermost axis first. What
// depends on a rank is derived from its coordinates, since one plan serves all.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_MESH_H
#define FSDP_LIB_RUNTIME_COMM_MESH_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Comm/Comm.h"

#include <string_view>

namespace fsdp {

using planfile::none;

/// The string with this index; empty for `none`.
std::string_view stringOf(const planfile::Plan &plan, std::uint32_t index);

/// The group of `rank` in a communicator.
Group groupOf(const planfile::Plan &plan, std::uint32_t communicator,
              unsigned rank);

/// Which shard of a unit `rank` holds.
unsigned shardIndex(const planfile::Plan &plan, const planfile::Unit &unit,
                    unsigned rank);
/// The same of each unit: units are sharded over the innermost axes of the
/// mesh.
std::vector<unsigned> shardIndices(const planfile::Plan &plan, unsigned rank);

/// Of each shard of a unit, the first rank that holds it.
std::vector<unsigned> firstHolders(const planfile::Plan &plan,
                                   const planfile::Unit &unit);

/// The axes of a parameter as it lies in memory, from the slowest to the
/// fastest.
std::vector<std::int64_t> storageOrder(const planfile::Plan &plan,
                                       const planfile::Parameter &parameter);

/// What a range of a flat parameter and one shard of it have in common, in
/// elements from the start of the shard and of the range.
struct ShardPart {
  std::uint64_t inShard = 0, inRange = 0, count = 0;
};
ShardPart intersect(const planfile::Unit &unit, unsigned shard,
                    std::uint64_t begin, std::uint64_t end);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_MESH_H
