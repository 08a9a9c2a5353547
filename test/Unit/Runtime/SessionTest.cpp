//===- SessionTest.cpp - Whole steps against ATen by hand -----------------===//
#include "SmallModel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <chrono>
#include <cmath>

using namespace fsdp;
using testing::ThrowsMessage;
using namespace fsdp::test;
using planfile::BufferRole;
using planfile::Role;
using planfile::Stream;
using testing::HasSubstr;

namespace {

/// Operators as a library of somebody else may have them.
at::Tensor &throwNumber(const at::Tensor &, at::Tensor &) { throw 5; }
at::Tensor throwFromProbe(const at::Tensor &self) {
  at::Tensor scratch = at::empty_like(self);
  throw 5;
}
/// As kernels of a GPU return what they have made on the host.
at::Tensor elsewhere(const at::Tensor &self) {
  return at::empty_like(self, at::TensorOptions(c10::kMeta));
}

TORCH_LIBRARY(fsdp_test, library) {
  library.def("throws(Tensor self, Tensor(a!) out) -> Tensor(a!)");
  library.def("throws_new(Tensor self) -> Tensor");
  library.def("elsewhere(Tensor self) -> Tensor");
}
TORCH_LIBRARY_IMPL(fsdp_test, CPU, library) {
  library.impl("throws", throwNumber);
  library.impl("throws_new", throwFromProbe);
  library.impl("elsewhere", elsewhere);
}

/// loss = sum(x w + b), gradients and update with ATen alone.
struct Expected {
  at::Tensor w = initialW(), b = initialB(), gw, gb;
  at::Tensor mw = at::zeros({4, 4}), vw = at::zeros({4, 4});
  at::Tensor mb = at::zeros({4}), vb = at::zeros({4});
  double loss = 0;

