//===- CUDASessionTest.cpp - Whole steps on a GPU of ordinary memory ------===//
//
// The session with the device and the communicator of the GPU. Kernels are the
// CPU's, so work is done when it is queued; what must agree is everything
// between the session and the table of calls.
//
//===----------------------------------------------------------------------===//
#include "FakeCuda.h"
#include "Runtime/Comm/CUDA/Local.h"
#include "Support/TestPlan.h"
#include "Tensors.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <optional>

using namespace fsdp;
using namespace fsdp::test;

namespace {

class FakeDevice : public CUDADevice {
public:
  using CUDADevice::CUDADevice;
  c10::Device torchDevice() const override { return c10::kCPU; }
};

class FakeBackend : public LocalCUDABackend {
public:
  FakeBackend(FakeCuda &fake, unsigned ranks, bool ahead = false)
      : LocalCUDABackend(ranks), fake(fake), ahead(ahead) {}

  std::unique_ptr<Device> openDevice(const RankContext &rank) override {
    fake.enter(static_cast<char>('a' + rank.rank));
    return std::make_unique<FakeDevice>(fake.api, rank.rank, 0, ahead);
  }

private:
  FakeCuda &fake;
  bool ahead;
};

/// The small plan on one rank whose host runs ahead.
struct RunAhead {
  RunAhead() {
    SessionOptions options;
    options.backend = std::make_unique<FakeBackend>(fake, 1, /*ahead=*/true);
    session.emplace(*planfile::GetPlan(bytes.data()), 1, std::move(options));
  }

  FakeCuda fake{1, /*isEager=*/true};
  std::vector<std::uint8_t> bytes = makeSmallPlan(1).flatbuffer();
  std::optional<Session> session;
};

/// The small plan with SGD, whose buffer is that of exp_avg.
TestPlan makeMomentumPlan(std::uint32_t ranks) {
  constexpr std::uint32_t expAvg = 1, hyper = 15;
  TestPlan plan = makeSmallPlan(ranks);
  plan.programs.back().commands.pop_back();
  plan.on(planfile::Stream::Compute, planfile::Role::Update)
      .update(planfile::UpdateRule::SGD, 0, {expAvg}, {{0, 20}}, {hyper});
  return plan;
}

/// Losses, parameters and gradients of a few steps with different data on
/// every rank.
std::vector<HostTensor> train(unsigned ranks, std::unique_ptr<Backend> backend,
                              bool overlap = false,
                              TestPlan (*make)(std::uint32_t) = makeSmallPlan) {
  std::vector<std::uint8_t> bytes = make(ranks).flatbuffer();
  SessionOptions options;
  options.overlap = overlap;
  options.backend = std::move(backend);
  Session session(*planfile::GetPlan(bytes.data()), ranks, std::move(options));
  // A number of f32, too: that is what kernels of a GPU read.
  session.setHyperParameters({.lr = 0x1p-9, .momentum = 0.5});
  session.write(TensorName::parameter("w"),
                toHost(at::arange(16, at::kFloat).view({4, 4}) / 7));
  session.write(TensorName::parameter("b"),
                toHost(at::arange(4, at::kFloat) / 3));
  std::vector<HostTensor> seen;
  for (unsigned step = 0; step != 4; ++step) {
    for (unsigned r = 0; r != ranks; ++r)
      session.setInput(
          r, 0,
          toHost(at::sin(at::arange(8, at::kFloat).view({2, 4}) + step + r)));
    session.run();
    seen.push_back(toHost(at::scalar_tensor(session.loss(), at::kDouble)));
    for (const char *name : {"w", "b"}) {
      seen.push_back(session.read(TensorName::parameter(name)));
      seen.push_back(session.read(TensorName::gradient(name)));
    }
  }
  return seen;
}

// covers: GPU
TEST(CUDASession, TrainsAsTheCPUDoes) {
  for (unsigned ranks : {1u, 2u, 3u, 4u}) {
    FakeCuda fake(ranks, /*isEager=*/true);
    std::vector<HostTensor> expected = train(ranks, makeLocalBackend(ranks));
    std::vector<HostTensor> actual =
        train(ranks, std::make_unique<FakeBackend>(fake, ranks));
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i != actual.size(); ++i)
      EXPECT_EQ(actual[i].bytes, expected[i].bytes) << ranks << " " << i;
    EXPECT_TRUE(fake.isEmpty());
  }
}

