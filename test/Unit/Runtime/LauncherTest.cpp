//===- LauncherTest.cpp - What has started the processes of a run ---------===//
#include "Runtime/Comm/Launcher.h"
#include "fsdp/Runtime/Support/Error.h"

#include <gmock/gmock.h>

#include <map>
#include <thread>

using namespace fsdp;
using namespace std::chrono_literals;
using namespace testing;

namespace {

LaunchedProcess launchOf(const std::map<std::string, std::string> &variables) {
  return readLaunch([&](const char *name) -> const char * {
    auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

auto isLaunch(unsigned process, unsigned processes,
              std::optional<unsigned> local, const std::string &host,
              unsigned port) {
  return AllOf(Field(&LaunchedProcess::process, process),
               Field(&LaunchedProcess::processes, processes),
               Field(&LaunchedProcess::local, local),
               Field(&LaunchedProcess::host, host),
               Field(&LaunchedProcess::port, port));
}

TEST(Launcher, AProcessMayBeAlone) {
  EXPECT_THAT(launchOf({}), isLaunch(0, 1, std::nullopt, "127.0.0.1", 29500));
  EXPECT_THAT(launchOf({{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
              Field(&LaunchedProcess::processes, 1u));
}

TEST(Launcher, ReadsTheVariablesOfTorchrun) {
  std::map<std::string, std::string> variables = {
      {"RANK", "5"},           {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "1"},     {"MASTER_ADDR", "10.0.0.7"},
      {"MASTER_PORT", "1234"}, {"OMPI_COMM_WORLD_RANK", "0"}};
  LaunchedProcess launch = launchOf(variables);
  EXPECT_THAT(launch, isLaunch(5, 8, 1, "10.0.0.7", 1234));
  EXPECT_FALSE(launch.isServed);
  EXPECT_EQ(launch.prefix, "");
  // Its agent serves the store, also for the run after a failure.
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  launch = launchOf(variables);
  EXPECT_TRUE(launch.isServed);
  EXPECT_EQ(launch.prefix, "fsdp-run 2 ");
}

TEST(Launcher, ReadsTheVariablesOfOpenMPI) {
  EXPECT_THAT(launchOf({{"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"SLURM_PROCID", "0"},
                        {"SLURM_NTASKS", "1"}}),
              isLaunch(3, 4, 3, "127.0.0.1", 29500));
}

TEST(Launcher, ReadsTheVariablesOfSlurm) {
  EXPECT_THAT(launchOf({{"SLURM_PROCID", "9"},
                        {"SLURM_NTASKS", "16"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_JOB_ID", "4221234"},
                        {"SLURM_STEP_NODELIST", "gpu[007-8]"}}),
              isLaunch(9, 16, 1, "gpu007", 16234));
}

TEST(Launcher, FindsTheFirstHostOfSlurm) {
  EXPECT_EQ(firstHost("node1"), "node1");
  EXPECT_EQ(firstHost("node1,node2"), "node1");
  EXPECT_EQ(firstHost("gpu[007-9,12],cpu1"), "gpu007");
  EXPECT_EQ(firstHost("gpu[3,5]"), "gpu3");
  EXPECT_EQ(firstHost("gpu[12]"), "gpu12");
  EXPECT_EQ(firstHost("gpu["), "gpu");
}

TEST(Launcher, RejectsVariablesThatDoNotGoTogether) {
  auto says = [](const std::map<std::string, std::string> &variables) {
    try {
      launchOf(variables);
    } catch (const Error &error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(says({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "expected RANK below WORLD_SIZE in the environment, found 2 and 2");
  EXPECT_EQ(says({{"RANK", "1"}}), "expected RANK below WORLD_SIZE in the "
                                   "environment, found 1 and none");
  EXPECT_EQ(says({{"RANK", "one"}, {"WORLD_SIZE", "2"}}),
            "RANK: expected a number of at most 1048576, found \"one\"");
  EXPECT_EQ(says({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "expected MASTER_ADDR, the address of rank 0, in the environment "
            "of 2 processes, found none");
  EXPECT_EQ(says({{"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "a"},
                  {"MASTER_PORT", "65536"}}),
            "MASTER_PORT: expected a number of at most 65535, found "
            "\"65536\"");
}

/// What processes on these hosts find, by number.
std::vector<World> join(const std::vector<std::string> &hosts,
                        LaunchedProcess launch,
                        std::chrono::milliseconds timeout = 20s) {
  std::vector<World> worlds(hosts.size());
  std::vector<std::thread> threads;
  launch.processes = static_cast<unsigned>(hosts.size());
  for (unsigned process = 0; process != hosts.size(); ++process)
    threads.emplace_back([&, process] {
      LaunchedProcess own = launch;
      own.process = process;
      worlds[process] = joinWorld(own, hosts[process], RankMap::Hosts, timeout);
      leaveWorld(worlds[process], timeout);
    });
  for (std::thread &thread : threads)
    thread.join();
  return worlds;
}

/// One that was free a moment ago.
std::uint16_t freePort() {
  std::uint16_t port = 0;
  serveStore("127.0.0.1", port);
  return port;
}

// Slurm may deal processes out in turns.
TEST(Launcher, RanksOfAMachineAreConsecutive) {
  std::vector<World> worlds = join({"a", "b", "a", "b"}, {.port = freePort()});
  std::vector<unsigned> ranks;
  for (const World &world : worlds) {
    ranks.push_back(world.rank);
    EXPECT_THAT(world.hosts(), ElementsAre("a", "a", "b", "b"));
  }
  EXPECT_THAT(ranks, ElementsAre(0, 2, 1, 3));
}

TEST(Launcher, MeetsInTheStoreOfAnAgent) {
  std::uint16_t port = 0;
  std::shared_ptr<Store> agent = serveStore("127.0.0.1", port);
  for (const char *prefix : {"fsdp-run 0 ", "fsdp-run 1 "}) {
    std::vector<World> worlds = join(
        {"a", "a", "a"}, {.port = port, .isServed = true, .prefix = prefix});
    EXPECT_EQ(worlds[2].rank, 2u);
  }
}

// They would be the same rank twice.
TEST(Launcher, ProcessesHaveTheSameMap) {
  LaunchedProcess launch{.processes = 2, .port = freePort()};
  auto says = [&](unsigned process, RankMap map) {
    LaunchedProcess own = launch;
    own.process = process;
    try {
      joinWorld(own, "a", map);
    } catch (const Error &error) {
      return std::string(error.what());
    }
    return std::string();
  };
  std::string other;
  std::thread second([&] { other = says(1, RankMap::Launcher); });
  EXPECT_EQ(says(0, RankMap::Hosts),
            "--map: expected the same for all processes, found two");
  second.join();
  EXPECT_NE(other, "");
}

TEST(Launcher, WaitsOnlySoLongForTheOthers) {
  LaunchedProcess launch{.processes = 2, .port = freePort()};
  EXPECT_THAT(
      [&] { joinWorld(launch, "a", RankMap::Hosts, 50ms); },
      ThrowsMessage<Error>("waited 0.05 s for process 1 of 2 to start"));
}

} // namespace
