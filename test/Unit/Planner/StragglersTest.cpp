//===- StragglersTest.cpp - Steps on ranks that are not alike -------------===//

#include "fsdp/Planner/Stragglers.h"

#include "RandomProblem.h"
#include "ReferenceStep.h"
#include "Transformers.h"

#include <gtest/gtest.h>

#include <ctime>
#include <iostream>

using namespace fsdp::planner::scheduling;
using fsdp::planner::test::getDurations;
using fsdp::planner::test::programOrder;
using fsdp::planner::test::randomProblem;

namespace {

Problem withDurations(Problem problem, const Durations &durations) {
  for (size_t i = 0; i != durations.size(); ++i)
    if (uint32_t stream = problem.operations[i].stream;
        stream == computeStream || stream == copyStream)
      problem.operations[i].duration = durations[i];
  return problem;
}

std::vector<Durations> randomDurations(const Problem &problem) {
  auto count = problem.operations.size();
  auto ranks = *rc::gen::inRange<size_t>(1, 5);
  return *rc::gen::container<std::vector<Durations>>(
      ranks,
      rc::gen::container<Durations>(count, rc::gen::inRange<int64_t>(0, 20)));
}

int64_t getEnd(const std::vector<Schedule> &schedules) {
  int64_t end = 0;
  for (const Schedule &schedule : schedules)
    for (int64_t own : schedule.end)
      end = std::max(end, own);
  return end;
}

void assertSame(const Schedule &schedule, const Schedule &expected) {
  RC_ASSERT(schedule.order == expected.order);
  RC_ASSERT(schedule.start == expected.start);
  RC_ASSERT(schedule.end == expected.end);
}

// Where all are alike, nobody waits for others.
TEST(Stragglers, RanksThatAreAlikeAreOneRank) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    std::vector<uint32_t> order = programOrder(problem);
    auto count = *rc::gen::inRange<size_t>(0, 5);
    std::vector<Durations> ranks(count, getDurations(problem));
    std::vector<Schedule> schedules = simulate(problem, order, ranks);
    RC_ASSERT(schedules.size() == count);
    for (const Schedule &schedule : schedules)
      assertSame(schedule, simulate(problem, order));
  }));
}

TEST(Stragglers, OneRankIsTheProblemWithItsDurations) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    std::vector<uint32_t> order = programOrder(problem);
    Durations own = randomDurations(problem).front();
    assertSame(simulate(problem, order, {own}).front(),
               simulate(withDurations(problem, own), order));
  }));
}

TEST(Stragglers, SimulatesTheMachineAsItIsDefined) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    problem.sharesCore = false;
    std::vector<Durations> ranks = randomDurations(problem);
    std::vector<Schedule> schedules =
        simulate(problem, programOrder(problem), ranks);
    std::vector<Schedule> expected =
        fsdp::planner::test::Stepper(problem, ranks).run();
    for (size_t i = 0; i != ranks.size(); ++i) {
      assertSame(schedules[i], expected[i]);
      RC_ASSERT(verify(withDurations(problem, ranks[i]), schedules[i]) == "");
    }
  }));
}

// A gather waits for the slower of two, and both wait for the gather, also if
// each has one core for all it does.
TEST(Stragglers, WaitForTheLast) {
  Problem problem;
  problem.numStreams = 2;
  problem.operations = {{5, 0, 0, {}}, {3, 1, 1, {}}, {7, 0, 0, {1}}};
  for (bool sharesCore : {false, true}) {
    problem.sharesCore = sharesCore;
    std::vector<Schedule> schedules =
        simulate(problem, {0, 1, 2}, {{5, 0, 7}, {6, 0, 4}});
    EXPECT_EQ(schedules[0].start, (std::vector<int64_t>{0, 6, 9}));
    EXPECT_EQ(schedules[0].end, (std::vector<int64_t>{5, 9, 16}));
    EXPECT_EQ(schedules[1].start, (std::vector<int64_t>{0, 6, 9}));
    EXPECT_EQ(schedules[1].end, (std::vector<int64_t>{6, 9, 13}));
  }
}

