//===- CUDACommTest.cpp - Collectives of ranks that share a GPU -----------===//
#include "FakeCuda.h"

#include "Runtime/Comm/CUDA/Local.h"
#include "fsdp/Runtime/Support/Error.h"

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

using namespace fsdp;
using testing::HasSubstr;
using testing::ThrowsMessage;
using namespace testing;
using planfile::DType;
using planfile::Space;
using planfile::Stream;

namespace {

/// A rank with its communicator and one block of memory.
struct Rank {
  unsigned rank = 0;
  std::unique_ptr<CUDADevice> device;
  std::unique_ptr<Comm> comm;
  float *memory = nullptr;

  std::byte *at(std::size_t element) const {
    return reinterpret_cast<std::byte *>(memory + element);
  }
  cudaStream_t stream(Stream which) const { return device->stream(which); }
};

class Ranks {
public:
  Ranks(FakeCuda &fake, unsigned count, Stream stream = Stream::Gather)
      : fake(fake), world(count), ranks(count) {
    for (unsigned r = 0; r != count; ++r)
      members.push_back(r);
    run([&](Rank &rank) {
      rank.device = std::make_unique<CUDADevice>(fake.api, rank.rank);
      rank.memory = reinterpret_cast<float *>(
          rank.device->allocate(Space::Device, 65536));
      rank.comm = open(rank, 0, stream);
    });
  }

  std::unique_ptr<Comm> open(Rank &rank, unsigned communicator, Stream stream) {
    return world.openComm(communicator, {members, rank.rank, stream},
                          *rank.device);
  }

  /// Runs the body on a thread per rank; the first error wins.
  void run(const std::function<void(Rank &)> &body) {
    std::vector<std::thread> threads;
    std::exception_ptr error;
    std::mutex mutex;
    for (unsigned r = 0; r != ranks.size(); ++r)
      threads.emplace_back([&, r] {
        fake.enter(static_cast<char>('a' + r));
        ranks[r].rank = r;
        try {
          body(ranks[r]);
        } catch (...) {
          std::lock_guard lock(mutex);
          if (!error)
            error = std::current_exception();
          world.abort();
        }
      });
    for (std::thread &thread : threads)
      thread.join();
    if (error)
      std::rethrow_exception(error);
  }

