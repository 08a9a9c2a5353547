//===- SchedulingTest.cpp - Schedules of random and of typical steps ------===//

#include "fsdp/Planner/Scheduling.h"

#include "RandomProblem.h"
#include "ReferenceStep.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

using namespace fsdp::planner::scheduling;
using fsdp::planner::test::programOrder;
using fsdp::planner::test::randomProblem;

namespace {

int64_t getMakespan(const Problem &problem, const Answer &answer) {
  return measure(problem, answer.schedule).makespan;
}

/// A limit that program order meets, often barely.
void limitToProgram(Problem &problem) {
  problem.memoryLimit = findPeak(problem, programOrder(problem)).bytes +
                        *rc::gen::inRange<int64_t>(0, 50);
}

/// A forward of `layers` layers as FSDP writes it: gather, wait, compute,
/// reshard; computations in sequence 0, gathers in sequence 1. Activations
/// stay.
Problem layeredForward(uint32_t layers, int64_t gather, int64_t compute,
                       int64_t gathered, int64_t saved) {
  Problem problem;
  problem.numStreams = 2;
  for (uint32_t layer = 0; layer != layers; ++layer) {
    uint32_t launch = 2 * layer;
    problem.operations.push_back({gather, 1, 1, {}});
    problem.operations.push_back({compute, computeStream, 0, {launch}});
    problem.buffers.push_back({gathered, launch, launch + 1});
    problem.buffers.push_back({saved, launch + 1, 2 * layers - 1});
  }
  return problem;
}

//===----------------------------------------------------------------------===//
// Bad input
//===----------------------------------------------------------------------===//

// Each kind of bad input has its sentence; the first problem is what is
// reported.
TEST(Scheduling, ChecksItsInput) {
  Problem good;
  good.numStreams = 2;
  good.operations = {{5, 1, none, {}}, {7, 0, none, {0}}};
  good.buffers = {{64, 0, 1}};
  EXPECT_EQ(check(good), "");
  auto expect = [&](auto &&damage, const char *sentence) {
    Problem bad = good;
    damage(bad);
    EXPECT_EQ(check(bad), sentence);
  };
  expect([](Problem &p) { p.numStreams = 0; }, "there is no compute stream");
  expect([](Problem &p) { p.numStreams = 6; },
         "there are 6 streams, and not at most 5");
  expect([](Problem &p) { p.contention = 9000; },
         "the contention is 9000, and not from 0 to 8192");
  expect([](Problem &p) { p.memoryLimit = -1; },
         "the memory limit is negative");
  expect([](Problem &p) { p.operations[1].duration = -1; },
         "operation 1 has a negative duration");
  expect([](Problem &p) { p.operations[1].duration = unlimited - 1; },
         "operation 1 takes the total past a week");
  expect([](Problem &p) { p.operations[0].stream = 2; },
         "operation 0 is on stream 2, but there are 2");
  expect([](Problem &p) { p.operations[0].links = {0, 1025}; },
         "operation 0 takes 1025 parts of a link, which has 1024");
  expect([](Problem &p) { p.operations[1].after = {9}; },
         "operation 1 depends on operation 9, but there are 2");
  expect([](Problem &p) { p.operations[0].after = {1}; },
         "operation 0 depends on operation 1, which is not before it: a cycle, "
         "or not program order");
  expect([](Problem &p) { p.operations[1].after = {1}; },
         "operation 1 depends on operation 1, which is not before it: a cycle, "
         "or not program order");
  expect([](Problem &p) { p.buffers[0].bytes = -8; },
         "buffer 0 has a negative size");
  expect([](Problem &p) { p.buffers.push_back({unlimited - 1, 0, 1}); },
         "buffer 1 takes the total past two exabytes");
  expect([](Problem &p) { p.buffers[0].until = 2; },
         "buffer 0 belongs to operation 2, but there are 2");
  expect([](Problem &p) { p.buffers[0] = {64, 1, 0}; },
         "buffer 0 ends at operation 0, before it begins at operation 1");
}

// What the machine is said to do, one nanosecond after the other: slower
// computations, shared links, and what runs ahead.
TEST(Scheduling, SimulatesTheMachineAsItIsDefined) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    problem.sharesCore = false;
    Schedule schedule = simulate(problem, programOrder(problem));
    Schedule expected = fsdp::planner::test::stepThrough(problem);
    RC_ASSERT(schedule.start == expected.start);
    RC_ASSERT(schedule.end == expected.end);
    RC_ASSERT(verify(problem, schedule).empty());
  }));
}