  void step(unsigned number, unsigned ranks, double lr) {
    gw = at::zeros({4, 4});
    gb = at::zeros({4});
    loss = 0;
    at::Tensor ones = at::ones({2, 4});
    for (unsigned r = 0; r != ranks; ++r) {
      at::Tensor x = batch(number, r);
      loss += (at::mm(x, w) + b).sum().item<double>() / ranks;
      gw += at::mm(x.t(), ones) / ranks;
      gb += ones.sum(0) / ranks;
    }
    at::Tensor count = at::scalar_tensor(number + 1.0, at::kFloat);
    at::_fused_adamw_({w, b}, {gw, gb}, {mw, mb}, {vw, vb}, {}, {count, count},
                      lr, 0.9, 0.999, 0.01, 1e-8, false, false);
  }
};

void compare(TestPlan plan, unsigned ranks) {
  Loaded loaded(std::move(plan), ranks);
  Session &session = loaded.session;
  load(session);
  session.setHyperParameters({.lr = 0.1});
  Expected expected;
  for (unsigned step = 0; step != 4; ++step) {
    feed(session, step);
    session.run();
    expected.step(step, ranks, 0.1);
    EXPECT_NEAR(session.loss(), expected.loss, 1e-4);
    EXPECT_TRUE(at::allclose(toTorch(session.read(TensorName::parameter("w"))),
                             expected.w));
    EXPECT_TRUE(at::allclose(toTorch(session.read(TensorName::parameter("b"))),
                             expected.b));
    EXPECT_TRUE(at::allclose(toTorch(session.read(TensorName::gradient("w"))),
                             expected.gw));
    EXPECT_TRUE(at::allclose(
        toTorch(session.read(TensorName::optimizerState("b", "exp_avg_sq"))),
        expected.vb));
  }
  EXPECT_EQ(session.updates(), 4u);
  EXPECT_EQ(session.statistics().hookMisses, 0u);
  EXPECT_EQ(session.statistics().allocations.heap, 0u);
}

TEST(Session, StepsAsATenDoes) {
  for (unsigned ranks : {1u, 2u, 3u, 4u}) {
    SCOPED_TRACE(ranks);
    compare(makeSmallPlan(ranks), ranks);
  }
}

// Programs have inputs and losses of their own, over the same parameters.
TEST(Session, AnEvaluationLeavesTheTrainingAlone) {
  auto train = [](bool evaluates) {
    TestPlan plan = makeSmallPlan(2);
    addEvaluation(plan);
    Loaded loaded(std::move(plan), 2);
    Session &session = loaded.session;
    load(session);
    session.setHyperParameters({.lr = 0.1});
    std::vector<std::byte> bits;
    for (unsigned step = 0; step != 4; ++step) {
      feed(session, step);
      session.run();
      HostTensor loss = toHost(at::scalar_tensor(session.loss(), at::kDouble));
      bits.insert(bits.end(), loss.bytes.begin(), loss.bytes.end());
      for (unsigned number = 0; evaluates && number != 3; ++number) {
        double expected = 0;
        at::Tensor w = toTorch(session.read(TensorName::parameter("w")));
        at::Tensor b = toTorch(session.read(TensorName::parameter("b")));
        for (unsigned rank = 0; rank != 2; ++rank) {
          at::Tensor x = batch(90 + number, rank);
          session.setInput(rank, 0, toHost(x), "eval");
          expected += (at::mm(x, w) + b).sum().item<double>() / 2;
        }
        session.run("eval", {.backward = false, .update = false});
        EXPECT_NEAR(session.loss("eval"), expected, 1e-4);
      }
    }
    EXPECT_EQ(session.updates(), 4u);
    for (const char *name : {"w", "b"})
      for (const HostTensor &value :
           {session.read(TensorName::parameter(name)),
            session.read(TensorName::optimizerState(name, "exp_avg"))})
        bits.insert(bits.end(), value.bytes.begin(), value.bytes.end());
    return bits;
  };
  EXPECT_EQ(train(true), train(false));
}

// covers: register_fsdp_forward_method
TEST(Session, ProgramsAreFoundByName) {
  TestPlan plan = makeSmallPlan(2);
  addEvaluation(plan);
  Loaded loaded(std::move(plan), 2);
  EXPECT_EQ(loaded.session.inputCount("eval"), 1u);
  EXPECT_THAT(loaded.session.inputSizes(0, "eval"), testing::ElementsAre(2, 4));
  EXPECT_THAT([&] { loaded.session.run("first"); },
              ThrowsMessage<Error>(HasSubstr("the plan has no program first")));
  EXPECT_THAT([&] { static_cast<void>(loaded.session.loss("init")); },
              ThrowsMessage<Error>(HasSubstr("program init has no loss")));
  EXPECT_THAT(
      [&] { loaded.session.setInput(0, 1, toHost(batch(0, 0)), "eval"); },
      ThrowsMessage<Error>(HasSubstr("program eval has no input 1")));
}

TEST(Session, HybridMesh) { compare(makeHybridPlan(), 4); }

TEST(Session, ForwardAndBackwardOnly) {
  Loaded loaded(makeSmallPlan(2), 2);
  Session &session = loaded.session;
  load(session);
  feed(session, 0);
  session.run("step", {.update = false});
  EXPECT_EQ(session.updates(), 0u);
  EXPECT_TRUE(
      at::equal(toTorch(session.read(TensorName::parameter("w"))), initialW()));
  Expected expected;
  expected.step(0, 2, 0.1);
  EXPECT_TRUE(at::allclose(toTorch(session.read(TensorName::gradient("b"))),
                           expected.gb));
}

TEST(Session, Names) {
  Loaded loaded(makeSmallPlan(2), 2);
  auto namesOf = [&](TensorName::Kind kind) {
    std::vector<std::string> names;
    for (const TensorName &tensor : loaded.session.tensors(kind)) {
      EXPECT_EQ(tensor.kind, kind);
      names.emplace_back(tensor.name).append(" ").append(tensor.state);
    }
    return names;
  };
  using Kind = TensorName::Kind;
  EXPECT_THAT(namesOf(Kind::Parameter), testing::ElementsAre("w ", "b "));
  EXPECT_THAT(namesOf(Kind::Gradient), testing::ElementsAre("w ", "b "));
  EXPECT_THAT(namesOf(Kind::OptimizerState),
              testing::ElementsAre("w exp_avg", "w exp_avg_sq", "b exp_avg",
                                   "b exp_avg_sq"));
  EXPECT_THAT(namesOf(Kind::Buffer), testing::IsEmpty());
  EXPECT_EQ(loaded.session.inputCount(), 1u);
  EXPECT_THAT(loaded.session.inputSizes(0), testing::ElementsAre(2, 4));
  EXPECT_THAT(
      [&] {
        loaded.session.write(TensorName::parameter("x"), toHost(initialW()));
      },
      ThrowsMessage<Error>(HasSubstr("the plan has no parameter x")));
  EXPECT_THAT(
      [&] {
        loaded.session.write(TensorName::parameter("b"), toHost(initialW()));
      },
      ThrowsMessage<Error>(HasSubstr("b: the plan has sizes 4, given 4x4")));
  EXPECT_THAT(
      [&] { loaded.session.setInput(0, 0, toHost(at::zeros({8}))); },
      ThrowsMessage<Error>(HasSubstr("the plan has sizes 2x4, given 8")));
  EXPECT_THAT(
      [&] {
        loaded.session.setInput(0, 0, toHost(at::zeros({2, 4}, at::kDouble)));
      },
      ThrowsMessage<Error>(
          HasSubstr("input 0: expected Float as in the plan, found Double")));
}

TEST(Session, ChaosAndOverlapDoNotChangeBits) {
  auto train = [](TestPlan plan, unsigned ranks, std::uint64_t seed,
                  bool overlap = false) {
    SessionOptions options;
    options.chaosSeed = seed;
    options.overlap = overlap;
    Loaded loaded(std::move(plan), ranks, std::move(options));
    load(loaded.session);
    std::vector<std::byte> bits;
    for (unsigned step = 0; step != 10; ++step) {
      feed(loaded.session, step);
      loaded.session.run();
    }
    return loaded.session.read(TensorName::parameter("w")).bytes;
  };
  auto quiet = train(makeSmallPlan(3), 3, 0);
  auto hybrid = train(makeHybridPlan(), 4, 0);
  EXPECT_EQ(quiet, train(makeOverlappingPlan(3), 3, 0, true));
  for (std::uint64_t seed = 1; seed != 6; ++seed) {
    EXPECT_EQ(quiet, train(makeSmallPlan(3), 3, seed));
    EXPECT_EQ(quiet, train(makeOverlappingPlan(3), 3, seed, true));
    EXPECT_EQ(hybrid, train(makeHybridPlan(), 4, seed));
  }
}

// A buffer may be larger than what is touched of it. What lies in the rest
// belongs to others.
TEST(Session, ChaosLeavesBytesThatNothingTouches) {
  TestPlan plan;
  plan.mesh = {{"shard", 1}};
  plan.programs = {{"step", {}, 0}};
  plan.deviceBytes = 256;
  std::uint32_t x = plan.add({.role = BufferRole::Input, .index = 0});
  std::uint32_t loss = plan.add({BufferRole::Loss, {}, 64});
  std::uint32_t large = plan.add({BufferRole::Transient, {32}, 128});
  std::uint32_t used = plan.add({.offset = 128, .root = large});
  std::uint32_t inside = plan.add({BufferRole::Transient, {}, 192});
  plan.on(Stream::Compute, Role::Forward);
  plan.copy(x, inside);
  plan.copy(x, used);
  plan.copy(inside, loss);
  SessionOptions options;
  options.chaosSeed = 1;
  Loaded loaded(std::move(plan), 1, std::move(options));
  loaded.session.setInput(0, 0, toHost(at::scalar_tensor(3, at::kFloat)));
  loaded.session.run();
  EXPECT_EQ(loaded.session.loss(), 3);
}

// A run without its update waits for nothing that the update would record, and
// one of the update alone for nothing of the backward.
// covers: _init_streams
TEST(Session, RolesOverlap) {
  SessionOptions options;
  options.overlap = true;
  Loaded loaded(makeOverlappingPlan(2), 2, std::move(options));
  Session &session = loaded.session;
  load(session);
  feed(session, 0);
  session.setHyperParameters({.lr = 0.1});
  session.run("step", {.update = false});
  session.run("step", {.forward = false, .backward = false});
  Expected expected;
  expected.step(0, 2, 0.1);
  EXPECT_TRUE(at::allclose(toTorch(session.read(TensorName::parameter("w"))),
                           expected.w));
}

/// A backend of CPU ranks that notes each call of `run`.
class CountingBackend : public Backend {
public:
  explicit CountingBackend(std::vector<std::size_t> &counts) : counts(counts) {}
  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    return local->openDevice(rank);
  }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &device) override {
    return std::make_unique<CountingComm>(
        local->openComm(rank, communicator, group, device), counts);
  }
  void abort() noexcept override { local->abort(); }

