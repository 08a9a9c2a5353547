//===- MeshTest.cpp - Groups and shards -----------------------------------===//
#include "Runtime/Comm/Mesh.h"
#include "Support/TestPlan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using testing::ElementsAre;

// covers: Intra, DeviceMesh
TEST(Mesh, GroupsOfATwoDimensionalMesh) {
  test::TestPlan plan;
  plan.mesh = {{"replicate", 2}, {"shard", 3}};
  plan.groups = {{"shard", {1}}, {"replicate", {0}}, {"all", {0, 1}}};
  std::vector<std::uint8_t> bytes = plan.flatbuffer();
  const planfile::Plan &p = *planfile::GetPlan(bytes.data());
  EXPECT_EQ(planfile::getRankCount(p), 6u);
  EXPECT_THAT(groupOf(p, 0, 4).members, ElementsAre(3, 4, 5));
  EXPECT_EQ(groupOf(p, 0, 4).index, 1u);
  EXPECT_THAT(groupOf(p, 1, 4).members, ElementsAre(1, 4));
  EXPECT_EQ(groupOf(p, 1, 4).index, 1u);
  EXPECT_THAT(groupOf(p, 2, 4).members, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(groupOf(p, 2, 4).index, 4u);
}

// A unit is sharded over the innermost axes, whoever gathers it or pieces of
// it.
TEST(Mesh, ShardsAreThoseOfAllRanks) {
  test::TestPlan plan = test::makeSmallPlan(4);
  plan.mesh = {{"shard", 2}, {"local", 2}};
  plan.groups = {{"all", {0, 1}}, {"local", {1}}};
  plan.on(planfile::Stream::Gather, planfile::Role::Backward)
      .allGather(0, 5, 0, 1);
  std::vector<std::uint8_t> bytes = plan.flatbuffer();
  const planfile::Plan &p = *planfile::GetPlan(bytes.data());
  EXPECT_THAT(groupOf(p, 1, 3).members, ElementsAre(2, 3));
  EXPECT_THAT(shardIndices(p, 3), ElementsAre(3));
}