// Ten computations of 100 ns beside a gather of 1190: with a contention of 195
// each takes 119.04 ns, and no nanosecond is lost between them.
TEST(Scheduling, SlowsComputationsBesideCollectives) {
  Problem problem;
  problem.numStreams = 2;
  problem.contention = 195;
  problem.operations.push_back({1190, 1, 1, {}});
  for (int i = 0; i != 20; ++i)
    problem.operations.push_back({100, computeStream, 0, {}});
  Timeline line = measure(problem, simulate(problem, programOrder(problem)));
  EXPECT_EQ(line.makespan, 1191 + 1000); // 1190.4, and then as predicted
  EXPECT_EQ(line.slowed, 191);
  EXPECT_EQ(line.exposedTotal, 0);
}

// Who goes over a link waits for what is too much for it, and nobody else: of
// two at once that take all of the network each runs at half its speed, and one
// in a node beside them as if it were alone, as long as they leave it enough.
TEST(Scheduling, SharesLinksAmongThoseWhoGoOverThem) {
  auto run = [](std::vector<LinkUse> links) {
    Problem problem;
    problem.numStreams = 5;
    std::vector<int64_t> durations = {10, 30, 30, 30};
    for (uint32_t i = 0; i != durations.size(); ++i)
      problem.operations.push_back({durations[i],
                                    i + 1,
                                    i + 1,
                                    {},
                                    false,
                                    i < links.size() ? links[i] : LinkUse()});
    return simulate(problem, programOrder(problem)).end;
  };
  LinkUse node = {1024, 0}, network = {0, 1024}, both = {512, 1024};
  EXPECT_EQ(run({network, network}), (std::vector<int64_t>{20, 40, 30, 30}));
  EXPECT_EQ(run({node, network}), (std::vector<int64_t>{10, 30, 30, 30}));
  EXPECT_EQ(run({network, network, node}),
            (std::vector<int64_t>{20, 40, 30, 30}));
  // 1.5 of the node's links: for 15 ns two thirds of the speed, then all of it.
  EXPECT_EQ(run({node, both}), (std::vector<int64_t>{15, 35, 30, 30}));
  EXPECT_EQ(run({node, node, node}), (std::vector<int64_t>{30, 70, 70, 30}));
}

// On one core a step takes as long as all of its operations together, however
// they are ordered, and all that is sent is in the way of computations.
TEST(Scheduling, AddsUpOnASharedCore) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    problem.sharesCore = true;
    int64_t total = 0, sent = 0;
    for (const Operation &op : problem.operations) {
      total += op.duration;
      sent += op.stream == computeStream ? 0 : op.duration;
    }
    for (Algorithm algorithm : {Algorithm::Program, Algorithm::List}) {
      Answer answer = solve(problem, algorithm);
      RC_ASSERT(verify(problem, answer.schedule).empty());
      Timeline line = measure(problem, answer.schedule);
      RC_ASSERT(line.makespan == total);
      RC_ASSERT(line.exposedTotal == sent);
    }
  }));
}

