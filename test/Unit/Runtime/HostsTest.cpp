//===- HostsTest.cpp - Ranks on several machines --------------------------===//
#include "fsdp/Runtime/Comm/Hosts.h"

#include "SmallModel.h"

#include <gmock/gmock.h>

using namespace fsdp;
using namespace fsdp::test;
using testing::ElementsAre;

namespace {

using Hosts = std::vector<std::string>;

TEST(Hosts, RanksOfOneMachineAreConsecutive) {
  EXPECT_THAT(mapRanks(Hosts{"a"}), ElementsAre(0));
  EXPECT_THAT(mapRanks(Hosts{"a", "a", "b", "b"}), ElementsAre(0, 1, 2, 3));
  // As `mpirun --map-by node` places them.
  EXPECT_THAT(mapRanks(Hosts{"a", "b", "a", "b"}), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(mapRanks(Hosts{"b", "a", "c", "a", "b", "a"}),
              ElementsAre(0, 2, 5, 3, 1, 4));
  EXPECT_THAT(mapRanks(Hosts{"a", "b", "a"}, RankMap::Launcher),
              ElementsAre(0, 1, 2));
}

TEST(Hosts, AnAxisCrossesMachinesOrLiesInsideOne) {
  const unsigned mesh[] = {2, 2};
  EXPECT_THAT(findCrossingAxes(mesh, Hosts{"a", "a", "a", "a"}),
              ElementsAre(false, false));
  EXPECT_THAT(findCrossingAxes(mesh, Hosts{"a", "a", "b", "b"}),
              ElementsAre(true, false));
  EXPECT_THAT(findCrossingAxes(mesh, Hosts{"a", "b", "a", "b"}),
              ElementsAre(false, true));
  EXPECT_THAT(findCrossingAxes(mesh, Hosts{"a", "a", "a", "b"}),
              ElementsAre(true, true));
}

TEST(Hosts, AreDescribedByTheAxesOfThePlan) {
  std::vector<std::uint8_t> bytes = makeHybridPlan().flatbuffer();
  const planfile::Plan &plan = *planfile::GetPlan(bytes.data());
  EXPECT_EQ(describeHosts(plan, Hosts{"a", "a", "a", "a"}), "1 machine");
  EXPECT_EQ(describeHosts(plan, Hosts{"a", "a", "b", "b"}),
            "2 machines: axis replicate crosses machines, axis shard lies "
            "inside one");
}

} // namespace