  FakeCuda &fake;
  LocalCUDAWorld world;
  std::vector<unsigned> members;
  std::vector<Rank> ranks;
};

Collective gather(const Rank &rank, std::size_t count, bool isStable = false) {
  return {.kind = Collective::Kind::AllGather,
          .source = rank.at(0),
          .target = rank.at(1024),
          .count = count,
          .sourceStable = isStable};
}

TEST(CUDAComm, GatherAnnouncesItsSourceAndWaitsForThePeers) {
  FakeCuda fake;
  Ranks ranks(fake, 2);
  ranks.run([&](Rank &rank) {
    std::vector<Collective> list{gather(rank, 4)};
    rank.comm->prepare(list);
  });
  fake.takeLog('a');
  ranks.run([&](Rank &rank) {
    rank.device->enter();
    rank.comm->run(0, 1);
    rank.comm->drain(0, 1);
  });
  EXPECT_THAT(fake.takeLog('a'),
              ElementsAre("setDevice 0", "useStream a.compute",
                          "eventRecord a.e0 on a.gather",
                          "memcpyAsync a.m0+4096 = a.m0+0 x 16 on a.gather",
                          "streamWaitEvent b.e0 by a.gather",
                          "memcpyAsync a.m0+4112 = b.m0+0 x 16 on a.gather",
                          "eventRecord a.e1 on a.gather",
                          "streamWaitEvent b.e1 by a.compute"));
}

TEST(CUDAComm, GatherOfAStableSourceWaitsForNobody) {
  FakeCuda fake;
  Ranks ranks(fake, 3);
  ranks.run([&](Rank &rank) {
    std::vector<Collective> list{gather(rank, 4, true)};
    rank.comm->prepare(list);
  });
  fake.takeLog('b');
  fake.enter('b');
  ranks.ranks[1].comm->run(0, 1); // alone
  EXPECT_THAT(fake.takeLog('b'),
              ElementsAre("memcpyAsync b.m0+4112 = b.m0+0 x 16 on b.gather",
                          "memcpyAsync b.m0+4128 = c.m0+0 x 16 on b.gather",
                          "memcpyAsync b.m0+4096 = a.m0+0 x 16 on b.gather",
                          "eventRecord b.e1 on b.gather"));
}

TEST(CUDAComm, GatherLeavesAPieceThatIsInPlace) {
  FakeCuda fake;
  Ranks ranks(fake, 1);
  ranks.run([&](Rank &rank) {
    Collective c = gather(rank, 4, true);
    c.source = c.target;
    rank.comm->prepare(std::span(&c, 1));
    fake.takeLog('a');
    rank.comm->run(0, 1);
  });
  EXPECT_THAT(fake.takeLog('a'), ElementsAre("eventRecord a.e1 on a.gather"));
}

// covers: NCCL
TEST(CUDAComm, ReduceScatterSumsItsSlice) {
  FakeCuda fake;
  Ranks ranks(fake, 2, Stream::Reduce);
  ranks.run([&](Rank &rank) {
    Collective c{.kind = Collective::Kind::ReduceScatter,
                 .source = rank.at(0),
                 .target = rank.at(1024),
                 .count = 8};
    rank.comm->prepare(std::span(&c, 1));
  });
  EXPECT_THAT(fake.takeLog('b'), Contains("malloc 8192")); // scratch
  ranks.run([&](Rank &rank) { rank.comm->run(0, 1); });
  EXPECT_THAT(fake.takeLog('b'),
              ElementsAre("eventRecord b.e0 on b.reduce",
                          "streamWaitEvent a.e0 by b.reduce",
                          "sum b.m0+4096 x 8 of 2 from 8 on b.reduce",
                          "eventRecord b.e1 on b.reduce"));
}

TEST(CUDAComm, AllReduceSumsASliceAndFetchesTheOthers) {
  FakeCuda fake;
  Ranks ranks(fake, 2, Stream::AllReduce);
  ranks.run([&](Rank &rank) {
    Collective c{.kind = Collective::Kind::AllReduce,
                 .source = rank.at(0),
                 .target = rank.at(0),
                 .count = 100};
    rank.comm->prepare(std::span(&c, 1));
  });
  fake.takeLog('b');
  ranks.run([&](Rank &rank) { rank.comm->run(0, 1); });
  EXPECT_THAT(fake.takeLog('b'),
              ElementsAre("eventRecord b.e0 on b.all_reduce",
                          "streamWaitEvent a.e0 by b.all_reduce",
                          "sum b.m0+256 x 36 of 2 from 64 on b.all_reduce",
                          "eventRecord b.e1 on b.all_reduce",
                          "streamWaitEvent a.e1 by b.all_reduce",
                          "memcpyAsync b.m0+0 = a.m0+0 x 256 on b.all_reduce",
                          "eventRecord b.e2 on b.all_reduce"));
}

TEST(CUDAComm, BarrierFinishesTheStreams) {
  FakeCuda fake;
  Ranks ranks(fake, 3);
  std::atomic<unsigned> arrived{0};
  ranks.run([&](Rank &rank) {
    fake.launch(rank.stream(Stream::Copy), [&] { ++arrived; });
    rank.comm->barrier();
    EXPECT_EQ(arrived, 3u);
  });
}

TEST(CUDAComm, DrainOfWhatNeverRanIsNothing) {
  FakeCuda fake;
  Ranks ranks(fake, 2);
  ranks.run([&](Rank &rank) {
    Collective c = gather(rank, 4);
    rank.comm->prepare(std::span(&c, 1));
    fake.takeLog('a');
    rank.comm->drain(0, 1);
  });
  EXPECT_THAT(fake.takeLog('a'), IsEmpty());
}

TEST(CUDAComm, AbortWakesWhoeverWaits) {
  FakeCuda fake;
  Ranks ranks(fake, 3);
  ranks.run([&](Rank &rank) {
    Collective c = gather(rank, 4);
    rank.comm->prepare(std::span(&c, 1));
  });
  std::atomic<unsigned> stopped{0};
  ranks.run([&](Rank &rank) {
    if (rank.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ranks.world.abort();
      return;
    }
    try {
      rank.comm->run(0, 1);
    } catch (const Error &error) {
      EXPECT_EQ(error.kind(), Failure::RankFailed);
      EXPECT_STREQ(error.what(), "stopped because another rank failed");
      ++stopped;
    }
  });
  EXPECT_EQ(stopped, 2u);
  EXPECT_THAT([&] { ranks.ranks[2].comm->run(0, 1); },
              ThrowsMessage<Error>(HasSubstr(
                  "stopped because another rank failed"))); // later ones, too
}

TEST(CUDAComm, ErrorsNameTheRank) {
  FakeCuda fake;
  Ranks ranks(fake, 2);
  ranks.run([&](Rank &rank) {
    Collective c = gather(rank, 4, true);
    rank.comm->prepare(std::span(&c, 1));
  });
  fake.enter('b');
  fake.api.memcpyAsync = [](auto...) { return cudaErrorUnknown; };
  try {
    ranks.ranks[1].comm->run(0, 1);
    FAIL();
  } catch (const Error &error) {
    EXPECT_STREQ(error.what(), "rank 1: cudaMemcpyAsync: it is broken");
  }
}

//===----------------------------------------------------------------------===//
// Values, with the streams taking turns at random
//===----------------------------------------------------------------------===//

/// Several steps: sources are written on the compute stream, go through one
/// collective of each kind on a stream of its own, are overwritten after a
/// drain, and what arrived is used on the compute stream.
void runSteps(unsigned count, unsigned seed) {
  constexpr std::size_t n = 96; // of a piece
  FakeCuda fake(seed);
  Ranks ranks(fake, count);
  std::vector<std::vector<float>> seen(count);
  enum { Gather, Scatter, Reduce };
  const Stream streams[] = {Stream::Gather, Stream::Reduce, Stream::AllReduce};
  std::vector<std::array<std::unique_ptr<Comm>, 3>> comms(count);
  ranks.run([&](Rank &rank) {
    std::vector<Collective> list(3);
    list[Gather] = gather(rank, n);
    list[Scatter] = {.kind = Collective::Kind::ReduceScatter,
                     .source = rank.at(2048),
                     .target = rank.at(3072),
                     .count = n,
                     .pre = 2,
                     .post = 4};
    list[Reduce] = {.kind = Collective::Kind::AllReduce,
                    .source = rank.at(4096),
                    .target = rank.at(rank.rank % 2 ? 4096 : 5120),
                    .count = n};
    for (unsigned i = 0; i != 3; ++i) {
      comms[rank.rank][i] = ranks.open(rank, 1 + i, streams[i]);
      comms[rank.rank][i]->prepare(std::span(&list[i], 1));
    }
    rank.device->programEvents(0, 6);
  });
  for (unsigned step = 1; step != 4; ++step)
    ranks.run([&](Rank &rank) {
      CUDADevice &device = *rank.device;
      device.enter();
      auto write = [&](std::size_t place, std::size_t size, float value) {
        fake.launch(device.stream(Stream::Compute), [=, p = rank.memory] {
          std::fill_n(p + place, size, value);
        });
      };
      auto value = static_cast<float>(step * (rank.rank + 1));
      write(0, n, value);
      write(2048, n * count, value);
      write(4096, n, value);
      for (unsigned i = 0; i != 3; ++i) {
        device.record(Stream::Compute, 0, i);
        device.wait(streams[i], 0, i);
        comms[rank.rank][i]->run(0, 1);
        device.record(streams[i], 0, 3 + i);
      }
      for (unsigned i = 0; i != 3; ++i) {
        device.wait(Stream::Compute, 0, 3 + i);
        fake.launch(device.stream(Stream::Compute), [&, i, r = rank.rank,
                                                     p = rank.memory] {
          static constexpr std::size_t at[] = {1024, 3072, 0};
          std::size_t from = i == Reduce ? (r % 2 ? 4096 : 5120) : at[i];
          seen[r].insert(seen[r].end(), p + from,
                         p + from + (i == Gather ? n * count : n));
        });
      }
      for (unsigned i = 0; i != 3; ++i)
        comms[rank.rank][i]->drain(0, 1);
      write(0, n, NAN);
      write(2048, n * count, NAN);
      write(4096, n, NAN);
      write(5120, n, NAN);
      device.synchronize();
      device.leave();
    });
  for (unsigned r = 0; r != count; ++r) {
    std::vector<float> expected;
    auto add = [&](float value) { expected.insert(expected.end(), n, value); };
    for (unsigned step = 1; step != 4; ++step) {
      auto sum = static_cast<float>(step * count * (count + 1) / 2);
      for (unsigned peer = 0; peer != count; ++peer)
        add(static_cast<float>(step * (peer + 1)));
      add(sum / 2 / 4);
      add(sum);
    }
    EXPECT_EQ(seen[r], expected) << "rank " << r << " seed " << seed;
  }
}

TEST(CUDAComm, ValuesDoNotDependOnTheOrderOfStreams) {
  for (unsigned count : {1u, 2u, 3u, 4u})
    for (unsigned seed = 0; seed != 10; ++seed)
      runSteps(count, seed);
}

//===----------------------------------------------------------------------===//
// Sums in ATen's operators
//===----------------------------------------------------------------------===//

template <typename Element> std::vector<std::byte> bytesOf(unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> bytes(100 * sizeof(Element));
  for (unsigned i = 0; i != 100; ++i) {
    auto value = static_cast<Element>(
        static_cast<float>(random() % 20001) / 3000.f - 3.3f);
    std::memcpy(bytes.data() + i * sizeof(Element), &value, sizeof value);
  }
  return bytes;
}

TEST(CUDASum, EqualsTheSumOfTheCPU) {
  struct Case {
    DType source, target, via;
    double pre, post;
  };
  using enum DType;
  for (const Case &c :
       {Case{F32, F32, F32, 1, 1}, Case{F32, F32, F32, 2, 2},
        Case{F32, F32, F32, 1, 3}, Case{BF16, F32, F32, 2, 1},
        Case{BF16, BF16, BF16, 1, 4}, Case{BF16, F32, BF16, 1, 1},
        Case{F32, F32, F16, 1, 1}, Case{F64, F64, F64, 2, 3}}) {
    std::vector<std::vector<std::byte>> owned;
    std::vector<const std::byte *> sources;
    for (unsigned r = 0; r != 4; ++r) {
      owned.push_back(c.source == F64    ? bytesOf<double>(r + 1)
                      : c.source == BF16 ? bytesOf<c10::BFloat16>(r + 1)
                                         : bytesOf<float>(r + 1));
      sources.push_back(owned.back().data());
    }
    constexpr std::size_t begin = 10, count = 80, chunk = 32;
    Reduction how{c.source, c.target, c.via, c.pre, c.post};
    std::vector<std::byte> expected(count * 8), actual(count * 8),
        scratch(chunk * Sum::scratchItem);
    reduce(how, sources, begin, expected.data(), count);
    addInOrder(
        {how, sources, begin, actual.data(), count, scratch.data(), chunk},
        c10::kCPU);
    EXPECT_EQ(actual, expected)
        << EnumNameDType(c.source) << " " << EnumNameDType(c.target) << " via "
        << EnumNameDType(c.via) << " " << c.pre << " " << c.post;
  }
}

TEST(CUDASum, TheTargetMayBeASource) {
  std::vector<float> a{1, 2, 3, 4}, b{10, 20, 30, 40};
  std::vector<std::byte> scratch(2 * Sum::scratchItem);
  const std::byte *sources[] = {reinterpret_cast<std::byte *>(a.data()),
                                reinterpret_cast<std::byte *>(b.data())};
  addInOrder({{DType::F32, DType::F32, DType::F32},
              sources,
              0,
              reinterpret_cast<std::byte *>(b.data()),
              4,
              scratch.data(),
              2},
             c10::kCPU);
  EXPECT_THAT(b, ElementsAre(11, 22, 33, 44));
}

// The quotient of a sum that is there needs no memory beside it.
TEST(CUDASum, IsDividedInPlace) {
  using enum DType;
  for (DType type : {F16, BF16, F32, F64})
    for (double post : {1.0, 4.0, 3.0, 1.7}) {
      std::vector<std::byte> source = type == F64    ? bytesOf<double>(5)
                                      : type == BF16 ? bytesOf<c10::BFloat16>(5)
                                      : type == F16  ? bytesOf<c10::Half>(5)
                                                     : bytesOf<float>(5);
      constexpr std::size_t count = 80;
      std::vector<std::byte> expected = source;
      const std::byte *sources[] = {source.data()};
      Reduction how{type, type, type, 1, post};
      reduce(how, sources, 0, expected.data(), count);
      addInOrder({how, sources, 0, source.data(), count, nullptr, 0},
                 c10::kCPU);
      EXPECT_EQ(source, expected) << EnumNameDType(type) << " " << post;
    }
}

} // namespace