private:
  struct CountingComm : Comm {
    CountingComm(std::unique_ptr<Comm> comm, std::vector<std::size_t> &counts)
        : comm(std::move(comm)), counts(counts) {}
    void prepare(std::span<const Collective> list) override {
      comm->prepare(list);
    }
    void run(std::size_t first, std::size_t count) override {
      counts.push_back(count);
      comm->run(first, count);
    }
    void drain(std::size_t first, std::size_t count) override {
      comm->drain(first, count);
    }
    void barrier() override { comm->barrier(); }
    std::unique_ptr<Comm> comm;
    std::vector<std::size_t> &counts;
  };

  std::unique_ptr<Backend> local = makeLocalBackend(1);
  std::vector<std::size_t> &counts;
};

// A backend issues them together; what they took is told of each.
TEST(Session, CollectivesOfAGroupAreOneCall) {
  TestPlan plan = makeSmallPlan(1);
  std::vector<TestPlan::Command> &commands = plan.programs.back().commands;
  auto gather = std::ranges::find(commands, planfile::Step::AllGather,
                                  &TestPlan::Command::type);
  gather->group = 0;
  commands.insert(gather, 2, *gather);
  std::vector<std::size_t> counts;
  SessionOptions options;
  options.backend = std::make_unique<CountingBackend>(counts);
  options.timed = true;
  Loaded loaded(std::move(plan), 1, std::move(options));
  load(loaded.session);
  feed(loaded.session, 0);
  loaded.session.run();
  EXPECT_THAT(counts, testing::ElementsAre(3, 1, 1));
  std::vector<Span> spans = loaded.session.spans();
  std::erase_if(spans, [](const Span &span) {
    return span.program != 1 || span.isDrain || span.command > 2;
  });
  ASSERT_EQ(spans.size(), 3u);
  for (std::uint32_t i = 0; i != 3; ++i) {
    EXPECT_EQ(spans[i].command, i);
    EXPECT_LE(spans[i].begin, spans[i].end);
    EXPECT_TRUE(i == 0 || spans[i].begin == spans[i - 1].end);
  }
}

