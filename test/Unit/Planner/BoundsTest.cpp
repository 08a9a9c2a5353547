//===- BoundsTest.cpp - What no decisions can beat ------------------------===//

#include "fsdp/Planner/Bounds.h"

#include "StepModels.h"
#include "Transformers.h"
#include "fsdp/Planner/Baselines.h"
#include "fsdp/Planner/Evaluator.h"

#include <gtest/gtest.h>

using namespace fsdp::planner;
using namespace fsdp::planner::test;

namespace {

// Whatever is decided fits into the memory that it takes: no bound for that
// budget is above its time.
/// Launches as late, waits as early, and calls as small as they can be, some of
/// them: where memory is as scarce as it can be for a step.
void makeLean(ProgramDecisions &decisions, int kind) {
  for (UnitDecision &unit : decisions.units) {
    unit.keep = kind == 1 ? Keep::None : unit.keep;
    for (UnitDecision::Gather &gather : unit.gathers) {
      gather.ahead = kind == 2 ? gather.ahead : 0;
      gather.joins &= kind < 3;
    }
    unit.reduction.wait = kind == 3 ? unit.reduction.wait : 0;
  }
  if (kind == 1 || kind == 4)
    std::fill(decisions.recompute.begin(), decisions.recompute.end(),
              Recompute::All);
}

TEST(Bounds, AreBelowAnyDecisions) {
  Random random(1);
  double largest = 0;
  for (int i = 0; i != 40000; ++i) {
    StepModel model = makeRandomModel(random, i % 3 ? 5 : 12, i % 4 == 0);
    model.sharesCore = i % 16 == 1;
    if (i % 8 == 2) // costs that are rounded
      for (Program &program : model.programs)
        for (Traffic &unit : program.traffic)
          unit.gather.transfer += random.get(0, 999),
              unit.piece.gather.transfer += random.get(0, 999);
    Decisions decisions = makeRandomDecisions(random, model);
    for (size_t p = 0; p != model.programs.size(); ++p) {
      if (i % 5)
        makeLean(decisions.programs[p], i % 5);
      Outcome outcome = Evaluator(model, p).evaluate(decisions.programs[p],
                                                     decisions.resident);
      model.budget = outcome.peakBytes;
      ProgramBounds bounds(model, p);
      ASSERT_LE(bounds.boundBudget(), outcome.peakBytes) << i;
      ASSERT_TRUE(bounds.findLargest()) << i;
      ASSERT_LE(*bounds.boundCompute(), outcome.time) << i;
      ASSERT_LE(*bounds.boundContention(), outcome.time) << i;
      ASSERT_LE(*bounds.boundMemoryCut(), outcome.time) << i;
      ASSERT_LE(*bounds.boundHeadTail(), outcome.time) << i;
      largest =
          std::max(largest, double(bounds.findLargest()->time) /
                                double(std::max<int64_t>(outcome.time, 1)));
    }
  }
  EXPECT_EQ(largest, 1); // some are attained
}

// Two reductions in one call run beside what comes after the later one, though
// the first by itself had no room to run beside what comes between.
TEST(Bounds, LeaveAGradientToTheNextCall) {
  StepModel model;
  model.units.resize(2);
  Program program;
  program.traffic.resize(2);
  for (Traffic &row : program.traffic) {
    row.gradientBytes = 1;
    row.reduction = {1000, 20000};
  }
  program.traffic[0].heldBytes[size_t(Stream::Reduce)] = 10;
  auto add = [&](int64_t duration, uint32_t gradient, int64_t transient) {
    ComputeOp op;
    op.phase = Phase::Backward;
    op.duration = duration;
    op.gradient = gradient;
    op.transient = transient;
    program.ops.push_back(op);
  };
  add(1, 0, 0);
  add(50, 1, 10);
  add(100, nobody, 0);
  for (uint32_t unit : {0, 1}) {
    ComputeOp update;
    update.phase = Phase::Backward;
    update.update = unit;
    program.ops.push_back(update);
  }
  model.programs = {program};
  ASSERT_EQ(check(model), "");
  Decisions decisions = makeDecisions(model);
  decisions.programs[0].units[1].reduction = {/*joins=*/true, /*wait=*/9};
  decisions.programs[0].units[0].reduction.wait = 9;
  Outcome outcome = evaluate(model, decisions);
  EXPECT_EQ(outcome.time, 151); // all of it is hidden
  model.budget = outcome.peakBytes;
  EXPECT_LE(findBound(model)->time, outcome.time);
}

// The second unit of a module is gathered while the first is computed with
// again, and at no other time.
TEST(Bounds, LetAGatherRunBesideTheReplayOfItsModule) {
  StepModel model;
  model.links = {shareAll()};
  model.modules = {"h"};
  Program program;
  program.recomputable = {0};
  auto add = [&](Phase phase, uint32_t weights, uint32_t gradient,
                 uint32_t onlyIf, int64_t transient) {
    ComputeOp op;
    op.duration = 50;
    op.phase = phase;
    op.weights = weights;
    op.gradient = gradient;
    op.onlyIf = onlyIf;
    op.transient = transient;
    program.ops.push_back(op);
  };
  for (uint32_t unit : {0, 1}) {
    model.units.push_back({"w" + std::to_string(unit), 0, false, 0});
    Traffic traffic;
    traffic.gatheredBytes = traffic.gradientBytes = 10;
    traffic.gather = traffic.reduction = {0, 50000};
    program.traffic.push_back(traffic);
    add(Phase::Forward, unit, nobody, nobody, 0);
  }
  add(Phase::Forward, nobody, nobody, nobody, 100); // room for nothing else
  for (uint32_t unit : {0, 1})
    add(Phase::Backward, unit, nobody, 0, 0);
  for (uint32_t unit : {1, 0})
    add(Phase::Backward, unit, unit, nobody, 0);
  program.lives = {{10, 0, 0, {{0, getBit(Recompute::None), 6}}}};
  model.programs = {program};
  ASSERT_EQ(check(model), "");
  Decisions decisions = makeDecisions(model);
  decisions.programs[0].recompute[0] = Recompute::All;
  for (Phase phase : {Phase::Forward, Phase::Backward})
    decisions.programs[0].units[1][phase].ahead = 1;
  decisions.programs[0].units[1].reduction.wait = 9;
  Outcome outcome = evaluate(model, decisions);
  EXPECT_EQ(outcome.time, 50 + 3 * 50 + 50 + 4 * 50 + 50);
  model.budget = outcome.peakBytes;
  EXPECT_LE(findBound(model)->time, outcome.time);
}

ComputeOp makeOp(Phase phase, int64_t duration, int64_t transient = 0,
                 uint32_t weights = nobody) {
  ComputeOp op;
  op.phase = phase;
  op.duration = duration;
  op.transient = transient;
  op.weights = weights;
  return op;
}

/// With the memory that it takes, nothing is faster than an outcome; a bound
/// may be less by what it has rounded.
void expectBest(StepModel model, const Outcome &outcome) {
  model.budget = outcome.peakBytes;
  int64_t bound = findBound(model)->time;
  EXPECT_LE(bound, outcome.time);
  EXPECT_GE(bound, outcome.time - 5);
}

void addUnit(StepModel &model, Program &program, const Traffic &traffic) {
  model.units.push_back(
      {"w" + std::to_string(model.units.size()), nobody, false, 0});
  program.traffic.push_back(traffic);
}

// There is room for two gathers beside one computation, but no time.
TEST(Bounds, HideOneCollectiveAtATime) {
  StepModel model;
  Program program;
  for (int64_t transfer : {0, 0, 40000, 40000}) {
    Traffic traffic;
    traffic.gatheredBytes = 10;
    traffic.gather = {0, transfer};
    addUnit(model, program, traffic);
  }
  program.ops = {makeOp(Phase::Forward, 50, /*transient=*/100, 0),
                 makeOp(Phase::Forward, 50, 0, 1),
                 makeOp(Phase::Forward, 10, 0, 2),
                 makeOp(Phase::Forward, 10, 0, 3)};
  model.programs = {program};
  ASSERT_EQ(check(model), "");
  Decisions decisions = makeDecisions(model);
  decisions.programs[0].units[2][Phase::Forward].ahead = 1;
  decisions.programs[0].units[3][Phase::Forward].ahead = 2;
  Outcome outcome = evaluate(model, decisions);
  EXPECT_EQ(outcome.peakBytes, 110);
  EXPECT_EQ(outcome.time, 50 + 80 + 10);
  expectBest(model, outcome);
}

// The reduction runs beside the second module, if that is recomputed. There is
// room for the first one to be kept, or for that.
TEST(Bounds, KnowWhichModuleIsRecomputed) {
  StepModel model;
  model.modules = {"first", "second"};
  Program program;
  program.recomputable = {0, 1};
  for (bool isLast : {false, true}) {
    Traffic traffic;
    traffic.gradientBytes = isLast ? 1 : 10;
    traffic.reduction = {0, isLast ? 0 : 40000};
    addUnit(model, program, traffic);
  }
  auto add = [&](ComputeOp op, uint32_t gradient, uint32_t update) {
    op.gradient = gradient;
    op.update = update;
    program.ops.push_back(op);
  };
  ComputeOp forward = makeOp(Phase::Forward, 10);
  ComputeOp backward = makeOp(Phase::Backward, 10);
  add(forward, nobody, nobody);
  add(forward, nobody, nobody);
  add(backward, 0, nobody);
  add(repeat(makeOp(Phase::Backward, 50), 1, Recompute::All), nobody, nobody);
  add(makeOp(Phase::Backward, 10, /*transient=*/20), nobody, nobody);
  add(repeat(makeOp(Phase::Backward, 50), 0, Recompute::All), nobody, nobody);
  add(backward, 1, nobody);
  for (uint32_t unit : {0, 1})
    add(makeOp(Phase::Backward, 0), nobody, unit);
  const uint8_t none = getBit(Recompute::None);
  program.lives = {{10, 0, 0, {{0, none, 6}}},
                   {10, 1, 1, {{1, none, 4}}},
                   {10, 3, 4, {}},
                   {10, 5, 6, {}}};
  model.programs = {program};
  ASSERT_EQ(check(model), "");
  Decisions decisions = makeDecisions(model);
  decisions.programs[0].recompute[0] = Recompute::All;
  Outcome outcome = evaluate(model, decisions);
  EXPECT_EQ(outcome.peakBytes, 30);
  EXPECT_EQ(outcome.time, 50 + 50 + 40);
  expectBest(model, outcome);
}

// A copy that is waited for right after one short computation, such as that of
// a shard in front of its update: nothing hides the rest.
TEST(Bounds, WaitForCopies) {
  StepModel model;
  Program program;
  program.name = "step";
  program.ops.resize(4);
  for (size_t i = 0; i != program.ops.size(); ++i)
    program.ops[i].duration = i == 1 ? 0 : 20;
  program.ops[1].launches = program.ops[3].awaits = 0;
  program.calls = {{Stream::Copy, 100, 0}};
  model.programs = {program};
  ASSERT_EQ(check(model), "");
  EXPECT_EQ(evaluate(model, makeDecisions(model)).time, 20 + 100 + 20);
  EXPECT_EQ(findBound(model)->time, 20 + 100 + 20);
  // It is not known what else runs beside the computation, and slows it.
  model.contention = 512;
  EXPECT_EQ(evaluate(model, makeDecisions(model)).time, 20 + 100 + 20);
  EXPECT_EQ(findBound(model)->time, 20 + 100 - 10 + 20);
}

TEST(Bounds, SayThatABudgetIsTooSmall) {
  StepModel model = makeTransformer(llama7B);
  model.budget = model.persistentBytes;
  EXPECT_FALSE(findBound(model));
  model.budget = ProgramBounds(model, 0).boundBudget();
  EXPECT_TRUE(findBound(model));
  --model.budget;
  EXPECT_FALSE(findBound(model));
}

// With memory to spare, a gather and a reduction cannot be hidden, and what is
// hidden costs contention.
TEST(Bounds, AreCloseWhereMemoryIsNotScarce) {
  StepModel model = makeTransformer(llama7B);
  Outcome outcome = evaluate(
      model, makeBaseline(model, Policy::Fsdp2, Keep::All, Recompute::None));
  auto bound = findBound(model);
  ASSERT_TRUE(bound);
  EXPECT_GT(double(bound->time), 0.97 * double(outcome.time));
  EXPECT_LE(bound->time, outcome.time);
}

// Recomputed or not, all of the last module is there when its backward begins.
TEST(Bounds, CountWhatIsRecomputedInItsBackward) {
  StepModel model = makeTransformer(llama7B);
  const Program &program = model.programs[0];
  uint32_t last = program.recomputable.back();
  int64_t bytes = model.persistentBytes;
  for (const Life &life : program.lives)
    if (program.ops[life.begin].phase == Phase::Forward &&
        (life.reads.empty() || life.reads.front().module == last))
      bytes += life.bytes;
  EXPECT_GT(ProgramBounds(model, 0).boundBudget(), bytes);
}

// Less memory never lowers a bound.
TEST(Bounds, GrowAsTheBudgetShrinks) {
  StepModel model = makeTransformer(slow7B);
  int64_t most = evaluate(model, makeBaseline(model, Policy::Fsdp2, Keep::All,
                                              Recompute::None))
                     .peakBytes;
  int64_t least = ProgramBounds(model, 0).boundBudget();
  int64_t before = 0;
  for (int i = 20; i >= 0; --i) {
    model.budget = least + (most - least) * i / 20;
    auto bound = findBound(model);
    ASSERT_TRUE(bound);
    EXPECT_GE(bound->time, before);
    before = bound->time;
  }
}

} // namespace