// What the host computes, it computes when all that was queued is done: the
// calls of its kernels are in no stream.
// covers: CPUOffload, H2D
TEST(CUDASession, UpdatesOnTheHost) {
  for (unsigned ranks : {1u, 2u, 3u}) {
    std::vector<HostTensor> expected = train(ranks, makeLocalBackend(ranks));
    for (bool isFake : {false, true}) {
      FakeCuda fake(ranks, /*isEager=*/true);
      std::unique_ptr<Backend> backend = makeLocalBackend(ranks);
      if (isFake)
        backend = std::make_unique<FakeBackend>(fake, ranks);
      std::vector<HostTensor> actual =
          train(ranks, std::move(backend), false, makeOffloadedPlan);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i != actual.size(); ++i)
        EXPECT_EQ(actual[i].bytes, expected[i].bytes) << ranks << " " << i;
    }
  }
  auto countWaits = [](TestPlan (*make)(std::uint32_t)) {
    FakeCuda fake(1, /*isEager=*/true);
    train(1, std::make_unique<FakeBackend>(fake, 1), false, make);
    return std::ranges::count(fake.takeLog('a'), "streamSynchronize a.copy");
  };
  // Once more in each of four steps.
  EXPECT_EQ(countWaits(makeOffloadedPlan), countWaits(makeSmallPlan) + 4);
}

// A rank whose memory no other one reads is given its next step while it still
// runs the last: what changes from step to step comes to it through memory.
TEST(CUDASession, AHostThatRunsAheadTrainsAsTheCPUDoes) {
  for (auto make : {makeSmallPlan, makeMomentumPlan}) {
    FakeCuda fake(1, /*isEager=*/true);
    std::vector<HostTensor> expected =
        train(1, makeLocalBackend(1), false, make);
    std::vector<HostTensor> actual = train(
        1, std::make_unique<FakeBackend>(fake, 1, /*ahead=*/true), false, make);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i != actual.size(); ++i)
      EXPECT_EQ(actual[i].bytes, expected[i].bytes) << i;
    EXPECT_TRUE(fake.isEmpty());
  }
}

// From the input to the end of a step, with another learning rate each time,
// no call waits, allocates, frees or copies unpinned memory. Reading waits.
TEST(CUDASession, NothingInAStepHoldsUpTheHost) {
  RunAhead ahead;
  FakeCuda &fake = ahead.fake;
  Session &session = *ahead.session;
  auto step = [&](int number) {
    session.setInput(
        0, 0, toHost(at::sin(at::arange(8, at::kFloat).view({2, 4}) + number)));
    session.setHyperParameters({.lr = 0.1 / number});
    session.run();
  };
  step(1); // Its uploads make room.
  session.loss();
  EXPECT_THAT(fake.takeLog('a'),
              testing::Not(testing::Contains(
                  testing::MatchesRegex("eventCreate .* flags 0"))));
  fake.takeBlocking('a');
  for (int number : {2, 3, 4})
    step(number);
  EXPECT_THAT(fake.takeBlocking('a'), testing::IsEmpty());
  // Of each step: the input, and the numbers of its one decay group.
  FakeCuda::Log log = fake.takeLog('a');
  auto count = [&](const char *end) {
    return std::ranges::count_if(
        log, [&](const std::string &call) { return call.ends_with(end); });
  };
  EXPECT_EQ(count(" x 32 on a.compute"), 3);
  EXPECT_EQ(count(" x 8 on a.compute"), 3);
  session.loss();
  EXPECT_THAT(fake.takeBlocking('a'),
              testing::Contains("streamSynchronize a.compute"));
}

/// Of each rank and run: commands of a stream follow one another, and a wait
/// ends when its event has come.
void checkOrder(const planfile::Plan &plan, const std::vector<Span> &spans) {
  using Run = std::tuple<unsigned, unsigned, std::uint64_t>;
  std::map<std::pair<Run, planfile::Stream>, double> ends;
  std::map<std::pair<Run, std::uint32_t>, double> recorded;
  for (const Span &span : spans) {
    const planfile::Command &command =
        *plan.programs()->Get(span.program)->commands()->Get(span.command);
    Run run(span.rank, span.program, span.run);
    double &end = ends[{run, span.stream}];
    EXPECT_GE(span.begin, end) << span.command;
    EXPECT_LT(span.begin, span.end) << span.command;
    // The fake's clock counts microseconds.
    double duration = 1e6 * (span.end - span.begin);
    EXPECT_NEAR(duration, std::round(duration), 1e-2) << span.command;
    end = span.end;
    if (const planfile::Record *record = command.step_as_Record())
      recorded[{run, record->event()}] = span.begin;
    else if (const planfile::Wait *wait = command.step_as_Wait()) {
      double &event = recorded[{run, wait->event()}];
      EXPECT_GT(span.end, event) << span.command;
    }
  }
}

