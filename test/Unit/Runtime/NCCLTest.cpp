//===- NCCLTest.cpp - Ranks that NCCL connects ----------------------------===//
//
// Ranks are threads, each with a GPU of ordinary memory, whose streams run in
// any order, and a NCCL that takes its time. What a collective must give is
// worked out with the code of the local backend.
//
//===----------------------------------------------------------------------===//
#include "FakeNccl.h"
#include "Runtime/Comm/NCCL/World.h"
#include "Runtime/Device/Reduce.h"
#include "Runtime/Support/DTypes.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <future>

using namespace fsdp;
using namespace std::chrono_literals;
using namespace testing;
using planfile::DType;
using planfile::ReduceKind;
using planfile::Space;
using Kind = Collective::Kind;
using GPUStream = planfile::Stream;

namespace {

using Bytes = std::vector<std::byte>;

/// One rank of a run.
struct Rank {
  Rank(unsigned rank, unsigned ranks, fakenccl::Setup setup, unsigned seed)
      : fake(seed), world((setup.cuda = &fake, fake.enter(char('a' + rank)),
                           setup.seed = seed, fakenccl::setUp(setup), fake.api),
                          ranks) {
    context.rank = rank;
  }

  void open() { device = std::make_unique<NCCLDevice>(world, context); }
  Comm &open(const Group &group) {
    comms.push_back(world.openComm(context, group, *device));
    return *comms.back();
  }

  FakeCuda fake;
  NCCLWorld world;
  RankContext context;
  std::unique_ptr<NCCLDevice> device;
  std::vector<std::unique_ptr<Comm>> comms;
};

struct Ranks {
  unsigned ranks = 2, seed = 1;
  std::chrono::milliseconds timeout = 20s;
  std::function<fakenccl::Setup(unsigned rank)> setup = [](unsigned) {
    return fakenccl::Setup{};
  };

