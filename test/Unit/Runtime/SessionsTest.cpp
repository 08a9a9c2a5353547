//===- SessionsTest.cpp - A run of two sessions ---------------------------===//
//
// Two sessions of two ranks each in one process, each driven by a thread of its
// own, as two processes would be. They share memory and a store.
//
//===----------------------------------------------------------------------===//
#include "SharedBackend.h"
#include "SmallModel.h"

#include "fsdp/Runtime/Processes/Agreement.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

using namespace fsdp;
using testing::ThrowsMessage;
using namespace fsdp::test;
using planfile::Role;
using planfile::Stream;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

namespace {

/// What the two sessions of one run have in common.
struct TwoSessions {
  std::shared_ptr<Backend> backend = makeLocalBackend(4);
  std::shared_ptr<Store> store = makeLocalStore();
  std::chrono::milliseconds timeout = 20s;
  SharedBackend::Hook beforeDevice, beforeComm;

  SessionOptions options() {
    SessionOptions result;
    result.backend =
        std::make_unique<SharedBackend>(backend, beforeDevice, beforeComm);
    result.store = store;
    result.timeout = timeout;
    return result;
  }
};

/// All that a few steps leave behind, rank by rank.
struct Outcome {
  std::vector<double> losses;
  std::map<std::string, std::vector<BoxedTensor>> boxes;
};

constexpr unsigned steps = 5;

void train(Session &session, Outcome &outcome) {
  load(session);
  session.setHyperParameters({.lr = 0.1});
  for (unsigned step = 0; step != steps; ++step) {
    feed(session, step);
    session.run();
    outcome.losses.push_back(session.loss());
  }
  for (unsigned r = session.ranks().first; r != session.ranks().end(); ++r)
    for (const char *name : {"w", "b"})
      for (TensorName tensor :
           {TensorName::parameter(name), TensorName::gradient(name),
            TensorName::optimizerState(name, "exp_avg_sq")})
        outcome.boxes[std::to_string(r) + name +
                      std::to_string(static_cast<int>(tensor.kind))] =
            session.boxes(tensor, r);
}

void expectEqual(const std::vector<BoxedTensor> &boxes,
                 const std::vector<BoxedTensor> &expected) {
  ASSERT_EQ(boxes.size(), expected.size());
  for (std::size_t i = 0; i != boxes.size(); ++i) {
    EXPECT_EQ(boxes[i].box.offsets, expected[i].box.offsets);
    EXPECT_EQ(boxes[i].value.sizes, expected[i].value.sizes);
    EXPECT_EQ(boxes[i].value.bytes, expected[i].value.bytes);
  }
}

// covers: torch.distributed
TEST(Sessions, TrainAsOneDoes) {
  for (const TestPlan &plan :
       {makeSmallPlan(4), makeHybridPlan(), makeOverlappingPlan(4)}) {
    Outcome expected;
    {
      Loaded loaded(plan, 4);
      train(loaded.session, expected);
    }
    for (std::uint64_t chaos : {0, 1, 2}) {
      TwoSessions both;
      std::array<Outcome, 2> outcomes;
      auto errors = runBoth([&](RankRange ranks) {
        SessionOptions options = both.options();
        options.chaosSeed = chaos;
        Loaded loaded(plan, ranks, std::move(options));
        train(loaded.session, outcomes[ranks.first / 2]);
      });
      for (const std::optional<Error> &error : errors)
        ASSERT_FALSE(error) << error->what();
      std::size_t found = 0;
      for (const Outcome &outcome : outcomes) {
        EXPECT_EQ(outcome.losses, expected.losses);
        for (const auto &[key, boxes] : outcome.boxes)
          expectEqual(boxes, expected.boxes.at(key));
        found += outcome.boxes.size();
      }
      EXPECT_EQ(found, expected.boxes.size());
    }
  }
}

// What one session lacks of a tensor, it reads from the other.
// covers: summon_full_params: rank0_only
TEST(Sessions, AWholeTensorIsReadFromAllOfThem) {
  TwoSessions both;
  auto errors = runBoth([&](RankRange ranks) {
    Loaded loaded(makeSmallPlan(4), ranks, both.options());
    EXPECT_EQ(loaded.session.sizes(TensorName::parameter("w")),
              (std::vector<std::int64_t>{4, 4}));
    EXPECT_THAT(
        [&] {
          loaded.session.setInput(3 - ranks.first, 0, toHost(batch(0, 0)));
        },
        ThrowsMessage<Error>(
            HasSubstr("expected one of the ranks of this process, ")));
    load(loaded.session);
    Loaded alone(makeSmallPlan(4), 4);
    load(alone.session);
    for (const char *name : {"w", "b", "w"}) {
      HostTensor value = loaded.session.read(TensorName::parameter(name));
      EXPECT_EQ(value.sizes, alone.session.sizes(TensorName::parameter(name)));
      EXPECT_EQ(value.bytes,
                alone.session.read(TensorName::parameter(name)).bytes);
    }
    EXPECT_THAT(loaded.session.findDirtyPadding(false), testing::IsEmpty());
  });
  for (const std::optional<Error> &error : errors)
    EXPECT_FALSE(error) << error->what();
}

// Who writes a model has a tensor of it, and nobody else does.
TEST(Sessions, AWholeTensorIsGatheredByTheFirstOfThem) {
  TwoSessions both;
  auto errors = runBoth([&](RankRange ranks) {
    Loaded loaded(makeSmallPlan(4), ranks, both.options());
    load(loaded.session);
    Loaded alone(makeSmallPlan(4), 4);
    load(alone.session);
    for (const char *name : {"w", "b", "w"}) {
      HostTensor value = loaded.session.gather(TensorName::parameter(name));
      EXPECT_EQ(value.sizes, alone.session.sizes(TensorName::parameter(name)));
      EXPECT_EQ(value.bytes,
                ranks.first == 0
                    ? alone.session.read(TensorName::parameter(name)).bytes
                    : std::vector<std::byte>());
      // The others' memory is as it was: all of them may read again.
      EXPECT_EQ(loaded.session.read(TensorName::parameter(name)).bytes,
                alone.session.read(TensorName::parameter(name)).bytes);
    }
  });
  for (const std::optional<Error> &error : errors)
    EXPECT_FALSE(error) << error->what();
}

// Equal parameters have equal digests, whoever holds them, and others do not.
TEST(Sessions, ADigestDoesNotDependOnTheRanks) {
  auto digestOf = [](const TestPlan &plan, unsigned ranks) {
    Loaded loaded(plan, ranks);
    load(loaded.session);
    return loaded.session.digestParameters();
  };
  std::uint64_t expected = digestOf(makeSmallPlan(1), 1);
  for (unsigned ranks : {2, 4})
    EXPECT_EQ(digestOf(makeSmallPlan(ranks), ranks), expected);
  EXPECT_EQ(digestOf(makeHybridPlan(), 4), expected);
  TwoSessions both;
  auto errors = runBoth([&](RankRange ranks) {
    Loaded loaded(makeSmallPlan(4), ranks, both.options());
    load(loaded.session);
    EXPECT_EQ(loaded.session.digestParameters(), expected);
    HostTensor value = loaded.session.read(TensorName::parameter("w"));
    const std::vector<std::byte> before = value.bytes;
    // A bit, and two elements that change places.
    value.bytes.back() ^= std::byte(1);
    loaded.session.write(TensorName::parameter("w"), value);
    EXPECT_NE(loaded.session.digestParameters(), expected);
    value.bytes = before;
    std::swap_ranges(value.bytes.begin(), value.bytes.begin() + 4,
                     value.bytes.begin() + 4);
    ASSERT_NE(value.bytes, before);
    loaded.session.write(TensorName::parameter("w"), value);
    EXPECT_NE(loaded.session.digestParameters(), expected);
    value.bytes = before;
    loaded.session.write(TensorName::parameter("w"), value);
    EXPECT_EQ(loaded.session.digestParameters(), expected);
  });
  for (const std::optional<Error> &error : errors)
    EXPECT_FALSE(error) << error->what();
}

TEST(Sessions, ATensorThatOneOfThemDoesNotReadIsWaitedForOnlySoLong) {
  TwoSessions both;
  both.timeout = 300ms;
  auto errors = runBoth([&](RankRange ranks) {
    Loaded loaded(makeSmallPlan(4), ranks, both.options());
    load(loaded.session);
    if (ranks.first == 0)
      static_cast<void>(loaded.session.read(TensorName::parameter("w")));
    for (;;) {
      static_cast<void>(loaded.session.loss());
      std::this_thread::sleep_for(10ms);
    }
  });
  for (const std::optional<Error> &error : errors) {
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                testing::MatchesRegex("rank [01], reading w: waited 0.3 s for "
                                      "rank [0-3] to join it"));
    EXPECT_EQ(error->kind(), Failure::RankFailed);
  }
}

