//===- CommTest.cpp - Collectives between threads -------------------------===//
//
// Run under ThreadSanitizer too: nothing here goes through ATen.
//
//===----------------------------------------------------------------------===//
#include "Runtime/Comm/Local.h"
#include "Runtime/Device/FreeMemory.h"
#include "Runtime/Device/Reduce.h"
#include "Runtime/Execution/ThreadTeam.h"
#include "Runtime/Support/DTypes.h"
#include "fsdp/Runtime/Support/Error.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sys/resource.h>

using namespace fsdp;
using planfile::DType;
using Kind = Collective::Kind;

namespace {

template <typename T> const std::byte *bytes(const std::vector<T> &values) {
  return reinterpret_cast<const std::byte *>(values.data());
}
template <typename T> std::byte *bytes(std::vector<T> &values) {
  return reinterpret_cast<std::byte *>(values.data());
}

Group everyone(unsigned ranks, unsigned rank) {
  Group group;
  for (unsigned r = 0; r != ranks; ++r)
    group.members.push_back(r);
  group.index = rank;
  return group;
}

/// Sleeps now and then, differently on each rank.
class Chaos {
public:
  Chaos(unsigned seed, unsigned rank) : random(seed * 100 + rank + 1) {}
  void operator()() {
    if (random() % 3 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  }

private:
  std::minstd_rand random;
};

/// Some steps of gather, "backward", reduce-scatter, loss and update, as a
/// plan has them; returns all shards after the last.
std::vector<float> train(unsigned ranks, unsigned seed, std::size_t piece) {
  LocalWorld world(ranks);
  std::vector<std::unique_ptr<Comm>> comms;
  for (unsigned r = 0; r != ranks; ++r)
    comms.push_back(world.openComm(0, everyone(ranks, r)));
  struct Memory {
    std::vector<float> shard, full, flat, gradient, loss;
  };
  std::vector<Memory> memory(ranks);
  for (unsigned r = 0; r != ranks; ++r) {
    Memory &m = memory[r];
    m.shard.resize(piece);
    for (std::size_t i = 0; i != piece; ++i)
      m.shard[i] = 0.25f + 0.001f * static_cast<float>(r * piece + i);
    m.full.resize(piece * ranks);
    m.flat.resize(piece * ranks);
    m.gradient.resize(piece);
    m.loss.resize(1);
    Collective gather{.kind = Kind::AllGather,
                      .source = bytes(m.shard),
                      .target = bytes(m.full),
                      .count = piece,
                      .sourceStable = true};
    Collective scatter{.kind = Kind::ReduceScatter,
                       .source = bytes(m.flat),
                       .target = bytes(m.gradient),
                       .count = piece,
                       .pre = 2,
                       .post = 1.5};
    Collective reduce{.kind = Kind::AllReduce,
                      .source = bytes(m.loss),
                      .target = bytes(m.loss),
                      .count = 1,
                      .post = static_cast<double>(ranks)};
    comms[r]->prepare(std::vector{gather, scatter, reduce});
  }
  ThreadTeam threads(ranks);
  for (unsigned step = 0; step != 20; ++step)
    threads.run([&](unsigned r) {
      Memory &m = memory[r];
      Comm &comm = *comms[r];
      Chaos chaos(seed + step, r);
      auto disturb = [&] {
        if (seed)
          chaos();
      };
      for (unsigned layer = 0; layer != 3; ++layer) {
        disturb();
        comm.run(0, 1);
        disturb();
        comm.drain(1, 1);
        for (std::size_t i = 0; i != m.flat.size(); ++i)
          m.flat[i] = m.full[i] * 0.37f + static_cast<float>(r) * 0.01f;
        disturb();
        comm.run(1, 1);
        comm.drain(2, 1);
        m.loss[0] = m.gradient[0] + static_cast<float>(r);
        comm.run(2, 1);
      }
      disturb();
      comm.drain(0, 1);
      for (std::size_t i = 0; i != piece; ++i)
        m.shard[i] -= 0.1f * m.gradient[i] + 0.01f * m.loss[0];
    });
  std::vector<float> all;
  for (const Memory &m : memory)
    all.insert(all.end(), m.shard.begin(), m.shard.end());
  return all;
}

TEST(Local, TimingDoesNotChangeBits) {
  for (unsigned ranks : {1u, 2u, 3u, 4u}) {
    std::vector<float> quiet = train(ranks, 0, 5000);
    EXPECT_EQ(quiet, train(ranks, 1, 5000)) << ranks << " ranks";
    EXPECT_EQ(quiet, train(ranks, 2, 5000)) << ranks << " ranks";
  }
}

template <typename Job> void onRanks(unsigned ranks, const Job &job) {
  LocalWorld world(ranks);
  std::vector<std::unique_ptr<Comm>> comms;
  for (unsigned r = 0; r != ranks; ++r)
    comms.push_back(world.openComm(0, everyone(ranks, r)));
  // Announced before anyone runs.
  ThreadTeam(ranks).run([&](unsigned r) { job(r, *comms[r], false); });
  ThreadTeam(ranks).run([&](unsigned r) { job(r, *comms[r], true); });
}

// covers: NCCL
TEST(Local, AllReduceOfEverySize) {
  constexpr unsigned ranks = 3;
  for (bool inPlace : {false, true})
    for (std::size_t count : {1, 63, 64, 65, 1000, 30000}) {
      std::vector<std::vector<float>> source(ranks), target(ranks);
      for (unsigned r = 0; r != ranks; ++r) {
        for (std::size_t i = 0; i != count; ++i)
          source[r].push_back(static_cast<float>(i % 97) +
                              0.1f * static_cast<float>(r));
        target[r].resize(count);
      }
      std::vector<float> expected(count);
      for (std::size_t i = 0; i != count; ++i)
        expected[i] = (source[0][i] + source[1][i] + source[2][i]) / 3;
      onRanks(ranks, [&](unsigned r, Comm &comm, bool run) {
        std::vector<float> &result = inPlace ? source[r] : target[r];
        if (!run)
          return comm.prepare(std::vector{Collective{.kind = Kind::AllReduce,
                                                     .source = bytes(source[r]),
                                                     .target = bytes(result),
                                                     .count = count,
                                                     .post = 3}});
        comm.run(0, 1);
        EXPECT_EQ(result, expected);
        comm.drain(0, 1);
        std::fill(source[r].begin(), source[r].end(), 1e9f);
        comm.barrier();
      });
    }
}

TEST(Local, GatherIntoOwnPlaceLeavesTheOwnPieceAlone) {
  constexpr unsigned ranks = 4;
  std::vector<std::vector<std::int64_t>> full(
      ranks, std::vector<std::int64_t>(ranks * 3));
  onRanks(ranks, [&](unsigned r, Comm &comm, bool run) {
    std::int64_t *own = full[r].data() + r * 3;
    if (!run)
      return comm.prepare(
          std::vector{Collective{.sourceType = DType::I64,
                                 .targetType = DType::I64,
                                 .source = reinterpret_cast<std::byte *>(own),
                                 .target = bytes(full[r]),
                                 .count = 3}});
    for (int i = 0; i != 3; ++i)
      own[i] = r * 10 + i;
    comm.run(0, 1);
    EXPECT_EQ(full[r], (std::vector<std::int64_t>{0, 1, 2, 10, 11, 12, 20, 21,
                                                  22, 30, 31, 32}));
  });
}

/// Three ranks at an all_reduce that rank 1 does not come to: `instead` is what
/// it does. Returns what the others say.
std::vector<std::string>
failToMeet(std::chrono::milliseconds timeout,
           const std::function<void(LocalWorld &)> &instead) {
  constexpr unsigned ranks = 3;
  LocalWorld world(ranks);
  std::vector<float> source(4), target(4);
  std::vector<std::unique_ptr<Comm>> comms;
  for (unsigned r = 0; r != ranks; ++r) {
    comms.push_back(world.openComm(0, everyone(ranks, r), timeout));
    comms[r]->prepare(std::vector{Collective{.kind = Kind::AllReduce,
                                             .source = bytes(source),
                                             .target = bytes(target),
                                             .count = 4}});
  }
  std::vector<std::string> said(ranks);
  ThreadTeam(ranks).run([&](unsigned r) {
    if (r == 1)
      return instead(world);
    try {
      comms[r]->run(0, 1);
    } catch (const Error &error) {
      EXPECT_EQ(error.kind(), Failure::RankFailed);
      said[r] = error.what();
    }
  });
  return {said[0], said[2]};
}

// Rank 0 starts with the one, rank 1 with the other: each waits for its peer,
// and for nothing else.
TEST(Local, CommunicatorsOfOneGroupDoNotBlockEachOther) {
  constexpr unsigned ranks = 2, times = 20;
  LocalWorld world(2 * ranks);
  std::vector<float> ones(2 * ranks, 1), sums(2 * ranks);
  std::vector<std::unique_ptr<Comm>> comms;
  for (unsigned i = 0; i != 2 * ranks; ++i) {
    comms.push_back(world.openComm(i % 2, everyone(ranks, i / 2)));
    Collective reduce{.kind = Kind::AllReduce,
                      .source = bytes(ones) + i * sizeof(float),
                      .target = bytes(sums) + i * sizeof(float),
                      .count = 1};
    comms.back()->prepare(std::span(&reduce, 1));
  }
  std::vector<std::thread> threads;
  for (unsigned i = 0; i != 2 * ranks; ++i)
    threads.emplace_back([&, i] {
      for (unsigned step = 0; step != times; ++step) {
        if (i / 2 != (i + step) % 2)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        comms[i]->run(0, 1);
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(sums, std::vector<float>(2 * ranks, ranks));
}

TEST(Local, AbortEndsEveryWait) {
  auto begin = std::chrono::steady_clock::now();
  auto said = failToMeet(defaultTimeout, [](LocalWorld &world) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.abort();
  });
  for (const std::string &text : said)
    EXPECT_EQ(text, "stopped because another rank failed");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
}

TEST(Local, WaitsEndWithTheTimeOut) {
  for (const std::string &text :
       failToMeet(std::chrono::milliseconds(30), [](LocalWorld &) {}))
    EXPECT_EQ(text, "waited 0.03 s for rank 1 to join it");
}

TEST(Local, CollectivesOfAGroupAreOneCall) {
  constexpr unsigned ranks = 2;
  std::vector<std::vector<float>> source(ranks), target(ranks);
  onRanks(ranks, [&](unsigned r, Comm &comm, bool run) {
    if (!run) {
      source[r] = {1.f + static_cast<float>(r), 10.f};
      target[r].resize(4);
      std::vector<Collective> list;
      for (std::size_t i = 0; i != 2; ++i)
        list.push_back({.source = bytes(source[r]) + i * sizeof(float),
                        .target = bytes(target[r]) + 2 * i * sizeof(float),
                        .count = 1});
      return comm.prepare(list);
    }
    comm.run(0, 2);
    comm.drain(0, 2);
    source[r] = {0, 0};
    comm.barrier();
    EXPECT_EQ(target[r], (std::vector<float>{1, 2, 10, 10}));
  });
}

template <typename T>
void checkReduce(DType type, DType via, double tolerance) {
  std::vector<std::vector<T>> sources(3, std::vector<T>(5001));
  std::vector<const std::byte *> pointers;
  for (std::size_t r = 0; r != sources.size(); ++r) {
    for (std::size_t i = 0; i != sources[r].size(); ++i)
      sources[r][i] = static_cast<T>(0.01 * static_cast<double>(i % 113 + r));
    pointers.push_back(bytes(sources[r]));
  }
  std::vector<T> result(5000);
  reduce({type, type, via, 2, 1.5}, pointers, 1, bytes(result), 5000);
  for (std::size_t i = 0; i != result.size(); ++i) {
    double sum = 0;
    for (const auto &source : sources)
      sum += static_cast<double>(source[i + 1]) / 2;
    ASSERT_NEAR(static_cast<double>(result[i]), sum / 1.5, tolerance);
  }
}

TEST(Reduce, EveryType) {
  checkReduce<double>(DType::F64, DType::F64, 1e-15);
  checkReduce<float>(DType::F32, DType::F32, 1e-6);
  checkReduce<c10::BFloat16>(DType::BF16, DType::F32, 1e-2);
  checkReduce<c10::Half>(DType::F16, DType::F32, 2e-3);
  checkReduce<float>(DType::F32, DType::BF16, 1e-2);
}

// covers: _cast_grad_to_param_dtype
// Of any type, bit by bit.
// covers: Synchronize
TEST(Reduce, TheFirstIsCopied) {
  std::vector<std::int64_t> first(5001), second(5001, -1), target(5001);
  std::iota(first.begin(), first.end(), std::int64_t{1} << 60);
  auto bytes = [](std::vector<std::int64_t> &values) {
    return reinterpret_cast<std::byte *>(values.data());
  };
  std::vector<const std::byte *> sources = {bytes(first), bytes(second)};
  Reduction reduction{DType::I64, DType::I64, DType::I64};
  reduction.kind = planfile::ReduceKind::First;
  reduce(reduction, sources, 0, bytes(target), 17);
  reduce(reduction, sources, 17, bytes(target) + 17 * 8, 5001 - 17);
  EXPECT_EQ(target, first);
}

TEST(Reduce, RoundsOnceToTheTypeInBetween) {
  std::vector<float> a{1.0f}, b{0.001f}, sum(1);
  const std::byte *sources[] = {bytes(a), bytes(b)};
  reduce({DType::F32, DType::F32, DType::BF16, 1, 1}, sources, 0, bytes(sum),
         1);
  EXPECT_EQ(sum[0], 1.0f);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&         \
    !defined(__has_feature) // Sanitizers need more memory than is left here.
TEST(ThreadTeam, AThreadThatCannotStart) {
  auto start = [] {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit{pages * 4096 + (64u << 20), RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    try {
      ThreadTeam team(1000);
    } catch (const Error &error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::exit(0);
    }
    std::exit(1);
  };
  EXPECT_EXIT(start(), testing::ExitedWithCode(0),
              "cannot start thread [0-9]+ of 999: Resource temporarily");
}
#endif

// Signals are for the thread that runs the team: it holds what must not stay.
TEST(ThreadTeam, ThreadsGetNoSignals) {
  ThreadTeam team(3);
  std::vector<int> blocked(3);
  team.run([&](unsigned member) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    blocked[member] = sigismember(&mask, SIGTERM);
  });
  EXPECT_EQ(blocked, (std::vector<int>{0, 1, 1}));
}

/// Files below a root of their own.
class FreeMemoryTest : public testing::Test {
protected:
  FreeMemoryTest() {
    std::string pattern = testing::TempDir() + "fsdp-memory-XXXXXX";
    root = mkdtemp(pattern.data());
    root += "/";
    write("proc/meminfo", "MemTotal: 100 kB\nMemFree: 3 kB\n"
                          "MemAvailable:      64 kB\n");
  }
  ~FreeMemoryTest() override { std::filesystem::remove_all(root); }
  void write(const std::string &name, const std::string &content) {
    std::filesystem::path path = root + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  std::string root;
};

TEST_F(FreeMemoryTest, OfTheMachine) { EXPECT_EQ(freeMemory(root), 65536u); }

TEST_F(FreeMemoryTest, OfTheGroupAndThoseAroundIt) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "100\n");
  EXPECT_EQ(freeMemory(root), 65536u);
  write("sys/fs/cgroup/outer/memory.max", "5000\n");
  write("sys/fs/cgroup/outer/memory.current", "3000\n");
  EXPECT_EQ(freeMemory(root), 2000u);
  write("sys/fs/cgroup/outer/memory.stat", "anon 7\ninactive_file 1000\n");
  EXPECT_EQ(freeMemory(root), 3000u);
  write("sys/fs/cgroup/memory.max", "4000\n");
  write("sys/fs/cgroup/memory.current", "4100\n");
  EXPECT_EQ(freeMemory(root), 0u);
}

TEST_F(FreeMemoryTest, OfTheFirstVersionOfGroups) {
  write("proc/self/cgroup", "5:cpu,memory:/box\n1:name=systemd:/\n0::/\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "900\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "500\n");
  EXPECT_EQ(freeMemory(root), 400u);
}

} // namespace
