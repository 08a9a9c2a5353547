//===- BaselinesTest.cpp - What others decide -----------------------------===//

#include "fsdp/Planner/Baselines.h"

#include "StepModels.h"
#include "Transformers.h"
#include "fsdp/Planner/Evaluator.h"

#include <gtest/gtest.h>

using namespace fsdp::planner;
using namespace fsdp::planner::test;

namespace {

/// Three blocks of one computation per direction, between two of the root.
StepModel makeChain() {
  StepModel model;
  Program program;
  program.name = "step";
  auto add = [&](Phase phase, uint32_t weights, uint32_t gradient) {
    ComputeOp op;
    op.duration = 10;
    op.phase = phase;
    op.weights = weights;
    op.gradient = gradient;
    program.ops.push_back(op);
  };
  for (uint32_t i = 0; i != 3; ++i) {
    Unit unit;
    unit.name = model.modules.emplace_back("h." + std::to_string(i));
    unit.module = i;
    model.units.push_back(unit);
    Traffic traffic;
    traffic.gatheredBytes = traffic.gradientBytes = 100;
    traffic.gather = traffic.reduction = {0, 10000};
    program.traffic.push_back(traffic);
    add(Phase::Forward, i, nobody);
  }
  for (uint32_t i : {2, 1, 0})
    add(Phase::Backward, i, i);
  model.programs = {program};
  return model;
}

TEST(Baselines, HaveTheirTimesAndMemory) {
  StepModel model = makeChain();
  ASSERT_EQ(check(model), "");
  auto price = [&](Policy policy, bool keep) {
    Outcome outcome = evaluate(model, makeBaseline(model, policy, keep, false));
    return std::make_pair(outcome.time, outcome.peakBytes);
  };
  // Six gathers, six computations, three reductions; while a reduction is
  // waited for, the next gather runs.
  EXPECT_EQ(price(Policy::NoOverlap, false), std::make_pair(130l, 200l));
  // One gather, six computations, and one reduction after the last; h.2 cannot
  // be gathered again before its forward has ended. At the backward of h.1, it
  // and h.0 are there, and two gradients.
  EXPECT_EQ(price(Policy::ManualBlock, false), std::make_pair(90l, 400l));
  EXPECT_EQ(price(Policy::ManualBlock, true), std::make_pair(80l, 400l));
}

TEST(Baselines, LaunchAsFarAheadAsTheyDo) {
  StepModel model = makeChain();
  auto getAhead = [&](Policy policy, uint32_t unit, Phase phase) {
    return makeBaseline(model, policy, false, false)
        .programs[0]
        .units[unit][phase]
        .ahead;
  };
  for (Policy policy : {Policy::Fsdp1, Policy::ManualBlock})
    EXPECT_EQ(getAhead(policy, 2, Phase::Forward), 1);
  EXPECT_EQ(getAhead(Policy::Fsdp2, 2, Phase::Forward), 2);
  EXPECT_EQ(getAhead(Policy::Fsdp2, 0, Phase::Backward), 1);
  EXPECT_EQ(getAhead(Policy::NoOverlap, 0, Phase::Backward), 0);
}

TEST(Baselines, IssueOneCallForEachModule) {
  StepModel model = makeTransformer(llama7B);
  for (bool recompute : {false, true}) {
    Decisions decisions = makeBaseline(model, Policy::Fsdp1, false, recompute);
    Evaluator evaluator(model, 0);
    evaluator.evaluate(decisions.programs[0], decisions.resident);
    size_t computations = model.programs[0].ops.size() -
                          (recompute ? 0 : 8 * model.modules.size());
    // Each block thrice, and the root's two units gathered and reduced once.
    EXPECT_EQ(evaluator.getNumEvents() - computations,
              3 * model.modules.size() + 4);
  }
}

} // namespace