TEST(Sessions, ARankThatFailsStopsAllOfThem) {
  TwoSessions both;
  auto begin = std::chrono::steady_clock::now();
  auto errors = runBoth([&](RankRange ranks) {
    Loaded loaded(makePickingPlan(4), ranks, both.options());
    Session &session = loaded.session;
    load(session);
    for (unsigned step = 0; step != 3; ++step) {
      feed(session, step);
      for (unsigned r = ranks.first; r != ranks.end(); ++r)
        session.setInput(r, 1,
                         toHost(at::full({1}, r == 1 ? step : 0, at::kLong)));
      session.run();
    }
  });
  for (const std::optional<Error> &error : errors) {
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                StartsWith("rank 1, step 3, program step, "
                           "aten::index_select.out, node pick: "));
    EXPECT_EQ(error->kind(), Failure::RankFailed);
  }
  EXPECT_STREQ(errors[0]->what(), errors[1]->what());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, both.timeout);
}

TEST(Sessions, ARankThatIsMissedIsNamed) {
  TwoSessions both;
  both.timeout = 300ms;
  auto errors = runBoth([&](RankRange ranks) {
    Loaded loaded(makeSmallPlan(4), ranks, both.options());
    load(loaded.session);
    feed(loaded.session, 0);
    loaded.session.run();
    if (ranks.first == 0)
      return loaded.session.run();
    // Told without asking.
    for (;;) {
      static_cast<void>(loaded.session.loss());
      std::this_thread::sleep_for(10ms);
    }
  });
  for (const std::optional<Error> &error : errors) {
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), testing::MatchesRegex(
                                   "rank [01], step 2, program step, "
                                   "AllGather, unit u: waited 0.3 s for rank "
                                   "[23] to join it"));
  }
  EXPECT_STREQ(errors[0]->what(), errors[1]->what());
}

