//===- BaselinesTest.cpp - What others decide -----------------------------===//

#include "fsdp/Planner/Baselines.h"

#include "StepModels.h"
#include "Transformers.h"
#include "fsdp/Planner/Evaluator.h"
#include "fsdp/Planner/Placement.h"

#include <gtest/gtest.h>

#include <algorithm>

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
  auto price = [&](Policy policy, Keep keep) {
    Outcome outcome =
        evaluate(model, makeBaseline(model, policy, keep, Recompute::None));
    return std::make_pair(outcome.time, outcome.peakBytes);
  };
  // Six gathers, six computations, three reductions; while a reduction is
  // waited for, the next gather runs.
  EXPECT_EQ(price(Policy::NoOverlap, Keep::None), std::make_pair(130l, 200l));
  // One gather, six computations, and one reduction after the last; h.2 cannot
  // be gathered again before its forward has ended. At the backward of h.1, it
  // and h.0 are there, and two gradients.
  EXPECT_EQ(price(Policy::ManualBlock, Keep::None), std::make_pair(90l, 400l));
  EXPECT_EQ(price(Policy::ManualBlock, Keep::All), std::make_pair(80l, 400l));
}

TEST(Baselines, LaunchAsFarAheadAsTheyDo) {
  StepModel model = makeChain();
  auto getAhead = [&](Policy policy, uint32_t unit, Phase phase) {
    return makeBaseline(model, policy, Keep::None, Recompute::None)
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
  for (Recompute recompute :
       {Recompute::None, Recompute::All, Recompute::Cheap}) {
    Decisions decisions =
        makeBaseline(model, Policy::Fsdp1, Keep::None, recompute);
    Evaluator evaluator(model, 0);
    evaluator.evaluate(decisions.programs[0], decisions.resident);
    const std::vector<ComputeOp> &ops = model.programs[0].ops;
    auto computations =
        size_t(std::count_if(ops.begin(), ops.end(), [&](const ComputeOp &op) {
          return isThere(op, decisions.programs[0].recompute);
        }));
    // Each block thrice, and the root's two units gathered and reduced once.
    EXPECT_EQ(evaluator.getNumEvents() - computations,
              3 * model.modules.size() + 4);
  }
}

/// Steps with room for what is kept, and for what is launched early.
std::vector<StepModel> makeSteps() {
  std::vector<StepModel> steps;
  for (const Shape &shape : {gpt2, llama7B, slow7B})
    for (double part : {0.0, 0.3, 1.0}) {
      StepModel model = makeTransformer(shape);
      int64_t most = evaluate(model, makeBaseline(model, Policy::Fsdp2,
                                                  Keep::All, Recompute::None))
                         .peakBytes;
      int64_t least = evaluate(model, makeBaseline(model, Policy::NoOverlap,
                                                   Keep::None, Recompute::All))
                          .peakBytes;
      model.budget = least + int64_t(part * double(most - least));
      steps.push_back(std::move(model));
    }
  return steps;
}

int64_t sumBytes(const StepModel &model, const std::vector<uint32_t> &units) {
  int64_t bytes = 0;
  for (uint32_t unit : units)
    bytes += model.programs[0].traffic[unit].gatheredBytes;
  return bytes;
}

// Of what is launched and not yet used, at each launch: bytes, and calls.
TEST(Baselines, KeepToWhatTheyLetFly) {
  for (const StepModel &model : makeSteps())
    for (const Baseline &baseline : makeBaselines(model)) {
      SCOPED_TRACE(baseline.name);
      Placement placement = place(model, 0, baseline.decisions);
      for (size_t i = 0; i != placement.gathers.size(); ++i) {
        const Placement::Call &own = placement.gathers[i];
        int64_t bytes = sumBytes(model, own.units), calls = 1;
        for (size_t j = i; j-- != 0 && placement.gathers[j].wait > own.launch;
             ++calls)
          bytes += sumBytes(model, placement.gathers[j].units);
        bool isAlone = own.launch == own.wait;
        switch (baseline.policy) {
        case Policy::NoOverlap:
        case Policy::DeepCompileS:
          EXPECT_TRUE(isAlone);
          break;
        case Policy::XlaLhs:
          EXPECT_EQ(calls, 1);
          break;
        case Policy::Inductor:
          EXPECT_TRUE(isAlone || bytes <= 2'000'000'000);
          break;
        case Policy::DeepCompileP:
        case Policy::DeepCompilePS:
          EXPECT_TRUE(isAlone || bytes <= 4'000'000'000);
          break;
        default: // a launch at the start of the call before
          EXPECT_LE(calls, baseline.policy == Policy::Fsdp2 ? 2 : 1);
        }
      }
    }
}

// Whoever looks at memory fits where a plan with nothing ahead does.
TEST(Baselines, KeepToTheirBudgets) {
  for (const StepModel &model : makeSteps()) {
    auto findPeak = [&](Policy policy, Recompute recompute) {
      return evaluate(model, makeBaseline(model, policy, Keep::None, recompute))
          .peakBytes;
    };
    EXPECT_LE(findPeak(Policy::XlaLhs, Recompute::All), model.budget);
    if (findPeak(Policy::ManualBlock, Recompute::All) <= model.budget) {
      EXPECT_LE(findPeak(Policy::TorchtitanMemory, Recompute::None),
                model.budget);
    }
    int64_t most = model.budget - model.budget / 10;
    for (Recompute recompute :
         {Recompute::None, Recompute::All, Recompute::Cheap}) {
      int64_t bare = findPeak(Policy::NoOverlap, recompute);
      EXPECT_LE(findPeak(Policy::Inductor, recompute),
                bare + 500'000'000 + (int64_t(1) << 30));
      if (bare > most - 1'000'000'000) // calls may be larger than modules
        continue;
      for (Policy policy :
           {Policy::DeepCompileP, Policy::DeepCompileS, Policy::DeepCompilePS})
        EXPECT_LE(findPeak(policy, recompute), most);
    }
  }
}

// A module less that is recomputed as much does not fit, nor does a unit more
// that is kept.
TEST(Baselines, TakeWhatFits) {
  for (const StepModel &model : makeSteps()) {
    Decisions titan = makeBaseline(model, Policy::TorchtitanMemory, Keep::None,
                                   Recompute::None);
    std::vector<Recompute> &recompute = titan.programs[0].recompute;
    // What is cheap is worth more, and all modules are alike.
    auto last = std::find(recompute.rbegin(), recompute.rend(), Recompute::All);
    bool isAll = last != recompute.rend();
    if (!isAll)
      last = std::find(recompute.rbegin(), recompute.rend(), Recompute::Cheap);
    if (evaluate(model, titan).peakBytes <= model.budget &&
        last != recompute.rend()) {
      *last = isAll ? Recompute::Cheap : Recompute::None;
      applyPolicy(model, 0, Policy::TorchtitanMemory, titan.programs[0],
                  titan.resident);
      EXPECT_GT(evaluate(model, titan).peakBytes, model.budget);
    }
    Decisions kept =
        makeBaseline(model, Policy::DeepCompileS, Keep::None, Recompute::All);
    double least = 1e9, most = 0; // of time saved for each byte
    for (uint32_t unit = 0; unit != model.units.size(); ++unit) {
      const Traffic &own = model.programs[0].traffic[unit];
      double worth =
          double(own.gather.getDuration()) / double(own.gatheredBytes);
      if (kept.programs[0].units[unit].keep == Keep::All)
        least = std::min(least, worth);
      else if (model.units[unit].name != "embed") // not of the backward
        most = std::max(most, worth);
    }
    EXPECT_GE(least, most);
  }
}

// Two modules' gradients at most: one that is made, and one that is reduced.
TEST(Baselines, OfMegatronHaveTwoBuffers) {
  StepModel model = makeTransformer(llama7B, /*hasUnitPerBlock=*/true);
  Decisions decisions =
      makeBaseline(model, Policy::Megatron, Keep::None, Recompute::All);
  Placement placement = place(model, 0, decisions);
  Decisions before =
      makeBaseline(model, Policy::ManualBlock, Keep::None, Recompute::All);
  Placement other = place(model, 0, before);
  ASSERT_EQ(placement.reductions.size(), other.reductions.size());
  size_t later = 0;
  for (size_t i = 0; i + 2 < placement.reductions.size(); ++i) {
    uint32_t wait = placement.reductions[i].wait;
    EXPECT_GE(wait, other.reductions[i].wait);
    later += wait > other.reductions[i].wait;
    // Nothing of the next but one is made yet.
    uint32_t unit = placement.reductions[i + 2].units[0];
    for (uint32_t place = 0; place != wait; ++place)
      EXPECT_NE(model.programs[0].ops[placement.ops[place]].gradient, unit);
  }
  EXPECT_GT(later, 20u);
}

} // namespace