  /// What each rank has thrown, if anything; all is given back then.
  std::vector<std::string>
  operator()(const std::function<void(Rank &)> &body) const {
    int before = fakenccl::leaks(); // Some is left on purpose.
    std::shared_ptr<Store> store = makeLocalStore();
    std::vector<std::string> thrown(ranks);
    std::vector<std::thread> threads;
    for (unsigned r = 0; r != ranks; ++r)
      threads.emplace_back([&, r] {
        Rank rank(r, ranks, setup(r), seed * 16 + r);
        rank.context.store = store;
        rank.context.timeout = timeout;
        try {
          rank.open();
          body(rank);
        } catch (const Error &error) {
          thrown[r] = error.what();
          rank.world.abort(); // As the session does, before it closes them.
        }
        rank.comms.clear();
        rank.device.reset();
        EXPECT_TRUE(rank.fake.isEmpty());
      });
    for (std::thread &thread : threads)
      thread.join();
    EXPECT_EQ(fakenccl::leaks(), before);
    return thrown;
  }
};

Group everyNth(const Rank &rank, unsigned ranks, unsigned step = 1,
               GPUStream stream = GPUStream::Gather) {
  Group group{.members = {}, .index = 0, .stream = stream};
  for (unsigned r = rank.context.rank % step; r < ranks; r += step) {
    if (r == rank.context.rank)
      group.index = static_cast<unsigned>(group.members.size());
    group.members.push_back(r);
  }
  return group;
}

template <typename T> double read(const std::byte *place) {
  T value;
  std::memcpy(&value, place, sizeof value);
  return static_cast<double>(static_cast<float>(value));
}

double valueAt(const Bytes &bytes, DType type, std::size_t i) {
  const std::byte *place = bytes.data() + i * itemSize(type);
  return type == DType::BF16  ? read<c10::BFloat16>(place)
         : type == DType::F16 ? read<c10::Half>(place)
         : type == DType::F64 ? read<double>(place)
                              : read<float>(place);
}

template <typename T> Bytes draw(unsigned seed, std::size_t count) {
  std::minstd_rand random(seed);
  std::vector<T> values(count);
  for (T &value : values)
    value = static_cast<T>(static_cast<float>(random() % 2001) * 0.01f - 10);
  Bytes bytes(count * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes valuesOf(unsigned rank, DType type, std::size_t count) {
  unsigned seed = rank * 1000 + 17 + static_cast<unsigned>(count);
  switch (type) {
  case DType::BF16:
    return draw<c10::BFloat16>(seed, count);
  case DType::F16:
    return draw<c10::Half>(seed, count);
  case DType::F64:
    return draw<double>(seed, count);
  case DType::I64:
    return draw<std::int64_t>(seed, count);
  default:
    return draw<float>(seed, count);
  }
}

struct Case {
  Collective collective;
  bool isInPlace = false;

  std::size_t sourceCount(std::size_t size) const {
    return (collective.kind == Kind::ReduceScatter ? size : 1) *
           collective.count;
  }
  std::size_t targetCount(std::size_t size) const {
    return (collective.kind == Kind::AllGather ? size : 1) * collective.count;
  }
};

/// Bits of what is not a sum; of a sum, what its additions may round away.
void compare(const Case &tried, const Bytes &found, const Bytes &expected,
             unsigned members) {
  const Collective &c = tried.collective;
  if (c.kind == Kind::AllGather || c.reduce != ReduceKind::Sum) {
    EXPECT_EQ(found, expected);
    return;
  }
  double rounding = c.via == DType::BF16  ? 0x1p-8
                    : c.via == DType::F16 ? 0x1p-11
                    : c.via == DType::F64 ? 0x1p-53
                                          : 0x1p-24;
  for (std::size_t i = 0; i != c.count; ++i)
    EXPECT_NEAR(valueAt(found, c.via, i), valueAt(expected, c.via, i),
                rounding * 40 * members * members / (c.pre * c.post));
}

/// Runs all cases twice, as one bucket, and compares.
void check(const std::vector<Case> &cases, unsigned ranks, unsigned seed,
           unsigned step = 1) {
  std::vector<std::string> thrown = Ranks{.ranks = ranks,
                                          .seed = seed}([&](Rank &rank) {
    Group group = everyNth(rank, ranks, step);
    auto size = static_cast<unsigned>(group.members.size());
    Comm &comm = rank.open(group);
    std::vector<Collective> collectives;
    std::vector<std::byte *> sources;
    for (const Case &one : cases) {
      Collective c = one.collective;
      std::size_t item = itemSize(c.sourceType);
      std::byte *source =
          rank.device->allocate(Space::Device, one.sourceCount(size) * item);
      c.target = one.isInPlace && c.kind == Kind::AllReduce
                     ? source
                     : rank.device->allocate(Space::Device,
                                             one.targetCount(size) * item);
      if (one.isInPlace && c.kind == Kind::AllGather)
        source = c.target + group.index * c.count * item;
      c.source = source;
      sources.push_back(source);
      collectives.push_back(c);
    }
    comm.prepare(collectives);
    for (unsigned round = 0; round != 2; ++round) {
      auto given = [&](unsigned member, const Case &one) {
        return valuesOf(member + round, one.collective.sourceType,
                        one.sourceCount(size));
      };
      rank.device->select(GPUStream::Gather);
      for (std::size_t i = 0; i != cases.size(); ++i) {
        Bytes own = given(rank.context.rank, cases[i]);
        comm.drain(i, 1);
        rank.device->copy(GPUStream::Gather, sources[i], own.data(),
                          own.size());
      }
      comm.run(0, cases.size());
      rank.device->synchronize();
      for (std::size_t i = 0; i != cases.size(); ++i) {
        const Collective &c = collectives[i];
        std::vector<Bytes> all;
        std::vector<const std::byte *> pointers;
        for (unsigned member : group.members)
          all.push_back(given(member, cases[i]));
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
        compare(cases[i], Bytes(c.target, c.target + expected.size()), expected,
                size);
      }
    }
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

const std::size_t everyCount[] = {1, 64, 1001};

Case sum(Kind kind, DType type, std::size_t count, double pre = 1,
         double post = 1) {
  return {{.kind = kind,
           .sourceType = type,
           .targetType = type,
           .via = type,
           .count = count,
           .pre = pre,
           .post = post}};
}

TEST(NCCL, Sums) {
  for (unsigned ranks : {1u, 2u, 3u, 4u})
    for (std::size_t count : everyCount) {
      std::vector<Case> cases;
      for (Kind kind : {Kind::ReduceScatter, Kind::AllReduce})
        for (DType type : {DType::F32, DType::BF16, DType::F16, DType::F64})
          for (auto [pre, post] :
               {std::pair(1.0, 1.0), std::pair(2.0, 2.0), std::pair(3.0, 1.7)})
            cases.push_back(sum(kind, type, count, pre, post));
      check(cases, ranks, static_cast<unsigned>(count));
    }
}

TEST(NCCL, GathersAnyTypeAlsoInPlace) {
  for (unsigned ranks : {1u, 2u, 4u})
    for (std::size_t count : everyCount) {
      std::vector<Case> cases;
      for (DType type : {DType::F32, DType::BF16, DType::I64})
        for (bool isInPlace : {false, true})
          cases.push_back(
              {{.sourceType = type, .targetType = type, .count = count},
               isInPlace});
      check(cases, ranks, static_cast<unsigned>(count));
    }
}

TEST(NCCL, TakesTheLargestAndTheFirst) {
  for (unsigned ranks : {1u, 3u}) {
    Case largest = sum(Kind::AllReduce, DType::F32, 1001);
    largest.collective.reduce = ReduceKind::Max;
    Case first = sum(Kind::AllReduce, DType::I64, 77);
    first.collective.reduce = ReduceKind::First;
    Case inPlace = first;
    inPlace.isInPlace = true;
    // Also between sums, which are in one call.
    check({sum(Kind::AllReduce, DType::F32, 5), largest, first, inPlace,
           sum(Kind::AllReduce, DType::F32, 6)},
          ranks, ranks);
  }
}

// Each process of a hybrid mesh is in several groups.
TEST(NCCL, GroupsAreApart) {
  for (unsigned step : {1u, 2u, 4u})
    check({sum(Kind::ReduceScatter, DType::F32, 70),
           {{.count = 70}},
           sum(Kind::AllReduce, DType::F32, 70)},
          4, step, step);
}

TEST(NCCL, IsNoNumberIfOneIsNone) {
  std::vector<std::string> thrown = Ranks{}([](Rank &rank) {
    Comm &comm = rank.open(everyNth(rank, 2));
    std::byte *place = rank.device->allocate(Space::Device, 4);
    Case largest = sum(Kind::AllReduce, DType::F32, 1);
    largest.collective.reduce = ReduceKind::Max;
    largest.collective.source = largest.collective.target = place;
    comm.prepare(std::span(&largest.collective, 1));
    float own = rank.context.rank == 0 ? NAN : 1.0f;
    rank.device->copy(GPUStream::Gather, place, &own, sizeof own);
    comm.run(0, 1);
    rank.device->synchronize();
    EXPECT_TRUE(std::isnan(*reinterpret_cast<float *>(place)));
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

// NCCL has no symmetric kernels for factors: only f16 would overflow without.
TEST(NCCL, DividesBeforeOrAfterTheSum) {
  struct {
    DType type;
    double pre, post;
    std::vector<std::string> factors;
    bool isDividedAfter;
  } const cases[] = {
      {DType::F32, 2, 3, {}, true},
      {DType::BF16, 2, 4, {}, true},
      {DType::BF16, 3, 1, {}, true},
      {DType::F64, 4, 1, {}, true},
      {DType::F16, 8, 1, {"factor 0.125"}, false},
      {DType::F16, 3, 1, {}, true},
      {DType::F16, 8, 8, {"factor 0.125"}, true},
      {DType::F32, 1, 1, {}, false},
  };
  for (const auto &one : cases)
    (void)Ranks{.ranks = 1}([&](Rank &rank) {
      Comm &comm = rank.open(everyNth(rank, 1));
      Collective c =
          sum(Kind::AllReduce, one.type, 64, one.pre, one.post).collective;
      c.source = c.target = rank.device->allocate(Space::Device, 1024);
      fakenccl::takeLog();
      comm.prepare(std::span(&c, 1));
      EXPECT_EQ(fakenccl::takeLog(), one.factors);
      rank.fake.takeLog('a');
      comm.run(0, 1);
      EXPECT_EQ(std::ranges::any_of(rank.fake.takeLog('a'),
                                    [](const std::string &call) {
                                      return call.starts_with("sum a.");
                                    }),
                one.isDividedAfter);
    });
}

TEST(NCCL, ABucketIsOneCall) {
  std::vector<std::string> thrown = Ranks{}([](Rank &rank) {
    std::byte *arena = rank.device->allocate(Space::Device, 4096);
    rank.device->allocate(Space::Device, 4096); // No collective's.
    Comm &comm = rank.open(everyNth(rank, 2));
    std::vector<Collective> list(2);
    for (std::size_t i = 0; i != 2; ++i) {
      list[i].source = arena + i * 16;
      list[i].target = arena + 1024 * (i + 1);
      list[i].count = 4 + i;
    }
    comm.prepare(list);
    comm.run(0, 2);
    EXPECT_THAT(fakenccl::takeLog(),
                ElementsAre(StartsWith("init "), EndsWith(" on copy engines"),
                            "register 8192", "groupStart", "allGather 16",
                            "allGather 20", "groupEnd"));
    rank.comms.clear();
    EXPECT_THAT(fakenccl::takeLog(), ElementsAre("deregister", "destroy"));
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

/// All ranks add up some numbers again and again, then wait for the result.
void addUp(Rank &rank, unsigned ranks, unsigned times) {
  Comm &comm = rank.open(everyNth(rank, ranks));
  Collective c = sum(Kind::AllReduce, DType::F32, 100).collective;
  c.source = c.target = rank.device->allocate(Space::Device, 400);
  comm.prepare(std::span(&c, 1));
  for (unsigned time = 0; time != times; ++time)
    comm.run(0, 1);
  rank.device->synchronize();
}

TEST(NCCL, NeedsNoSymmetricMemory) {
  auto setup = [](unsigned) {
    fakenccl::Setup setup;
    setup.hasWindows = false;
    return setup;
  };
  std::vector<std::string> thrown =
      Ranks{.setup = setup}([](Rank &rank) { addUp(rank, 2, 2); });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST(NCCL, RejectsASumOfTwoTypes) {
  std::vector<std::string> thrown = Ranks{.ranks = 1}([](Rank &rank) {
    Comm &comm = rank.open(everyNth(rank, 1));
    Collective c{
        .kind = Kind::AllReduce, .sourceType = DType::BF16, .count = 1};
    comm.prepare(std::span(&c, 1));
  });
  EXPECT_THAT(
      thrown,
      ElementsAre("NCCL: expected a sum of one type, f16, bf16, f32 or f64; "
                  "found BF16 to F32"));
}

// One that never comes: to the run, to a communicator, or to a collective. The
// others say for whom they have waited.
TEST(NCCL, WaitsEndWithTheTimeOut) {
  for (int absentFrom : {0, 1, -1}) {
    auto setup = [&](unsigned rank) {
      fakenccl::Setup setup;
      if (rank == 1 && absentFrom < 0)
        setup.hangsAt = 5;
      else if (rank == 1)
        setup.absentFrom = absentFrom;
      return setup;
    };
    std::vector<std::string> thrown =
        Ranks{.ranks = 3, .timeout = 100ms, .setup = setup}(
            [&](Rank &rank) { addUp(rank, 3, 5); });
    const char *const what[] = {"a collective", "ncclCommInitRankConfig",
                                "ncclCommSplit"};
    EXPECT_THAT(
        thrown,
        Each(StrEq("waited 0.1 s for the others of ranks 0 1 2 to join " +
                   std::string(what[absentFrom + 1]))));
  }
}

// NCCL connects members in their first collective: a thread is inside it, then,
// and only another one can end that.
TEST(NCCL, AThreadInsideNCCLIsReleased) {
  for (bool isAborted : {false, true}) {
    std::vector<std::string> thrown =
        Ranks{.timeout = isAborted ? 20s : 100ms}([&](Rank &rank) {
          Comm &comm = rank.open(everyNth(rank, 2));
          Collective c = sum(Kind::AllReduce, DType::F32, 100).collective;
          c.source = c.target = rank.device->allocate(Space::Device, 400);
          comm.prepare(std::span(&c, 1));
          if (rank.context.rank == 1)
            return std::this_thread::sleep_for(300ms);
          std::jthread other([&] {
            std::this_thread::sleep_for(50ms);
            if (isAborted)
              rank.world.abort();
          });
          comm.run(0, 1);
        });
    EXPECT_EQ(thrown[0],
              isAborted ? "stopped because another rank failed"
                        : "waited 0.1 s for the others of ranks 0 1 to join a "
                          "collective");
  }
}

/// Rank 1 comes to no collective of the second communicator.
fakenccl::Setup missSecond(unsigned rank) {
  fakenccl::Setup setup;
  setup.hangsAt = rank == 1 ? 2 : 0;
  return setup;
}

// The driver holds up who launches more than it has room for.
TEST(NCCL, AThreadInsideTheDriverIsReleased) {
  std::vector<std::string> thrown =
      Ranks{.timeout = 100ms, .setup = missSecond}([](Rank &rank) {
        Comm &comm = rank.open(everyNth(rank, 2));
        Collective c = sum(Kind::AllReduce, DType::F32, 100).collective;
        c.source = c.target = rank.device->allocate(Space::Device, 400);
        comm.prepare(std::span(&c, 1));
        comm.run(0, 1);
        rank.fake.api.streamSynchronize(rank.device->stream(GPUStream::Gather));
        comm.run(0, 1);
      });
  EXPECT_THAT(thrown, Each("waited 0.1 s for the others of ranks 0 1 to join a "
                           "collective"));
}

// One by one, each would wait for the kernels of the next (NVIDIA/nccl#1013).
TEST(NCCL, CommunicatorsOfARankEndTogether) {
  fakenccl::takeEndings();
  std::vector<std::string> thrown =
      Ranks{.timeout = 100ms, .setup = missSecond}([](Rank &rank) {
        Collective c = sum(Kind::AllReduce, DType::F32, 100).collective;
        c.source = c.target = rank.device->allocate(Space::Device, 400);
        for (GPUStream stream : {GPUStream::Gather, GPUStream::Reduce})
          rank.open(everyNth(rank, 2, 1, stream)).prepare(std::span(&c, 1));
        for (const std::unique_ptr<Comm> &comm : rank.comms)
          comm->run(0, 1);
        rank.device->synchronize();
      });
  EXPECT_THAT(thrown, Each(StartsWith("waited 0.1 s for ")));
  // With the one that they were split from.
  EXPECT_THAT(
      fakenccl::takeEndings(),
      UnorderedElementsAre("revoked 2", "aborted 3", "revoked 2", "aborted 3"));
}

// A copy engine goes on waiting for its peer: the rank gives nothing back, and
// its process can end.
TEST(NCCL, WorkThatNothingEndsIsLeft) {
  auto &fake = *new FakeCuda; // As long as the process.
  fake.enter('a');
  fakenccl::Setup setup{.cuda = &fake};
  setup.hangsAt = 1;
  setup.isDeaf = true;
  fakenccl::setUp(setup);
  auto world = std::make_unique<NCCLWorld>(fake.api, 1);
  RankContext context;
  context.timeout = 100ms;
  auto device = std::make_unique<NCCLDevice>(*world, context);
  std::byte *place = device->allocate(Space::Device, 400);
  std::unique_ptr<Comm> comm = world->openComm(
      context, {.members = {0}, .index = 0, .stream = GPUStream::Gather},
      *device);
  Collective c = sum(Kind::AllReduce, DType::F32, 100).collective;
  c.source = c.target = place;
  comm->prepare(std::span(&c, 1));
  comm->run(0, 1);
  EXPECT_THROW(device->synchronize(), Error);
  world->abort();
  fake.takeLog('a');
  comm.reset();
  device.reset();
  world.reset();
  EXPECT_THAT(fake.takeLog('a'), IsEmpty());
}

TEST(NCCL, AbortEndsEveryWait) {
  for (unsigned hangsAt : {2u, 4u}) {
    auto setup = [&](unsigned rank) {
      fakenccl::Setup setup;
      setup.hangsAt = rank == 1 ? hangsAt : 0;
      return setup;
    };
    std::vector<std::string> thrown = Ranks{.setup = setup}([&](Rank &rank) {
      std::jthread other([&] {
        std::this_thread::sleep_for(50ms);
        rank.world.abort();
      });
      addUp(rank, 2, 3);
    });
    EXPECT_THAT(thrown, Each("stopped because another rank failed"));
  }
}

// After every wait for the GPU, and while it lasts, communicators are asked.
TEST(NCCL, AnErrorOfACollectiveIsFound) {
  auto setup = [](unsigned rank) {
    fakenccl::Setup setup;
    setup.failsAt = rank == 1 ? 4 : 0;
    return setup;
  };
  std::vector<std::string> thrown = Ranks{.timeout = 200ms, .setup = setup}(
      [](Rank &rank) { addUp(rank, 2, 6); });
  EXPECT_THAT(thrown[0], StartsWith("waited 0.2 s for "));
  EXPECT_THAT(thrown[1], HasSubstr(": remote process exited"));
}

// The fake is strict where NCCL itself would hang or give nonsense.
TEST(NCCL, CallsMustAgree) {
  std::vector<std::string> thrown = Ranks{.timeout = 200ms}([](Rank &rank) {
    Comm &comm = rank.open(everyNth(rank, 2));
    Collective c = sum(Kind::AllReduce, DType::F32, 10).collective;
    c.count += rank.context.rank;
    c.source = c.target = rank.device->allocate(Space::Device, 400);
    comm.prepare(std::span(&c, 1));
    comm.run(0, 1);
    rank.device->synchronize();
  });
  EXPECT_THAT(thrown, Each(HasSubstr("invalid usage")));
}

} // namespace
