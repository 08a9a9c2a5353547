//===- CalibrationTest.cpp - Links from measured collectives --------------===//

#include "fsdp/Planner/Calibration.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <initializer_list>

using namespace fsdp::planner;
using fsdp::archive::Profile;

namespace {

const std::string ranks = R"(# nThread 1 nGpus 1 minBytes 1024 maxBytes 8388608
# Using devices
#  Rank  0 Group  0 Pid  12 on   one device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid  13 on   two device  0 [0x07] NVIDIA A100
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
)";
const std::string rows =
    R"(        1024           128     float    none      -1    11.00   0.09    0.05      0    10.00   0.10    0.05      0
     4194304        524288     float    none      -1    97.40  43.06   21.53      0    90.00  46.60   23.30    N/A
[1,0]<stdout>:     8388608       1048576     float    none      -1    184.8  45.39   22.70      0    180.0  46.60   23.30      0
)";

Hardware makeMachine() {
  Hardware machine = *loadHardware("h100");
  machine.node.fill({10000, 2000, 300});
  machine.network.fill({20000, 5000, 40});
  return machine;
}

/// What `machine` takes for calls of 1 to 64 MiB.
std::vector<MeasuredCall>
measure(const Hardware &machine, CollectiveKind kind,
        std::initializer_list<std::pair<int64_t, int64_t>> shapes) {
  std::vector<MeasuredCall> calls;
  for (auto [ranks, nodes] : shapes)
    for (double bytes = 1 << 20; bytes <= 1 << 26; bytes *= 4) {
      CollectiveCost cost =
          machine.getCost(Communication{kind, bytes, ranks, 0, 8 * nodes});
      calls.push_back({kind, bytes, ranks, nodes,
                       double(cost.latency + cost.transfer) / 1e3});
    }
  return calls;
}

void expectLine(const Hardware::Line &line, double latency, double step,
                double bandwidth) {
  EXPECT_NEAR(line.latency, latency, 1e-3 * latency + 1e-3);
  EXPECT_NEAR(line.perStep, step, 1e-3 * step + 1e-3);
  EXPECT_NEAR(line.bandwidth, bandwidth, 1e-3 * bandwidth);
}

// Groups of several sizes say everything, in the node and between nodes.
TEST(Calibration, FindsTheLinesOfTheCalls) {
  for (CollectiveKind kind :
       {CollectiveKind::AllGather, CollectiveKind::AllReduce}) {
    Hardware machine = makeMachine(), fitted = *loadHardware("h100");
    std::vector<MeasuredCall> calls =
        measure(machine, kind, {{2, 1}, {8, 1}, {4, 2}, {8, 4}});
    auto fits = calibrate(fitted, calls);
    ASSERT_TRUE(fits) << fits.error().message;
    ASSERT_EQ(fits->size(), 2u);
    expectLine(fitted.node[size_t(kind)], 10000, 2000, 300);
    expectLine(fitted.network[size_t(kind)], 20000, 5000, 40);
    for (const LineFit &fit : *fits) {
      EXPECT_EQ(fit.calls, 8u);
      EXPECT_GT(fit.errorBefore, 0.01);
      EXPECT_LT(fit.errorAfter, 1e-3);
    }
    // What was not measured stays.
    auto scatter = size_t(CollectiveKind::ReduceScatter);
    EXPECT_EQ(fitted.node[scatter].bandwidth, 360);
  }
}

// One group size cannot tell a start from its steps: both are scaled.
TEST(Calibration, KeepsProportionsThatWereNotMeasured) {
  Hardware machine = makeMachine(), fitted = makeMachine();
  fitted.node[0] = {5000, 1000, 100};
  ASSERT_TRUE(
      calibrate(fitted, measure(machine, CollectiveKind::AllGather, {{8, 1}})));
  expectLine(fitted.node[0], 10000, 2000, 300);
}

// Noise can ask for less than nothing; nothing is what it gets.
TEST(Calibration, FitsNothingBelowZero) {
  EXPECT_TRUE(rc::check([] {
    Hardware fitted = makeMachine();
    std::vector<MeasuredCall> calls;
    for (int i = *rc::gen::inRange(2, 6); i; --i) {
      int64_t nodes = *rc::gen::inRange(1, 5);
      calls.push_back({CollectiveKind(*rc::gen::inRange(0, 3)),
                       1e6 * *rc::gen::inRange(1, 1000), 2 * nodes, nodes,
                       1e3 * *rc::gen::inRange(1, 1000)});
    }
    auto fits = calibrate(fitted, calls);
    RC_ASSERT(bool(fits));
    auto again = parseHardware(write(fitted), "t.toml");
    RC_ASSERT(bool(again));
  }));
}