// Each thread has communicators of its own, and each runs in the plan's order.
TEST(Session, CollectivesOfBothThreadsOverlap) {
  SessionOptions options;
  options.overlap = true;
  options.chaosSeed = 3;
  Loaded inlined(makeSmallPlan(2), 2);
  Loaded overlapped(makeSmallPlan(2), 2, std::move(options));
  for (Loaded *loaded : {&inlined, &overlapped}) {
    load(loaded->session);
    feed(loaded->session, 0);
    loaded->session.run();
  }
  EXPECT_EQ(overlapped.session.loss(), inlined.session.loss());
}

TEST(Session, SpansTellWhatWasRun) {
  SessionOptions options;
  options.timed = options.overlap = true;
  Loaded loaded(makeOverlappingPlan(2), 2, std::move(options));
  load(loaded.session);
  feed(loaded.session, 0);
  loaded.session.run();
  const planfile::Plan &plan = *planfile::GetPlan(loaded.bytes.data());
  std::vector<std::size_t> counts(2);
  double waited = 0;
  for (const Span &span : loaded.session.spans()) {
    EXPECT_LE(span.begin, span.end);
    const planfile::Command &command =
        *plan.programs()->Get(span.program)->commands()->Get(span.command);
    if (span.rank == 0 && span.program == 1 &&
        span.stream == planfile::Stream::Compute &&
        (span.isDrain || command.step_type() == planfile::Step::Wait ||
         command.step_type() == planfile::Step::AllReduce))
      waited += span.end - span.begin;
    counts[span.rank] += span.program == 1 && !span.isDrain;
  }
  for (std::size_t count : counts)
    EXPECT_EQ(count, plan.programs()->Get(1)->commands()->size());
  EXPECT_NEAR(loaded.session.statistics().exposed.value(), waited, 1e-9);
}