// One rank has no device; the others wait for it in a call of the backend.
TEST(Sessions, ARankThatFailsToOpenWakesAllOthers) {
  TwoSessions both;
  both.beforeDevice = [](const RankContext &rank, std::atomic<bool> &) {
    if (rank.rank == 1)
      throw Error("rank 1 has no device");
  };
  both.beforeComm = [](const RankContext &, std::atomic<bool> &aborted) {
    while (!aborted.load())
      std::this_thread::sleep_for(1ms);
    throw Error("aborted");
  };
  auto errors = runBoth([&](RankRange ranks) {
    Loaded loaded(makeSmallPlan(4), ranks, both.options());
  });
  for (const std::optional<Error> &error : errors) {
    ASSERT_TRUE(error);
    EXPECT_STREQ(error->what(), "rank 1 has no device");
    EXPECT_EQ(error->kind(), Failure::Rejected);
  }
}

// covers: set_custom_all_gather
TEST(Sessions, BackendsAreToldWhereARankIs) {
  TwoSessions both;
  std::array<RankContext, 4> seen;
  both.beforeDevice = [&](const RankContext &rank, std::atomic<bool> &) {
    seen[rank.rank] = rank;
  };
  auto errors = runBoth([&](RankRange ranks) {
    SessionOptions options = both.options();
    options.device = 5 + ranks.first;
    Loaded loaded(makeSmallPlan(4), ranks, std::move(options));
  });
  ASSERT_FALSE(errors[0] || errors[1]);
  for (unsigned r = 0; r != 4; ++r) {
    EXPECT_EQ(seen[r].localRank, r % 2);
    EXPECT_EQ(seen[r].device, r < 2 ? 5u : 7u);
    EXPECT_EQ(seen[r].store, both.store);
    EXPECT_EQ(seen[r].timeout, both.timeout);
  }
}