// Where nothing slows anything, all times are sums and maxima of durations: a
// rank more makes none of them less, and all together are no slower than one
// rank that takes what the slowest takes of each operation.
TEST(Stragglers, LieBetweenOneRankAndTheSlowestOfEachOperation) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    problem.contention = 0;
    for (Operation &op : problem.operations)
      op.links = {};
    std::vector<uint32_t> order = programOrder(problem);
    std::vector<Durations> ranks = randomDurations(problem), some;
    Durations slowest(order.size(), 0);
    int64_t least = 0;
    for (const Durations &rank : ranks) {
      some.push_back(rank);
      int64_t time = getEnd(simulate(problem, order, some));
      RC_ASSERT(time >= least);
      RC_ASSERT(time >=
                getEnd({simulate(withDurations(problem, rank), order)}));
      least = time;
      for (size_t i = 0; i != order.size(); ++i)
        slowest[i] = std::max(slowest[i], rank[i]);
    }
    RC_ASSERT(least <=
              getEnd({simulate(withDurations(problem, slowest), order)}));
  }));
}

// A rank all of whose computations take longer than those of the others never
// waits for anybody: the step takes what it would if all were as slow. With
// contention, differences of less than a nanosecond may be lost in the rounding
// of ends to nanoseconds; these are of one at least.
TEST(Stragglers, OneSlowRankIsAStepOfSlowRanks) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    std::vector<uint32_t> order = programOrder(problem);
    auto count = *rc::gen::inRange<size_t>(1, 5);
    std::vector<Durations> ranks(count, getDurations(problem));
    Durations &slow = ranks[*rc::gen::inRange<size_t>(0, count)];
    auto percent = *rc::gen::inRange<int64_t>(0, 100);
    for (size_t i = 0; i != order.size(); ++i)
      if (problem.operations[i].stream == computeStream)
        slow[i] += (slow[i] * percent + 99) / 100;
    std::vector<Schedule> schedules = simulate(problem, order, ranks);
    Schedule expected = simulate(withDurations(problem, slow), order);
    assertSame(schedules[size_t(&slow - ranks.data())], expected);
    for (const Schedule &schedule : schedules)
      for (size_t i = 0; i != order.size(); ++i)
        RC_ASSERT(schedule.end[i] <= expected.end[i]);
  }));
}

// The same numbers on every machine, whatever other ranks there are; only
// computations vary, and as much as is said.
TEST(Stragglers, VariesComputationsAlone) {
  Problem problem;
  problem.numStreams = 5;
  for (uint32_t stream = 0; stream != 5; ++stream)
    problem.operations.push_back({1'000'000, stream, none, {}});
  EXPECT_EQ(vary(problem, 0, 0), getDurations(problem));
  // The first number of SplitMix64 with seed 0 is 0xe220a8397b1dcdaf.
  EXPECT_EQ(vary(problem, 0, 0.05),
            (Durations{1'038'331, 1'000'000, 1'000'000, 1'000'000, 1'000'000}));
  EXPECT_EQ(vary(problem, 1, 0.05).front(), 1'026'629);
  problem.operations.assign(10'000, {1'000'000, 0, none, {}});
  int64_t sum = 0, least = unlimited, most = 0;
  for (int64_t duration : vary(problem, 7, 0.1)) {
    sum += duration;
    least = std::min(least, duration);
    most = std::max(most, duration);
  }
  EXPECT_NEAR(double(sum) / 1e10, 1, 0.001);
  EXPECT_GE(least, 900'000);
  EXPECT_LE(least, 901'000);
  EXPECT_LE(most, 1'100'000);
  EXPECT_GE(most, 1'099'000);
}

TEST(Stragglers, AreFastEnoughForAReport) {
  using namespace fsdp::planner;
  StepModel model = makeTransformer(test::llama7B);
  Problem problem = test::ReferenceStep(model, 0, makeDecisions(model)).problem;
  std::vector<uint32_t> order = programOrder(problem);
  for (uint32_t ranks : {1u, 8u, 64u}) {
    constexpr int rounds = 10;
    std::clock_t start = std::clock(); // others may use the core as well
    int64_t time = 0;
    for (int i = 0; i != rounds; ++i)
      time = simulateVaried(problem, order, ranks, 0.05);
    double each = 1e3 * double(std::clock() - start) / CLOCKS_PER_SEC / rounds;
    size_t events = ranks * order.size();
    std::cout << "7B, " << ranks << " ranks, " << double(time) / 1e6
              << " ms: " << events << " events in " << each << " ms, "
              << double(events) / each / 1e3 << " M events/s\n";
  }
}

} // namespace