// Where one thread does everything, it computes nothing while it does others.
TEST(Session, WhatIsInlineIsExposed) {
  for (bool isTimed : {false, true}) {
    SessionOptions options;
    options.timed = isTimed;
    Loaded loaded(makeOverlappingPlan(2), 2, std::move(options));
    load(loaded.session);
    feed(loaded.session, 0);
    loaded.session.run();
    const Statistics &found = loaded.session.statistics();
    EXPECT_GE(found.exposed.value(), found.collectives);
    EXPECT_LE(found.exposed.value(),
              found.forward + found.backward + found.update);
  }
}

// A reduction's source is overwritten on three streams, in no order: each of
// them waits until all ranks have read it.
TEST(Session, EachStreamWaitsBeforeItOverwritesASource) {
  TestPlan plan = makeOverlappingPlan(2);
  std::uint32_t flat = plan.units[0].gradient - 1;
  std::int64_t half = plan.buffers[flat].sizes[0] / 2;
  auto addHalf = [&](std::int64_t index) {
    TestPlan::Buffer buffer;
    buffer.sizes = {half};
    buffer.offset = plan.buffers[flat].offset +
                    static_cast<std::uint64_t>(index * half) * sizeof(float);
    buffer.root = flat;
    return plan.add(std::move(buffer));
  };
  std::uint32_t first = addHalf(0), second = addHalf(1);
  plan.on(Stream::Compute, Role::Update).zero(first);
  plan.on(Stream::Reduce, Role::Update).zero(second);
  plan.on(Stream::Gather, Role::Update).zero(second);

  SessionOptions options;
  options.timed = options.overlap = true;
  Loaded loaded(std::move(plan), 2, std::move(options));
  load(loaded.session);
  feed(loaded.session, 0);
  loaded.session.run();
  const planfile::Plan &read = *planfile::GetPlan(loaded.bytes.data());
  const auto &commands = *read.programs()->Get(1)->commands();
  std::vector<std::pair<unsigned, Stream>> drains;
  for (const Span &span : loaded.session.spans())
    if (span.program == 1 && span.isDrain &&
        commands.Get(span.command)->step_type() ==
            planfile::Step::ReduceScatter)
      drains.emplace_back(span.rank, span.stream);
  EXPECT_THAT(
      drains,
      testing::UnorderedElementsAre(
          testing::Pair(0, Stream::Compute), testing::Pair(0, Stream::Gather),
          testing::Pair(0, Stream::Reduce), testing::Pair(1, Stream::Compute),
          testing::Pair(1, Stream::Gather), testing::Pair(1, Stream::Reduce)));
}

TEST(Session, CanarySeesTheHighestByte) {
  SessionOptions options;
  options.canary = true;
  TestPlan plan = makeSmallPlan(2);
  std::uint64_t gradient = plan.buffers[plan.units[0].gradient].offset;
  plan.deviceBytes += 4096;
  Loaded loaded(std::move(plan), 2, std::move(options));
  load(loaded.session);
  feed(loaded.session, 0);
  loaded.session.run();
  EXPECT_EQ(loaded.session.highestByte(), gradient + 16 * 4);
}