// Each rule of the machine, broken alone in a schedule that is otherwise right.
TEST(Scheduling, VerifiesAnswers) {
  Problem problem;
  problem.numStreams = 2;
  problem.operations = {
      {5, 1, 3, {}}, {5, 1, 3, {}}, {7, 0, none, {0}}, {1, 0, none, {1}}};
  problem.buffers = {{64, 0, 2}, {64, 1, 3}};
  Schedule good = simulate(problem, {0, 1, 2, 3});
  EXPECT_EQ(verify(problem, good), "");
  auto expect = [&](auto &&damage, const char *sentence) {
    Schedule bad = good;
    damage(bad);
    EXPECT_EQ(verify(problem, bad), sentence);
  };
  expect([](Schedule &s) { s.order.pop_back(); },
         "the schedule is not of as many operations as the problem");
  expect([](Schedule &s) { s.order[3] = 4; },
         "the schedule issues operation 4, but there are 4");
  expect([](Schedule &s) { s.order[3] = 2; }, "operation 2 is issued twice");
  expect([](Schedule &s) { s.order = {0, 2, 1, 3}; },
         "operation 1 starts before the computations that are issued before "
         "it");
  expect([](Schedule &s) { s.start[0] = -1; },
         "operation 0 starts before the step");
  expect([](Schedule &s) { s.start[1] = 4; },
         "operation 1 starts before stream 1 is free");
  expect([](Schedule &s) { s.start[3] = unlimited / 3; },
         "operation 3 starts after 73 years");
  expect([](Schedule &s) { s.start[2] = 4; },
         "operation 2 starts before operation 0, which it depends on, has "
         "ended");
  expect([](Schedule &s) { s.end[2] -= 1; },
         "operation 2 takes less than its 7 ns");
  Schedule turned = {{1, 0, 2, 3}, {5, 0, 10, 17}, {10, 5, 17, 18}};
  EXPECT_EQ(verify(problem, turned), "operation 1 is issued before operation "
                                     "0, which comes first in their sequence");
  problem.memoryLimit = 100;
  EXPECT_EQ(verify(problem, good),
            "operation 1 takes more memory than the limit of 100 bytes; the "
            "most is 128");
}

//===----------------------------------------------------------------------===//
// Properties
//===----------------------------------------------------------------------===//

// Whatever an algorithm returns is a schedule, with and without a limit.
TEST(Scheduling, AnswersPassTheVerifier) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    RC_ASSERT(check(problem) == "");
    for (bool isLimited : {false, true}) {
      if (isLimited)
        limitToProgram(problem);
      for (Algorithm algorithm : {Algorithm::Program, Algorithm::List}) {
        Answer answer = solve(problem, algorithm);
        RC_ASSERT(answer.isFeasible);
        RC_ASSERT(verify(problem, answer.schedule) == "");
        RC_ASSERT(answer.peak.bytes <= problem.memoryLimit);
        RC_ASSERT(answer.peak.bytes ==
                  findPeak(problem, answer.schedule.order).bytes);
        RC_ASSERT(measure(problem, answer.schedule).peakBytes <=
                  problem.memoryLimit);
      }
    }
  }));
}

TEST(Scheduling, ListIsNeverSlowerThanProgramOrder) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    if (*rc::gen::arbitrary<bool>())
      limitToProgram(problem);
    int64_t program = getMakespan(problem, solve(problem, Algorithm::Program));
    RC_ASSERT(getMakespan(problem, solve(problem, Algorithm::List)) <= program);
  }));
}

// Where a limit can't be met, the answer says one that can, and what stands at
// the peak adds up to it.
TEST(Scheduling, TheLimitThatIsNamedCanBeMet) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    Algorithm algorithm =
        *rc::gen::element(Algorithm::Program, Algorithm::List);
    problem.memoryLimit = *rc::gen::inRange<int64_t>(0, 300);
    Answer answer = solve(problem, algorithm);
    if (answer.isFeasible) {
      RC_ASSERT(verify(problem, answer.schedule) == "");
      return;
    }
    RC_ASSERT(answer.peak.bytes > problem.memoryLimit);
    int64_t total = 0;
    for (uint32_t buffer : answer.peak.buffers)
      total += problem.buffers[buffer].bytes;
    RC_ASSERT(total == answer.peak.bytes);
    problem.memoryLimit = answer.peak.bytes;
    answer = solve(problem, algorithm);
    RC_ASSERT(answer.isFeasible);
    RC_ASSERT(verify(problem, answer.schedule) == "");
  }));
}