// covers: execution order differs among ranks
TEST(Sessions, MustHaveTheSameCollectives) {
  TwoSessions both;
  auto errors = runBoth([&](RankRange ranks) {
    TestPlan plan = makeSmallPlan(4);
    auto &commands = plan.programs.back().commands;
    auto reduce = std::ranges::find(commands, planfile::Step::ReduceScatter,
                                    &TestPlan::Command::type);
    if (ranks.first == 0)
      commands.insert(reduce, TestPlan::Command(*reduce));
    Loaded loaded(plan, ranks, both.options());
  });
  for (const std::optional<Error> &error : errors) {
    ASSERT_TRUE(error);
    EXPECT_STREQ(
        error->what(),
        "rank 2: expected collective 1 of communicator shard_Reduce to "
        "be reduce_scatter 256 bytes f32 u as on rank 0, found the "
        "end");
    EXPECT_EQ(error->kind(), Failure::CheckFailed);
  }
}

TEST(Sessions, OneThatIsMissedIsWaitedForOnlySoLong) {
  TwoSessions both;
  both.timeout = 200ms;
  try {
    Loaded loaded(makeSmallPlan(4), {0, 2}, both.options());
    FAIL();
  } catch (const Error &error) {
    EXPECT_STREQ(error.what(), "waited 0.2 s for all 4 ranks to agree on the "
                               "plan; 2 have");
    EXPECT_EQ(error.kind(), Failure::Rejected);
  }
}

TEST(Sessions, RanksMustBeThePlans) {
  TwoSessions both;
  auto refusal = [&](RankRange ranks, SessionOptions options) -> std::string {
    try {
      Loaded loaded(makeSmallPlan(4), ranks, std::move(options));
    } catch (const Error &error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal({3, 2}, both.options()),
            "expected some of the plan's 4 ranks, found 2 from 3 on");
  EXPECT_EQ(refusal({0, 0}, both.options()),
            "expected some of the plan's 4 ranks, found 0 from 0 on");
  EXPECT_EQ(refusal({0, 2}, {}), "the plan is for 4 ranks, not for 2");
  SessionOptions storeless = both.options();
  storeless.store = nullptr;
  EXPECT_EQ(refusal({0, 2}, std::move(storeless)),
            "a session with some of the plan's ranks needs a store, where it "
            "meets the others");
  SessionOptions hasty;
  hasty.timeout = 0ms;
  EXPECT_EQ(refusal(4, std::move(hasty)),
            "expected a time-out of at least 0.001 s, found 0 s");
}

/// What every store does; `other` is another process's end of it.
void checkStore(Store &store, Store &other) {
  EXPECT_EQ(store.get("key", 5ms), std::nullopt);
  EXPECT_EQ(store.add("count", 2), 2);
  EXPECT_EQ(other.add("count", -3), -1);
  EXPECT_EQ(store.get("count", 0ms), std::nullopt);
  const std::string zeros("a\0b\0", 4);
  store.set("zeros", zeros);
  store.set("nothing", "");
  EXPECT_EQ(other.get("zeros", 0ms), zeros);
  EXPECT_EQ(other.get("nothing", 0ms), "");
  EXPECT_EQ(store.setFirst("first", "one"), "one");
  EXPECT_EQ(other.setFirst("first", "two"), "one");
  EXPECT_EQ(other.get("first", 0ms), "one");
  std::thread setter([&] {
    std::this_thread::sleep_for(5ms);
    other.set("key", "value");
  });
  EXPECT_EQ(store.get("key", 20s), "value");
  setter.join();
}

TEST(LocalStore, SetsAddsAndWaits) {
  std::shared_ptr<Store> store = makeLocalStore();
  checkStore(*store, *store);
}

TEST(TCPStore, SetsAddsAndWaits) {
  for (const char *host : {"127.0.0.1", "::1", "localhost", "0.0.0.0"}) {
    std::uint16_t port = 0;
    std::shared_ptr<Store> store = serveStore(host, port);
    std::string address = host == std::string("0.0.0.0") ? "127.0.0.1" : host;
    std::shared_ptr<Store> other = connectStore(address, port);
    checkStore(*store, *other);
  }
}

// What a machine sends to another address of it does not arrive.
TEST(TCPStore, ListensOnTheGivenAddressAlone) {
  for (const char *host : {"127.0.0.1", "localhost", "0.0.0.0"}) {
    std::uint16_t port = 0;
    std::shared_ptr<Store> store = serveStore(host, port);
    int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr *>(&address),
                        sizeof address) == 0,
              host == std::string("0.0.0.0"));
    ::close(socket);
  }
}