TEST(Session, ARankThatFailsStopsAll) {
  // Rank 1 is given an index that is out of range, before the loss is reduced.
  Loaded loaded(makePickingPlan(3), 3);
  Session &session = loaded.session;
  load(session);
  auto feedIndex = [&](unsigned rank, std::int64_t value) {
    session.setInput(rank, 1, toHost(at::full({1}, value, at::kLong)));
  };
  for (unsigned rank = 0; rank != 3; ++rank)
    feedIndex(rank, 1);
  feed(session, 0);
  session.run();
  feedIndex(1, 99);
  auto begin = std::chrono::steady_clock::now();
  std::string first;
  try {
    session.run();
    FAIL() << "nothing was thrown";
  } catch (const Error &error) {
    first = error.what();
    EXPECT_EQ(error.kind(), Failure::RankFailed);
    EXPECT_THAT(first,
                testing::StartsWith("rank 1, step 2, program step, "
                                    "aten::index_select.out, node pick: "));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  // And it stays so.
  EXPECT_THAT([&] { session.run(); },
              ThrowsMessage<Error>(HasSubstr("node pick: index out of range")));
  EXPECT_THAT([&] { session.read(TensorName::parameter("w")); },
              ThrowsMessage<Error>(HasSubstr("node pick: index out of range")));
}

SessionOptions trusting(const char *name) {
  SessionOptions options;
  options.trustedOperators = {name};
  return options;
}

TEST(Session, ExceptionsOfAnyTypeAreFailures) {
  TestPlan plan = makeSmallPlan(2);
  plan.on(Stream::Compute, Role::Forward)
      .launch("fsdp_test::throws(Tensor self, Tensor(a!) out) -> Tensor(a!)",
              {4, 4}, "odd");
  Loaded loaded(std::move(plan), 2, trusting("fsdp_test::throws"));
  load(loaded.session);
  feed(loaded.session, 0);
  try {
    loaded.session.run();
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.kind(), Failure::RankFailed);
    EXPECT_THAT(error.what(),
                HasSubstr("node odd: an exception of an unknown type"));
  }
  EXPECT_THAT(
      [&] { loaded.session.run(); },
      ThrowsMessage<Error>(HasSubstr("an exception of an unknown type")));
}

TEST(Session, ResultsOfAnotherDeviceAreRejected) {
  TestPlan plan = makeSmallPlan(2);
  plan.on(Stream::Compute, Role::Forward)
      .launch("fsdp_test::elsewhere(Tensor self) -> Tensor", {4}, "odd", {4});
  EXPECT_THAT(
      [&] { Loaded(std::move(plan), 2, trusting("fsdp_test::elsewhere")); },
      ThrowsMessage<Error>(HasSubstr(
          "fsdp_test::elsewhere: result 0 comes back on meta, and its buffer "
          "is on cpu: each step would wait for a copy")));
}

// The draws of two ranks, after each of some runs.
class Draws : public testing::Test {
protected:
  Draws() : loaded(makePlan(), 2), session(loaded.session) { load(session); }

  static TestPlan makePlan() {
    TestPlan plan = makeSmallPlan(2);
    TestPlan::Buffer noise{BufferRole::Output, {16}};
    noise.offset = plan.deviceBytes;
    noise.index = 0;
    noise.owner = 1;
    plan.deviceBytes += 64;
    auto output = static_cast<std::int32_t>(plan.add(noise));
    plan.on(Stream::Compute, Role::Forward)
        .launch("aten::uniform_(Tensor(a!) self, float from=0., float to=1., "
                "*, Generator? generator=None) -> Tensor(a!)",
                {output, plan.number(0), plan.number(1), plan.nothing()});
    return plan;
  }
  static at::Tensor expect(std::uint64_t seed, unsigned skipped = 0) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    at::Tensor draws = at::empty({16});
    for (unsigned i = 0; i <= skipped; ++i)
      draws.uniform_(0, 1, generator);
    return draws;
  }
  at::Tensor draw(unsigned rank) { return toTorch(session.output(rank, 0)); }
  void run() {
    feed(session, 0);
    session.run();
  }

  Loaded loaded;
  Session &session;
};