// What the machine cannot be is said before anything is fitted.
TEST(Calibration, RejectsContradictions) {
  Hardware cpu = *loadHardware("cpu"), h100 = *loadHardware("h100");
  std::vector<MeasuredCall> far = {{CollectiveKind::AllGather, 1e6, 4, 2, 1e6}};
  std::vector<MeasuredCall> wide = {
      {CollectiveKind::AllGather, 1e6, 16, 1, 1e6}};
  EXPECT_EQ(calibrate(cpu, far).error().message,
            "expected a hardware file with [link.network], since there are "
            "collectives over 2 nodes");
  EXPECT_EQ(calibrate(h100, wide).error().message,
            "expected at most 8 ranks on a host (link.node.ranks), found 16");
}

// The times are those out of place; what is small is left out.
TEST(Calibration, ReadsLogsOfNcclTests) {
  auto calls = readNcclTests(ranks + rows, "a.log", CollectiveKind::AllGather);
  ASSERT_TRUE(calls) << calls.error().message;
  ASSERT_EQ(calls->size(), 2u);
  EXPECT_EQ((*calls)[0].bytes, 4194304);
  EXPECT_EQ((*calls)[0].ranks, 2);
  EXPECT_EQ((*calls)[0].nodes, 2);
  EXPECT_EQ((*calls)[0].nanoseconds, 97400);
  EXPECT_EQ((*calls)[1].nanoseconds, 184800);
}

// Each thing that a log may lack has one sentence.
TEST(Calibration, RejectsOtherTexts) {
  auto expect = [](const std::string &text, const std::string &sentence) {
    auto calls = readNcclTests(text, "a.log", CollectiveKind::AllGather);
    ASSERT_FALSE(calls);
    EXPECT_EQ(calls.error().message, sentence);
  };
  std::string expected =
      "a.log: expected a log of all_gather_perf of nccl-tests, with lines such "
      "as '# Rank 0 ... on host' and '1048576 262144 float ...', found ";
  expect("", expected + "0 ranks and 0 sizes");
  expect("size,time\n1,2\n", expected + "0 ranks and 0 sizes");
  expect(rows, expected + "0 ranks and 3 sizes");
  expect(ranks, expected + "2 ranks and 0 sizes");
  expect(ranks + rows.substr(0, rows.find('\n')),
         "a.log: expected sizes of 1 MiB and more (-b 1M -e 8G -f 2)");
  expect(ranks + "# Rank 2 Pid 1 on two\n" + rows,
         "a.log: expected as many ranks on each host, found 3 on 2");
  expect("# Collective test starting: all_reduce_perf\n" + ranks + rows,
         "a.log: expected a log of all_gather_perf, found one of "
         "all_reduce_perf");
}

// Whatever the bytes are, there is an answer.
TEST(Calibration, AnyLogHasAnAnswer) {
  EXPECT_TRUE(rc::check([] {
    std::string text = ranks + rows;
    for (int damage = *rc::gen::inRange(1, 20); damage; --damage)
      text[*rc::gen::inRange<size_t>(0, text.size())] =
          char(*rc::gen::inRange(0, 256));
    auto calls = readNcclTests(text, "a.log", CollectiveKind::AllGather);
    Hardware machine = *loadHardware("h100");
    if (calls)
      (void)calibrate(machine, *calls);
    else
      RC_ASSERT(calls.error().message.find("a.log: ") == 0u);
  }));
}

// A profile has one rank's piece of what is gathered.
TEST(Calibration, TakesTheCollectivesOfAProfile) {
  Profile profile;
  profile.collectives = {
      {Profile::Collective::Kind::AllGather, 1000, 4, 500},
      {Profile::Collective::Kind::ReduceScatter, 4000, 4, 600},
      {Profile::Collective::Kind::AllReduce, 8, 16, 700},
      {Profile::Collective::Kind::AllReduce, 8, 1, 700}};
  std::vector<MeasuredCall> calls = getCalls(profile, 8);
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].bytes, 4000);
  EXPECT_EQ(calls[1].bytes, 4000);
  EXPECT_EQ(calls[2].nodes, 2);
  EXPECT_EQ(calls[2].nanoseconds, 700);
}

// A file that is written is the one that was read.
TEST(Calibration, WrittenFilesReadTheSame) {
  for (std::string_view name : getBuiltinHardware()) {
    std::string text = write(*loadHardware(std::string(name)));
    auto again = parseHardware(text, "t.toml");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(write(*again), text);
    EXPECT_EQ(again->capacity, loadHardware(std::string(name))->capacity);
  }
}

} // namespace