/// True of collectives, and of what waits for their end.
static bool isSent(const Span &span, planfile::Step step) {
  return span.isDrain || step == planfile::Step::AllGather ||
         step == planfile::Step::ReduceScatter ||
         step == planfile::Step::AllReduce;
}

// Also the statistics, though the host has long been done.
TEST(CUDASession, SpansAreTimesOfTheGPU) {
  for (bool isAhead : {false, true})
    for (auto make : {makeOverlappingPlan, makeOffloadedPlan}) {
      unsigned ranks = isAhead ? 1 : 2;
      FakeCuda fake(ranks, /*isEager=*/true);
      std::vector<std::uint8_t> bytes = make(ranks).flatbuffer();
      const planfile::Plan &plan = *planfile::GetPlan(bytes.data());
      SessionOptions options;
      options.backend = std::make_unique<FakeBackend>(fake, ranks, isAhead);
      options.timed = true;
      Session session(plan, ranks, std::move(options));
      for (int run = 0; run != 3; ++run)
        session.run();
      std::vector<Span> spans = session.spans();
      checkOrder(plan, spans);
      double begin = INFINITY, end = 0, collectives = 0, waited = 0;
      for (const Span &span : spans) {
        const planfile::Program &program = *plan.programs()->Get(span.program);
        if (span.rank != 0 || program.is_init() || span.run != 3)
          continue;
        if (span.stream == planfile::Stream::Compute) {
          begin = std::min(begin, span.begin);
          end = std::max(end, span.end);
        }
        planfile::Step step =
            program.commands()->Get(span.command)->step_type();
        if (isSent(span, step))
          collectives += span.end - span.begin;
        if (span.stream == planfile::Stream::Compute &&
            (isSent(span, step) || step == planfile::Step::Wait))
          waited += span.end - span.begin;
      }
      const Statistics &found = session.statistics();
      // A mark takes a microsecond of the fake.
      EXPECT_NEAR(found.forward + found.backward + found.update, end - begin,
                  3e-6);
      EXPECT_NEAR(found.collectives, collectives, 1e-9);
      EXPECT_NEAR(found.exposed.value(), waited, 1e-9);
    }
}

// Half of a step does not wait for the other half.
TEST(CUDASession, EachHalfOfAStepRunsAlone) {
  for (bool isAhead : {false, true})
    for (bool computes : {false, true}) {
      unsigned ranks = isAhead ? 1 : 2;
      FakeCuda fake(ranks, /*isEager=*/true);
      std::vector<std::uint8_t> bytes = makeOverlappingPlan(ranks).flatbuffer();
      const planfile::Plan &plan = *planfile::GetPlan(bytes.data());
      SessionOptions options;
      options.backend = std::make_unique<FakeBackend>(fake, ranks, isAhead);
      options.computes = computes;
      options.communicates = !computes;
      Session session(plan, ranks, std::move(options));
      session.run();
      EXPECT_FALSE(session.statistics().exposed); // by the host's clock
      session.setTimed(true);
      session.run();
      EXPECT_TRUE(session.statistics().exposed);
      unsigned found = 0;
      for (const Span &span : session.spans()) {
        const planfile::Program &program = *plan.programs()->Get(span.program);
        planfile::Step step =
            program.commands()->Get(span.command)->step_type();
        if (program.is_init() || step == planfile::Step::Record ||
            step == planfile::Step::Wait)
          continue;
        bool isComputed =
            span.stream == planfile::Stream::Compute && !isSent(span, step);
        EXPECT_EQ(isComputed, computes);
        EXPECT_EQ(span.run, 2u);
        ++found;
      }
      EXPECT_GT(found, 0u);
    }
}

// A caller with tensors of the GPU: a batch is read after what has made it, and
// whoever reads the loss on its stream reads that of the step.
TEST(CUDASession, AStepHasItsPlaceInTheCallersStream) {
  RunAhead ahead;
  FakeCuda &fake = ahead.fake;
  Session &session = *ahead.session;
  at::Tensor batch = at::sin(at::arange(8, at::kFloat).view({4, 2})).t();
  at::Tensor loss = at::empty({}, at::kFloat);
  auto step = [&] {
    session.awaitCaller();
    session.setInput(0, 0, batch);
    session.run();
    session.copyLoss(loss);
    session.letCallerAwait();
  };
  step(); // Its uploads make room.
  fake.takeLog('a');
  fake.takeBlocking('a');
  step();
  EXPECT_THAT(fake.takeBlocking('a'), testing::IsEmpty());
  FakeCuda::Log log = fake.takeLog('a');
  auto find = [&](const char *begin, const char *end) {
    return std::ranges::find_if(log,
                                [&](const std::string &call) {
                                  return call.starts_with(begin) &&
                                         call.ends_with(end);
                                }) -
           log.begin();
  };
  auto before = find("eventRecord", "on default"),
       input = find("memcpyAsync", " x 32 on a.compute"),
       after = find("streamWaitEvent", "by default");
  EXPECT_LT(before, find("streamWaitEvent", "by a.compute"));
  EXPECT_LT(find("streamWaitEvent", "by a.compute"), input);
  EXPECT_LT(input, after);
  EXPECT_EQ(after, std::ssize(log) - 2); // and the way back
  EXPECT_EQ(loss.item().toDouble(), session.loss());
  EXPECT_EQ(session.device(), c10::Device(c10::kCPU));
}