TEST_F(Draws, AreThoseOfASeedForEachRank) {
  run();
  for (unsigned rank : {0, 1})
    EXPECT_TRUE(at::equal(draw(rank), expect(rank)));
  run();
  EXPECT_TRUE(at::equal(draw(1), expect(1, 1)));
  session.setSeeds(Seeds::parse("7"));
  run();
  for (unsigned rank : {0, 1})
    EXPECT_TRUE(at::equal(draw(rank), expect(7 + rank)));
  session.setSeeds(Seeds::parse("7:shared"));
  run();
  for (unsigned rank : {0, 1})
    EXPECT_TRUE(at::equal(draw(rank), expect(7)));
}

TEST_F(Draws, GoOnFromAState) {
  run();
  std::vector<std::byte> state = session.generatorState(1);
  run();
  run();
  EXPECT_TRUE(at::equal(draw(1), expect(1, 2)));
  session.setGeneratorState(1, state);
  run();
  EXPECT_TRUE(at::equal(draw(0), expect(0, 3)));
  EXPECT_TRUE(at::equal(draw(1), expect(1, 1)));
  // A state that is none changes nothing.
  state = session.generatorState(1);
  std::vector<std::byte> zeros(state.size());
  EXPECT_THROW(session.setGeneratorState(1, zeros), Error);
  EXPECT_THROW(session.setGeneratorState(1, std::span(state).first(5)), Error);
  EXPECT_THROW(session.setGeneratorState(1, {}), Error);
  EXPECT_THROW(session.setGeneratorState(2, state), Error);
  EXPECT_THROW(session.generatorState(2), Error);
  EXPECT_EQ(session.generatorState(1), state);
  run();
  EXPECT_TRUE(at::equal(draw(1), expect(1, 2)));
}

// What the thread has entered for a load is left, whatever is thrown: under
// AddressSanitizer the allocations below would see a device that is no more.
TEST(Session, ALoadThatIsRejectedLeavesTheThreadAlone) {
  for (bool throws : {false, true}) {
    TestPlan plan = makeSmallPlan(2);
    plan.on(Stream::Compute, Role::Forward);
    if (throws)
      plan.launch("fsdp_test::throws_new(Tensor self) -> Tensor", {4}, "odd",
                  {4});
    else
      plan.launch("fsdp_test::none(Tensor self, Tensor(a!) out) -> Tensor(a!)",
                  {4, 4}, "odd");
    try {
      Loaded loaded(std::move(plan), 2, trusting("fsdp_test::throws_new"));
      FAIL();
    } catch (const Error &error) {
      EXPECT_EQ(error.kind(), Failure::Rejected) << error.what();
    }
    EXPECT_EQ(at::ones({64}).sum().item<float>(), 64);
  }
  compare(makeSmallPlan(2), 2);
}

TEST(Session, HyperParametersMustBeSensible) {
  Loaded loaded(makeSmallPlan(1), 1);
  auto rejection = [&](HyperParameters values) -> std::string {
    try {
      loaded.session.setHyperParameters(values);
    } catch (const Error &error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(rejection({.lr = NAN}),
            "expected a learning rate of at least 0, found nan");
  EXPECT_EQ(rejection({.lr = INFINITY}),
            "expected a learning rate of at least 0, found inf");
  EXPECT_EQ(rejection({.lr = -1}),
            "expected a learning rate of at least 0, found -1.000000");
  EXPECT_EQ(rejection({.beta1 = 1}),
            "expected a beta1 of at least 0 and below 1, found 1.000000");
  EXPECT_EQ(rejection({.lr = 0, .beta2 = 0, .weightDecay = 0}), "accepted");
}

} // namespace
