//===- EvaluatorTest.cpp - Time and memory of decisions -------------------===//

#include "fsdp/Planner/Evaluator.h"

#include "ReferenceStep.h"
#include "StepModels.h"
#include "Transformers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <new>
#include <numeric>

using namespace fsdp::planner;
using namespace fsdp::planner::test;

static std::atomic<size_t> numAllocations = 0; // Searches have threads.

// Not inline: GCC takes an inlined pair of new and free for a mistake.
[[gnu::noinline]] void *operator new(size_t size) {
  ++numAllocations;
  if (void *memory = std::malloc(size ? size : 1))
    return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void *memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void *memory, size_t) noexcept {
  std::free(memory);
}

namespace {

std::vector<uint32_t> getProgramOrder(const scheduling::Problem &problem) {
  std::vector<uint32_t> order(problem.operations.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TEST(Evaluator, IsTheSimulatorOfTheStep) {
  Random random(1);
  for (int i = 0; i != 1500; ++i) {
    StepModel model = makeRandomModel(random, 6, i % 3 == 0);
    model.sharesCore = i % 10 == 0;
    ASSERT_EQ(check(model), "");
    Decisions decisions = makeRandomDecisions(random, model);
    for (size_t p = 0; p != model.programs.size(); ++p) {
      scheduling::Problem problem = ReferenceStep(model, p, decisions).problem;
      ASSERT_EQ(check(problem), "");
      std::vector<uint32_t> order = getProgramOrder(problem);
      scheduling::Schedule schedule = simulate(problem, order);
      ASSERT_EQ(verify(problem, schedule), "");
      Outcome outcome = Evaluator(model, p).evaluate(decisions.programs[p],
                                                     decisions.resident);
      ASSERT_EQ(outcome.time, measure(problem, schedule).makespan) << i;
      ASSERT_EQ(outcome.peakBytes,
                model.persistentBytes + findPeak(problem, order).bytes)
          << i;
    }
  }
}

TEST(Evaluator, SlowsAndSharesAsItIsDefined) {
  Random random(2);
  for (int i = 0; i != 700; ++i) {
    StepModel model = makeRandomModel(random, 4);
    Decisions decisions = makeRandomDecisions(random, model);
    scheduling::Problem problem = ReferenceStep(model, 0, decisions).problem;
    ASSERT_EQ(evaluate(model, decisions).time,
              measure(problem, stepThrough(problem)).makespan)
        << i;
  }
}

// A scenario is the step whose durations are others; the mean is that of them,
// of what keeps to the budget.
TEST(Evaluator, KnowsScenarios) {
  Random random(9);
  const std::vector<Scenario> &scenarios = getRobustScenarios();
  for (int i = 0; i != 300; ++i) {
    StepModel model = makeRandomModel(random, 5);
    for (ComputeOp &op : model.programs[0].ops)
      op.duration *= 10;
    for (Traffic &row : model.programs[0].traffic) {
      row.gather.transfer *= 4;
      row.piece.copy *= 10;
    }
    Decisions decisions = makeRandomDecisions(random, model);
    Outcome all = evaluate(model, decisions, scenarios);
    int64_t sum = 0;
    for (const Scenario &scenario : scenarios) {
      StepModel other = model;
      for (ComputeOp &op : other.programs[0].ops)
        op.duration = std::llround(double(op.duration) * scenario.compute);
      for (Traffic &row : other.programs[0].traffic) {
        row.piece.copy =
            std::llround(double(row.piece.copy) * scenario.compute);
        for (CollectiveCost *cost :
             {&row.gather, &row.piece.gather, &row.reduction, &row.allReduce})
          cost->transfer =
              std::llround(double(cost->transfer) * scenario.network);
      }
      Outcome own = evaluate(model, decisions, {scenario});
      ASSERT_EQ(own.time, evaluate(other, decisions).time) << i;
      ASSERT_EQ(own.peakBytes, all.peakBytes) << i;
      ASSERT_GE(own.time, all.time) << i;
      sum += own.time;
    }
    ASSERT_EQ(all.meanTime, sum / int64_t(scenarios.size())) << i;
    model.budget = all.peakBytes - 1;
    ASSERT_EQ(evaluate(model, decisions, scenarios).meanTime, all.time) << i;
  }
}

TEST(Evaluator, FitsAsDecisionsThatItEvaluates) {
  Random random(3);
  int fitted = 0;
  for (int i = 0; i != 1000; ++i) {
    StepModel model = makeRandomModel(random, 6, i % 3 == 0);
    Decisions decisions = makeRandomDecisions(random, model);
    int64_t most = evaluate(model, decisions).peakBytes;
    for (size_t p = 0; p != model.programs.size(); ++p) {
      Evaluator evaluator(model, p);
      ProgramDecisions lean = decisions.programs[p];
      for (UnitDecision &unit : lean.units) {
        unit[Phase::Forward].ahead = unit[Phase::Backward].ahead = 0;
        unit.reduction.wait = 0;
      }
      int64_t least = evaluator.evaluate(lean, decisions.resident).peakBytes;
      model.budget = random.get(least - 10, std::max(least, most) + 10);
      if (model.budget < 0)
        continue;
      ProgramDecisions own = decisions.programs[p];
      Outcome outcome = evaluator.fit(own, decisions.resident);
      Outcome again = evaluator.evaluate(own, decisions.resident);
      bool fits = outcome.peakBytes <= model.budget;
      ASSERT_EQ(outcome.time, fits ? again.time : 0) << i;
      ASSERT_EQ(outcome.peakBytes, again.peakBytes) << i;
      ASSERT_EQ(fits, least <= model.budget) << i;
      for (size_t u = 0; u != own.units.size(); ++u) {
        ASSERT_LE(own.units[u][Phase::Backward].ahead,
                  decisions.programs[p].units[u][Phase::Backward].ahead);
        ASSERT_LE(own.units[u].reduction.wait,
                  decisions.programs[p].units[u].reduction.wait);
      }
      fitted += fits;
    }
  }
  EXPECT_GT(fitted, 500);
}

// A search need not know how much slower something is elsewhere that is too
// slow here.
TEST(Evaluator, LooksNoFurtherAtWhatIsTooSlow) {
  Random random(5);
  for (int i = 0; i != 200; ++i) {
    StepModel model = makeRandomModel(random, 6, i % 3 == 0);
    Decisions decisions = makeRandomDecisions(random, model);
    Evaluator evaluator(model, 0, getRobustScenarios());
    ProgramDecisions &own = decisions.programs[0];
    auto fit = [&](int64_t most) {
      ProgramDecisions wanted = own;
      return evaluator.fit(wanted, decisions.resident, most);
    };
    Outcome whole = fit(std::numeric_limits<int64_t>::max());
    EXPECT_EQ(fit(whole.time).meanTime, whole.meanTime);
    EXPECT_EQ(fit(whole.time - 1).meanTime, whole.time);

    std::vector<int64_t> times = evaluator.findTimes(own, decisions.resident);
    ASSERT_EQ(times.size(), getRobustScenarios().size());
    EXPECT_EQ(evaluator.findTimes(own, decisions.resident, times), times);
    std::vector<int64_t> most = times;
    --most[size_t(i) % most.size()];
    EXPECT_TRUE(evaluator.findTimes(own, decisions.resident, most).empty());
  }
}

// What stands together is evaluated faster, and no differently.
TEST(Evaluator, FindsTheSameOfCompactedPrograms) {
  Random random(8);
  size_t before = 0, after = 0;
  for (int i = 0; i != 2000; ++i) {
    StepModel model = makeRandomModel(random, 5, i % 3 == 0);
    StepModel compacted = model;
    for (Program &program : compacted.programs) {
      std::vector<uint32_t> sizes(program.ops.size(), 1);
      before += sizes.size();
      compact(program, sizes);
      ASSERT_EQ(sizes.size(), program.ops.size());
      after += sizes.size();
    }
    ASSERT_EQ(check(compacted), "");
    Decisions decisions = makeRandomDecisions(random, model);
    Outcome expected = evaluate(model, decisions);
    Outcome found = evaluate(compacted, decisions);
    ASSERT_EQ(found.time, expected.time) << i;
    ASSERT_EQ(found.peakBytes, expected.peakBytes) << i;
  }
  EXPECT_LT(after, before);
}

TEST(Evaluator, AddsUpPrograms) {
  Random random(4);
  StepModel model = makeRandomModel(random, 4, true);
  Decisions decisions = makeRandomDecisions(random, model);
  int64_t time = 0, peak = 0;
  for (size_t p = 0; p != model.programs.size(); ++p) {
    Outcome own =
        Evaluator(model, p).evaluate(decisions.programs[p], decisions.resident);
    time += model.programs[p].count * own.time;
    peak = std::max(peak, own.peakBytes);
  }
  EXPECT_EQ(evaluate(model, decisions).time, time);
  EXPECT_EQ(evaluate(model, decisions).peakBytes, peak);
}

TEST(Evaluator, AllocatesNothingOnceWarm) {
  Random random(6);
  StepModel model = makeTransformer(gpt2);
  model.budget = int64_t(2) << 30;
  std::vector<Decisions> all;
  for (int i = 0; i != 20; ++i)
    all.push_back(makeRandomDecisions(random, model));
  Evaluator evaluator(model, 0);
  size_t before = 0;
  for (bool isWarm : {false, true}) {
    std::vector<Decisions> wanted = all;
    before = numAllocations;
    for (Decisions &decisions : wanted) {
      evaluator.evaluate(decisions.programs[0], decisions.resident);
      evaluator.fit(decisions.programs[0], decisions.resident);
    }
    EXPECT_EQ(numAllocations == before, isWarm);
  }
}

TEST(Evaluator, IsFastEnoughToSearchWith) {
  StepModel model = makeTransformer(llama405B);
  ASSERT_EQ(check(model), "");
  Decisions decisions = makeDecisions(model);
  ProgramDecisions &own = decisions.programs[0];
  for (UnitDecision &unit : own.units) {
    unit[Phase::Forward].ahead = unit[Phase::Backward].ahead = 2;
    unit.reduction.wait = 2;
  }
  std::fill(own.recompute.begin(), own.recompute.end(), Recompute::All);
  model.budget = evaluate(model, decisions).peakBytes;
  Evaluator evaluator(model, 0);
  constexpr int rounds = 50;
  for (bool isFitted : {false, true}) {
    std::clock_t start = std::clock(); // others may use the core as well
    for (int i = 0; i != rounds; ++i) {
      ProgramDecisions copy = own;
      if (isFitted)
        evaluator.fit(copy, decisions.resident);
      else
        evaluator.evaluate(copy, decisions.resident);
    }
    double each = 1e3 * double(std::clock() - start) / CLOCKS_PER_SEC / rounds;
    std::cout << (isFitted ? "fit" : "evaluate") << ": 405B, "
              << evaluator.getNumEvents() << " events in " << each << " ms, "
              << double(evaluator.getNumEvents()) / each / 1e3
              << " M events/s\n";
  }
  scheduling::Problem problem = ReferenceStep(model, 0, decisions).problem;
  std::vector<uint32_t> order = getProgramOrder(problem);
  ASSERT_EQ(simulate(problem, order).end.back(), // with all code warm
            evaluate(model, decisions).time);
  std::clock_t start = std::clock();
  for (int i = 0; i != rounds; ++i)
    simulate(problem, order);
  double each = 1e3 * double(std::clock() - start) / CLOCKS_PER_SEC / rounds;
  std::cout << "simulate: 405B, " << order.size() << " events in " << each
            << " ms, " << double(order.size()) / each / 1e3 << " M events/s\n";
}

TEST(StepModel, SaysWhatIsWrong) {
  Random random(5);
  StepModel good = makeRandomModel(random, 3);
  auto checkWith = [&](auto change) {
    StepModel model = good;
    change(model);
    return check(model);
  };
  ASSERT_EQ(check(good), "");
  EXPECT_EQ(checkWith([](StepModel &m) { m.contention = -1; }),
            "expected a contention from 0 to 8192, found -1");
  EXPECT_EQ(checkWith([](StepModel &m) { m.links = {{LinkUse{0, 2000}}}; }),
            "expected at most 1024 parts of a link, found 2000");
  EXPECT_EQ(checkWith([](StepModel &m) {
              m.links = {{LinkUse{1024, 0}}};
              m.programs[0].traffic[0].gatherGroup = 1;
            }),
            "program 'step': unit 'h.0': expected a group below 1, found 1");
  EXPECT_EQ(
      checkWith(
          [](StepModel &m) { m.programs[0].traffic[0].gatheredBytes = -5; }),
      "program 'step': unit 'h.0': expected an exabyte in sum, found -5 bytes");
  EXPECT_EQ(
      checkWith(
          [](StepModel &m) { m.programs[0].traffic[0].gather.latency = -7; }),
      "program 'step': unit 'h.0': expected no negative cost, found -7 ps");
  EXPECT_EQ(checkWith([](StepModel &m) { m.programs[0].count = 0; }),
            "program 'step': expected a count from 1 to 1048576, found 0");
  EXPECT_EQ(checkWith([](StepModel &m) {
              m.programs[0].ops[0].weights = 99;
            }).substr(0, 46),
            "program 'step': computation 0: expected a unit");
  EXPECT_EQ(checkWith([](StepModel &m) {
              m.programs[0].ops[0].phase = Phase::Backward;
            }).substr(0, 47),
            "program 'step': computation 1: expected the who");
  EXPECT_EQ(checkWith([](StepModel &m) {
              m.programs[0].ops[0].duration = int64_t(1) << 60;
            }),
            "program 'step': computation 0: expected times of a week in sum, "
            "found 1152921504606846976 ns");
}

} // namespace