TEST(CUDASession, TakesNoTensorOfAnotherTypeOrDevice) {
  RunAhead ahead;
  Session &session = *ahead.session;
  EXPECT_THAT([&] { session.setInput(0, 0, at::zeros({2, 4}, at::kDouble)); },
              testing::ThrowsMessage<Error>(
                  "input 0: expected Float as in the plan, found Double"));
  EXPECT_THAT(
      [&] { session.setInput(0, 0, at::empty({2, 4}, at::device(at::kMeta))); },
      testing::ThrowsMessage<Error>(
          "input 0: expected a tensor in host memory or on cpu, where "
          "the plan is, found one on meta; move it"));
}

// What a library of communicators will allocate in the first step counts, too.
TEST(CUDASession, APlanMustFitIntoItsGPU) {
  struct Hungry : FakeBackend {
    using FakeBackend::FakeBackend;
    std::uint64_t libraryBytes(std::size_t) const override { return 1 << 30; }
  };
  for (bool isEnough : {false, true}) {
    FakeCuda fake(0, /*isEager=*/true);
    std::vector<std::uint8_t> bytes = makeSmallPlan(1).flatbuffer();
    std::size_t communicators =
        planfile::GetPlan(bytes.data())->communicators()->size();
    fake.freeBytes = (communicators << 30) + (isEnough ? 1 << 20 : 0);
    SessionOptions options;
    options.backend = std::make_unique<Hungry>(fake, 1);
    std::string said;
    try {
      Session session(*planfile::GetPlan(bytes.data()), 1, std::move(options));
      EXPECT_EQ(session.report().libraryBytes, communicators << 30);
      EXPECT_EQ(session.report().takenBytes,
                (std::size_t{80} << 30) - fake.freeBytes);
    } catch (const Error &error) {
      said = error.what();
    }
    EXPECT_THAT(said,
                testing::MatchesRegex(
                    isEnough ? ""
                             : "rank 0: expected a plan that fits into the .* "
                               "that are free of the 80.* of its GPU, found "
                               "one that needs .*, and .* for buffers of its "
                               "communicators .an estimate.; .* are taken by "
                               "CUDA's context, cuBLAS and other processes"));
  }
}

// The step that has failed is named by who reads its loss, and every later
// call.
TEST(CUDASession, AFailureOfAnEarlierStepIsReportedWhenItIsRead) {
  RunAhead ahead;
  FakeCuda &fake = ahead.fake;
  Session &session = *ahead.session;
  session.run(); // Its uploads make room.
  fake.failures["streamSynchronize"] = cudaErrorUnknown;
  session.run();
  session.run();
  for (int time = 0; time != 2; ++time)
    EXPECT_THAT([&] { session.loss(); },
                testing::ThrowsMessage<Error>(
                    "rank 0, step 3: rank 0: cudaStreamSynchronize: it is "
                    "broken"));
  EXPECT_THROW(session.run(), Error);
}

TEST(CUDASession, ReportsACallThatFails) {
  FakeCuda fake(0, /*isEager=*/true);
  fake.failures["malloc"] = cudaErrorMemoryAllocation;
  try {
    train(2, std::make_unique<FakeBackend>(fake, 2));
    FAIL();
  } catch (const Error &error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("cudaMalloc: out of memory"));
  }
  EXPECT_TRUE(fake.isEmpty());
}

// Streams of a GPU overlap without a thread for each: the host queues them all.
TEST(CUDASession, NeedsNoSecondThread) {
  FakeCuda::Log calls[2];
  for (bool overlap : {false, true}) {
    FakeCuda fake(2, /*isEager=*/true);
    train(2, std::make_unique<FakeBackend>(fake, 2), overlap);
    calls[overlap] = fake.takeLog('a');
  }
  EXPECT_EQ(calls[true], calls[false]);
}

} // namespace