/// Tries every order that keeps the order of computations.
int64_t findLeastMemory(const Problem &problem) {
  int64_t least = unlimited;
  std::vector<uint32_t> order = programOrder(problem);
  do {
    std::vector<uint32_t> place(order.size());
    for (uint32_t i = 0; i != order.size(); ++i)
      place[order[i]] = i;
    bool isLegal = true;
    uint32_t lastComputation = none;
    for (uint32_t i = 0; i != order.size(); ++i) {
      for (uint32_t before : problem.operations[i].after)
        isLegal &= place[before] < place[i];
      if (problem.operations[i].stream != computeStream)
        continue;
      isLegal &= lastComputation == none || place[lastComputation] < place[i];
      lastComputation = i;
    }
    if (isLegal)
      least = std::min(least, findPeak(problem, order).bytes);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

// Where queued operations either take memory or free it, as gathers and
// reductions do, the limit that is named is the smallest of all.
TEST(Scheduling, TheLimitThatIsNamedIsTheSmallest) {
  EXPECT_TRUE(rc::check([] {
    Problem problem;
    problem.numStreams = 3;
    std::vector<uint32_t> computations, gathers;
    auto count = *rc::gen::inRange<uint32_t>(1, 8);
    for (uint32_t i = 0; i != count; ++i) {
      uint32_t kind = *rc::gen::inRange(0, 3);
      Operation op{1, kind, none, {}};
      if (kind == computeStream) {
        computations.push_back(i);
        while (!gathers.empty() && *rc::gen::arbitrary<bool>()) {
          op.after.push_back(gathers.back());
          problem.buffers.push_back(
              {*rc::gen::inRange<int64_t>(1, 100), gathers.back(), i});
          gathers.pop_back();
        }
      } else if (kind == 1) {
        gathers.push_back(i);
      } else if (!computations.empty()) {
        op.after.push_back(computations.back());
        problem.buffers.push_back(
            {*rc::gen::inRange<int64_t>(1, 100), computations.back(), i});
      }
      problem.operations.push_back(op);
    }
    problem.memoryLimit = 0;
    Answer answer = solve(problem, Algorithm::List);
    RC_ASSERT(answer.peak.bytes == findLeastMemory(problem));
  }));
}

//===----------------------------------------------------------------------===//
// Typical steps
//===----------------------------------------------------------------------===//

// Nothing to do is no special case.
TEST(Scheduling, NothingTakesNoTime) {
  for (Algorithm algorithm : {Algorithm::Program, Algorithm::List}) {
    Answer answer = solve({}, algorithm);
    EXPECT_TRUE(answer.isFeasible);
    EXPECT_EQ(getMakespan({}, answer), 0);
  }
}

// A gather in front of its layer hides behind nothing: the next launch waits
// for the computation in front of it.
TEST(Scheduling, ProgramOrderExposesEveryGather) {
  Problem problem = layeredForward(4, 3, 10, 100, 0);
  Timeline line = measure(problem, solve(problem, Algorithm::Program).schedule);
  EXPECT_EQ(line.makespan, 4 * (3 + 10));
  EXPECT_EQ(line.exposedTotal, 4 * 3);
  EXPECT_EQ(line.exposed[2], 3);
  EXPECT_EQ(line.streams[computeStream].idle, 4 * 3);
  EXPECT_EQ(line.streams[1].busy, 4 * 3);
  EXPECT_EQ(line.peakBytes, 100);
}

// List scheduling hides all but the first, and holds two units at most although
// it could hold all: launching earlier would gain nothing.
TEST(Scheduling, ListHidesGathersWithTwoUnitsAtATime) {
  Problem problem = layeredForward(6, 3, 10, 100, 0);
  Answer answer = solve(problem, Algorithm::List);
  Timeline line = measure(problem, answer.schedule);
  EXPECT_EQ(line.makespan, 3 + 6 * 10);
  EXPECT_EQ(line.exposedTotal, 3);
  EXPECT_EQ(answer.peak.bytes, 200);
}

// Gathers that are longer than a layer are launched as far ahead as the limit
// lets them: 350 bytes are three units.
TEST(Scheduling, ListSpendsTheLimitOnGathersThatAreLong) {
  Problem problem = layeredForward(6, 15, 10, 100, 0);
  int64_t unbounded = getMakespan(problem, solve(problem, Algorithm::List));
  EXPECT_EQ(unbounded, 6 * 15 + 10);
  for (auto [limit, most] : {std::pair{350, 300}, {299, 200}, {100, 100}}) {
    problem.memoryLimit = limit;
    Answer answer = solve(problem, Algorithm::List);
    ASSERT_TRUE(answer.isFeasible);
    EXPECT_LE(answer.peak.bytes, most);
  }
  problem.memoryLimit = 99;
  Answer answer = solve(problem, Algorithm::List);
  EXPECT_FALSE(answer.isFeasible);
  EXPECT_EQ(answer.peak.bytes, 100);
}

// Two far-ahead gathers must not take the memory that the computation in
// between needs to go on.
TEST(Scheduling, PrefetchNeverStarvesComputations) {
  Problem problem = layeredForward(6, 15, 10, 100, 50);
  problem.memoryLimit = 400; // the last layer needs 100 + 6 * 50
  Answer answer = solve(problem, Algorithm::List);
  ASSERT_TRUE(answer.isFeasible);
  EXPECT_EQ(verify(problem, answer.schedule), "");
  EXPECT_LT(getMakespan(problem, answer),
            getMakespan(problem, solve(problem, Algorithm::Program)));
}

// What runs ahead starts when its stream and its dependences let it: with a
// gather that depends on the computation before the last, two buffers
// alternate.
TEST(Scheduling, WhatRunsAheadIsHeldByItsDependencesAlone) {
  Problem problem = layeredForward(6, 3, 10, 100, 0);
  for (uint32_t layer = 0; layer != 6; ++layer) {
    Operation &gather = problem.operations[2 * layer];
    gather.runsAhead = true;
    if (layer >= 2)
      gather.after.push_back(2 * layer - 3);
  }
  std::vector<uint32_t> order = programOrder(problem);
  Schedule schedule = simulate(problem, order);
  EXPECT_EQ(verify(problem, schedule), "");
  EXPECT_EQ(measure(problem, schedule).makespan, 3 + 6 * 10);
  EXPECT_EQ(schedule.start[2], 3);  // the stream was busy
  EXPECT_EQ(schedule.start[4], 13); // when the first layer is done
  problem.sharesCore = true;        // and there is no running ahead on one core
  EXPECT_EQ(measure(problem, simulate(problem, order)).makespan, 6 * (3 + 10));
}

// Memory is a matter of places and not of times: a reduction that is late holds
// no more of it.
TEST(Scheduling, MemoryDoesNotDependOnTimes) {
  EXPECT_TRUE(rc::check([] {
    Problem problem = randomProblem();
    Answer answer = solve(problem, Algorithm::Program);
    for (Operation &op : problem.operations)
      op.duration = *rc::gen::inRange<int64_t>(0, 20);
    Schedule other = simulate(problem, answer.schedule.order);
    RC_ASSERT(measure(problem, other).peakBytes == answer.peak.bytes);
  }));
}

// An update fills the time in which the next computation waits for its gather.
TEST(Scheduling, ListFillsGapsWithWhatMayMove) {
  Problem problem;
  problem.numStreams = 2;
  problem.operations = {
      {10, 0, 0, {}}, {20, 1, 1, {0}}, {10, 0, 0, {1}}, {15, 0, none, {0}}};
  EXPECT_EQ(getMakespan(problem, solve(problem, Algorithm::Program)), 55);
  EXPECT_EQ(getMakespan(problem, solve(problem, Algorithm::List)), 40);
}

// Two hundred thousand operations: anything quadratic would take minutes here.
TEST(Scheduling, LargeStepsAreSolved) {
  Problem problem = layeredForward(100000, 15, 10, 100, 0);
  problem.memoryLimit = 1000;
  Answer answer = solve(problem, Algorithm::List);
  ASSERT_TRUE(answer.isFeasible);
  EXPECT_EQ(verify(problem, answer.schedule), "");
}

} // namespace
