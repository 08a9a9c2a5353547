//===- MPITest.cpp - Collectives between processes ------------------------===//
//
// Run by mpirun with some processes, which all do the same. What a collective
// must give is worked out by every rank alone, with the code of the local
// backend: bits are compared.
//
//===----------------------------------------------------------------------===//
#include "Runtime/Comm/MPI/World.h"
#include "Runtime/Device/Reduce.h"
#include "Runtime/Support/DTypes.h"
#include "fsdp/Runtime/Support/Error.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

using namespace fsdp;
using namespace std::chrono_literals;
using planfile::DType;
using planfile::ReduceKind;
using Kind = Collective::Kind;

namespace {

using Bytes = std::vector<std::byte>;

unsigned rankHere() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return static_cast<unsigned>(rank);
}
unsigned rankCount() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return static_cast<unsigned>(size);
}

/// Those of every `step`th rank that this one is among.
Group everyNth(unsigned step = 1) {
  Group group;
  for (unsigned r = rankHere() % step; r < rankCount(); r += step) {
    if (r == rankHere())
      group.index = static_cast<unsigned>(group.members.size());
    group.members.push_back(r);
  }
  return group;
}

template <typename T> Bytes draw(std::minstd_rand &random, std::size_t count) {
  std::vector<T> values(count);
  for (T &value : values)
    value = static_cast<T>(static_cast<float>(random() % 2001) * 0.01f - 10);
  Bytes bytes(count * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// What a rank has, which all ranks can work out.
Bytes valuesOf(unsigned rank, DType type, std::size_t count) {
  std::minstd_rand random(rank * 1000 + 17 + static_cast<unsigned>(count));
  switch (type) {
  case DType::BF16:
    return draw<c10::BFloat16>(random, count);
  case DType::F16:
    return draw<c10::Half>(random, count);
  case DType::F64:
    return draw<double>(random, count);
  case DType::I64:
    return draw<std::int64_t>(random, count);
  default:
    return draw<float>(random, count);
  }
}

/// Small ones cut everything that they can.
const MessageComm::Limits everyLimit[] = {
    {},
    {.messageBytes = 96, .workspaceBytes = 1},
    {.messageBytes = 1000, .workspaceBytes = 5000}};
const std::size_t everyCount[] = {1, 63, 64, 65, 1000, 3001};

struct Case {
  Collective collective;
  bool isInPlace = false;
};

/// Runs each twice, one after the other, and compares all of the target.
void check(const std::vector<Case> &cases, const MessageComm::Limits &limits,
           unsigned step = 1) {
  MPIWorld world(MPI_COMM_WORLD, 10, limits);
  Group group = everyNth(step);
  auto size = static_cast<unsigned>(group.members.size());
  std::unique_ptr<Comm> comm = world.openComm(step, group);
  std::vector<Bytes> sources(cases.size()), targets(cases.size());
  std::vector<Collective> collectives;
  auto sourceCount = [&](const Collective &c) {
    return c.kind == Kind::ReduceScatter ? size * c.count : c.count;
  };
  for (std::size_t i = 0; i != cases.size(); ++i) {
    Collective c = cases[i].collective;
    std::size_t target = (c.kind == Kind::AllGather ? size : 1) * c.count *
                         itemSize(c.targetType);
    sources[i].resize(sourceCount(c) * itemSize(c.sourceType));
    targets[i].resize(target);
    c.source = sources[i].data();
    c.target = targets[i].data();
    if (cases[i].isInPlace && c.kind == Kind::AllGather)
      c.source = c.target + group.index * c.count * itemSize(c.sourceType);
    else if (cases[i].isInPlace)
      c.target = sources[i].data();
    collectives.push_back(c);
  }
  comm->prepare(collectives);
  EXPECT_LE(comm->workspaceBytes(),
            std::max<std::size_t>(limits.workspaceBytes, 2 * 8 * size));

  for (unsigned round = 0; round != 2; ++round) {
    for (std::size_t i = 0; i != cases.size(); ++i) {
      const Collective &c = collectives[i];
      comm->drain(i, 1);
      Bytes own = valuesOf(rankHere() + round, c.sourceType, sourceCount(c));
      std::memcpy(const_cast<std::byte *>(c.source), own.data(), own.size());
    }
    comm->run(0, cases.size());
    for (std::size_t i = 0; i != cases.size(); ++i) {
      const Collective &c = collectives[i];
      std::vector<Bytes> all;
      std::vector<const std::byte *> pointers;
      for (unsigned member : group.members)
        all.push_back(valuesOf(member + round, c.sourceType, sourceCount(c)));
      for (const Bytes &bytes : all)
        pointers.push_back(bytes.data());
      Bytes expected;
      if (c.kind == Kind::AllGather) {
        for (const Bytes &bytes : all)
          expected.insert(expected.end(), bytes.begin(), bytes.end());
      } else {
        expected.resize(c.count * itemSize(c.targetType));
        reduce({c.sourceType, c.targetType, c.via, c.pre, c.post, c.reduce},
               pointers,
               c.kind == Kind::ReduceScatter ? group.index * c.count : 0,
               expected.data(), c.count);
      }
      EXPECT_EQ(std::memcmp(c.target, expected.data(), expected.size()), 0)
          << "collective " << i << " in round " << round;
    }
  }
}

TEST(MPI, SumsHaveTheBitsOfLocal) {
  for (const MessageComm::Limits &limits : everyLimit)
    for (std::size_t count : everyCount) {
      std::vector<Case> cases;
      for (Kind kind : {Kind::ReduceScatter, Kind::AllReduce})
        for (auto [source, target, via] :
             {std::tuple(DType::F32, DType::F32, DType::F32),
              std::tuple(DType::F32, DType::F32, DType::BF16),
              std::tuple(DType::BF16, DType::F32, DType::F32),
              std::tuple(DType::F16, DType::F16, DType::F16),
              std::tuple(DType::F64, DType::F64, DType::F64)})
          for (ReduceKind reduce : {ReduceKind::Sum, ReduceKind::Max})
            cases.push_back({{.kind = kind,
                              .sourceType = source,
                              .targetType = target,
                              .via = via,
                              .count = count,
                              .pre = reduce == ReduceKind::Sum ? 3.0 : 1.0,
                              .post = reduce == ReduceKind::Sum ? 1.7 : 1.0,
                              .reduce = reduce}});
      check(cases, limits);
    }
}

TEST(MPI, AllReducesInPlace) {
  for (const MessageComm::Limits &limits : everyLimit)
    for (std::size_t count : everyCount) {
      std::vector<Case> cases;
      for (DType type : {DType::F32, DType::BF16})
        cases.push_back({{.kind = Kind::AllReduce,
                          .sourceType = type,
                          .targetType = type,
                          .count = count,
                          .post = 3},
                         true});
      cases.push_back({{.kind = Kind::AllReduce,
                        .sourceType = DType::I64,
                        .targetType = DType::I64,
                        .count = count,
                        .reduce = ReduceKind::First},
                       true});
      check(cases, limits);
    }
}

TEST(MPI, GathersAnyTypeAlsoInPlace) {
  for (const MessageComm::Limits &limits : everyLimit)
    for (std::size_t count : everyCount) {
      std::vector<Case> cases;
      for (DType type : {DType::F32, DType::BF16, DType::I64})
        for (bool isInPlace : {false, true})
          cases.push_back(
              {{.sourceType = type, .targetType = type, .count = count},
               isInPlace});
      check(cases, limits);
    }
}

// Groups that share no rank, of ranks that are not consecutive.
TEST(MPI, GroupsAreApart) {
  std::vector<Case> cases = {{{.kind = Kind::ReduceScatter, .count = 700}},
                             {{.kind = Kind::AllGather, .count = 700}},
                             {{.kind = Kind::AllReduce, .count = 700}}};
  for (unsigned step : {1u, 2u, rankCount()})
    check(cases, {}, step);
}

// Each process starts with the other one: each waits for its peers, and for
// nothing else.
TEST(MPI, CommunicatorsOfOneGroupDoNotBlockEachOther) {
  constexpr unsigned times = 20;
  MPIWorld world(MPI_COMM_WORLD, 10);
  std::array<float, 2> ones = {1, 1}, sums = {};
  std::array<std::unique_ptr<Comm>, 2> comms;
  for (unsigned c = 0; c != 2; ++c) {
    comms[c] = world.openComm(c, everyNth());
    Collective reduce{.kind = Kind::AllReduce,
                      .source = reinterpret_cast<std::byte *>(&ones[c]),
                      .target = reinterpret_cast<std::byte *>(&sums[c]),
                      .count = 1};
    comms[c]->prepare(std::span(&reduce, 1));
  }
  std::vector<std::thread> threads;
  for (unsigned c = 0; c != 2; ++c)
    threads.emplace_back([&, c] {
      for (unsigned step = 0; step != times; ++step) {
        if (rankHere() % 2 != (c + step) % 2)
          std::this_thread::sleep_for(1ms);
        comms[c]->run(0, 1);
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(sums[0], static_cast<float>(rankCount()));
  EXPECT_EQ(sums[1], static_cast<float>(rankCount()));
}

TEST(MPI, NobodyLeavesABarrierBeforeAllHaveCome) {
  MPIWorld world(MPI_COMM_WORLD, 10);
  std::unique_ptr<Comm> comm = world.openComm(0, everyNth());
  comm->prepare({});
  for (unsigned late = 0; late != rankCount(); ++late) {
    if (rankHere() == late)
      std::this_thread::sleep_for(20ms);
    // One clock for all processes of this machine.
    auto now = [] {
      return std::chrono::steady_clock::now().time_since_epoch().count();
    };
    std::int64_t came = now();
    comm->barrier();
    std::int64_t left = now(), lastCame = 0, firstLeft = 0;
    MPI_Allreduce(&came, &lastCame, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&left, &firstLeft, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD);
    EXPECT_LE(lastCame, firstLeft);
  }
}

/// What the others say when the last rank does not come.
std::string missTheLast(std::chrono::milliseconds timeout,
                        const std::function<void(MPIWorld &)> &meanwhile) {
  MPIWorld world(MPI_COMM_WORLD, 10);
  std::unique_ptr<Comm> comm = world.openComm(0, everyNth(), timeout);
  std::vector<float> values(400);
  Collective reduce{.kind = Kind::AllReduce,
                    .source = reinterpret_cast<std::byte *>(values.data()),
                    .target = reinterpret_cast<std::byte *>(values.data()),
                    .count = values.size()};
  comm->prepare(std::span(&reduce, 1));
  std::string said;
  if (rankHere() + 1 != rankCount()) {
    std::thread other([&] { meanwhile(world); });
    try {
      comm->run(0, 1);
    } catch (const Error &error) {
      EXPECT_EQ(error.kind(), Failure::RankFailed);
      said = error.what();
    }
    other.join();
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return said;
}

TEST(MPI, WaitsEndWithTheTimeOut) {
  std::string said = missTheLast(60ms, [](MPIWorld &) {});
  if (rankHere() + 1 != rankCount()) {
    EXPECT_EQ(said, "waited 0.06 s for rank " +
                        std::to_string(rankCount() - 1) + " to join it");
  }
}

TEST(MPI, AbortEndsEveryWait) {
  std::string said = missTheLast(defaultTimeout, [](MPIWorld &world) {
    std::this_thread::sleep_for(20ms);
    world.abort();
  });
  if (rankHere() + 1 != rankCount()) {
    EXPECT_EQ(said, "stopped because another rank failed");
  }
}

} // namespace

int main(int argc, char **argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  // One of the processes writes the file of results, which is opened by what
  // follows. Failures are everybody's to say.
  if (rankHere() != 0)
    testing::GTEST_FLAG(output) = "";
  testing::InitGoogleTest(&argc, argv);
  int failed = RUN_ALL_TESTS(), anyFailed = 0;
  MPI_Allreduce(&failed, &anyFailed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return anyFailed;
}