TEST(TCPStore, AnAddressOfAnotherMachineIsRejected) {
  std::uint16_t port = 0;
  EXPECT_THAT([&] { serveStore("192.0.2.1", port); },
              ThrowsMessage<Error>(
                  "cannot open the store of the run: expected an address of "
                  "this machine, found 192.0.2.1; with MASTER_ADDR=0.0.0.0 for "
                  "rank 0, it listens on all"));
  EXPECT_THAT([&] { serveStore("no.such.host.invalid", port); },
              ThrowsMessage<Error>(StartsWith(
                  "cannot open the store of the run: expected an address of "
                  "this machine, found no.such.host.invalid: ")));
}

// Who does not know it reads and writes other keys.
TEST(TCPStore, ASecretKeepsOthersOut) {
  std::uint16_t port = 0;
  ::setenv(storeSecretVariable, "open sesame", 1);
  std::shared_ptr<Store> store = serveStore("127.0.0.1", port);
  std::shared_ptr<Store> friendly = connectStore("127.0.0.1", port);
  ::unsetenv(storeSecretVariable);
  std::shared_ptr<Store> other = connectStore("127.0.0.1", port);
  store->set("key", "value");
  EXPECT_EQ(friendly->get("key", 0ms), "value");
  EXPECT_EQ(other->get("key", 0ms), std::nullopt);
  EXPECT_EQ(other->setFirst("failure", "3stop"), "3stop");
  EXPECT_EQ(store->get("failure", 0ms), std::nullopt);
  EXPECT_EQ(store->add("count", 1), 1);
  EXPECT_EQ(other->add("count", 1), 1);
}

// An agent's store has keys of earlier runs.
TEST(TCPStore, KeysHaveAPrefix) {
  std::uint16_t port = 0;
  std::shared_ptr<Store> store = serveStore("127.0.0.1", port);
  std::shared_ptr<Store> first = connectStore("127.0.0.1", port, "0 ");
  std::shared_ptr<Store> second = connectStore("127.0.0.1", port, "1 ");
  first->set("key", "old");
  EXPECT_EQ(first->add("count", 2), 2);
  EXPECT_EQ(second->get("key", 0ms), std::nullopt);
  EXPECT_EQ(second->add("count", 1), 1);
  EXPECT_EQ(store->get("key", 0ms), std::nullopt);
}

TEST(TCPStore, OneThatHasEndedIsNamed) {
  std::uint16_t port = 0;
  std::shared_ptr<Store> store = serveStore("127.0.0.1", port);
  std::shared_ptr<Store> other = connectStore("127.0.0.1", port);
  store.reset();
  EXPECT_THAT([&] { static_cast<void>(other->get("key", 5s)); },
              ThrowsMessage<Error>(
                  StartsWith("cannot reach the store of rank 0 at 127.0.0.1:" +
                             std::to_string(port) + ": ")));
}

TEST(TCPStore, APortThatIsTakenIsRejected) {
  std::uint16_t port = 0;
  std::shared_ptr<Store> store = serveStore("127.0.0.1", port);
  EXPECT_THAT([&] { serveStore("127.0.0.1", port); },
              ThrowsMessage<Error>("cannot open the store of the run: bind: "
                                   "Address already in use"));
}

} // namespace
