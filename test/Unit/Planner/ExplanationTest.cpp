//===- ExplanationTest.cpp - How good decisions are -----------------------===//

#include "fsdp/Planner/Explanation.h"

#include "StepModels.h"
#include "Transformers.h"
#include "fsdp/Planner/Baselines.h"

#include <gtest/gtest.h>

using namespace fsdp::planner;
using namespace fsdp::planner::test;

namespace {

// Whatever is decided: deviations cost what they are, memory stays, more memory
// is never a loss, and the best baseline is one that fits.
TEST(Explanation, HoldsOfRandomSteps) {
  Random random(1);
  for (int i = 0; i != 60; ++i) {
    StepModel model = makeRandomModel(random, 4, i % 3 == 0);
    for (Program &program : model.programs)
      for (ComputeOp &op : program.ops)
        op.duration *= 1000; // so that percents are not rounded away
    SearchOptions options;
    options.evaluations = 400;
    SearchAnswer answer = search(model, options);
    ASSERT_TRUE(answer.isFeasible);
    EXPECT_FALSE(explain(model, answer.decisions, options).price);
    model.budget = answer.outcome.peakBytes;
    Explanation explanation = explain(model, answer.decisions, options);
    ASSERT_EQ(explanation.scenarios.size(), 3u);
    for (const Explanation::Point &point : explanation.scenarios)
      EXPECT_EQ(point.outcome.peakBytes, answer.outcome.peakBytes);
    EXPECT_GE(explanation.scenarios[0].outcome.time, answer.outcome.time);
    EXPECT_GE(explanation.scenarios[1].outcome.time, answer.outcome.time);
    EXPECT_LE(explanation.scenarios[2].outcome.time, answer.outcome.time);
    // Decisions for the prediction alone are no slower where it comes true, and
    // are said only beside those that were searched for more.
    EXPECT_TRUE(explanation.nominal.empty());
    options.scenarios = getRobustScenarios();
    SearchAnswer robust = search(model, options);
    auto nominal = explain(model, robust.decisions, options).nominal;
    ASSERT_EQ(nominal.size(), 4u);
    EXPECT_LE(nominal[0].outcome.time, robust.outcome.time);
    ASSERT_TRUE(explanation.price);
    EXPECT_LE(explanation.price->time, answer.outcome.time);
    EXPECT_GE(explanation.price->bound, 0);
    EXPECT_EQ(explanation.price->changes.empty(),
              explanation.price->time == answer.outcome.time);
    if (auto *best = explanation.findBestBaseline(model.budget)) {
      EXPECT_LE(best->outcome.peakBytes, model.budget);
      for (const Explanation::Point &other : explanation.baselines)
        EXPECT_TRUE(other.outcome.peakBytes > model.budget ||
                    other.outcome.time >= best->outcome.time);
    }
  }
}

TEST(Explanation, SaysWhatIsDecidedOtherwise) {
  using Change = Explanation::Change;
  StepModel model = makeTransformer(gpt2);
  Decisions before = makeDecisions(model), after = before;
  EXPECT_TRUE(findChanges(model, before, after).empty());
  before.programs[0].recompute[2] = after.programs[0].recompute[3] =
      Recompute::All;
  after.programs[0].recompute[4] = Recompute::Cheap;
  after.programs[0].units[5].keep = Keep::All;
  after.programs[0].units[6].reduction.joins = true;
  after.programs[0].units[7][Phase::Backward].ahead = 1;
  std::vector<std::pair<Change::Kind, std::string>> found;
  for (const Change &change : findChanges(model, before, after)) {
    ASSERT_EQ(change.names.size(), 1u);
    found.emplace_back(change.kind, change.names[0]);
  }
  EXPECT_EQ(found, (std::vector<std::pair<Change::Kind, std::string>>{
                       {Change::Kind::NotRecomputed, model.modules[2]},
                       {Change::Kind::CheapRecomputed, model.modules[4]},
                       {Change::Kind::Recomputed, model.modules[3]},
                       {Change::Kind::Kept, model.units[5].name},
                       {Change::Kind::Calls, model.units[6].name},
                       {Change::Kind::Places, model.units[7].name}}));
  EXPECT_EQ(findChanges(model, after, before)[2].kind, Change::Kind::NotKept);
}

TEST(Explanation, NamesBaselines) {
  StepModel model = makeTransformer(gpt2);
  SearchOptions options;
  options.evaluations = 10;
  auto baselines = explain(model, makeDecisions(model), options).baselines;
  ASSERT_EQ(baselines.size(), 56u);
  EXPECT_EQ(baselines[0].name, "no-overlap");
  EXPECT_EQ(baselines[10].name, "fsdp1, all kept, all recomputed");
  EXPECT_EQ(baselines[11].name, "fsdp1, all kept, cheap recomputed");
  EXPECT_EQ(baselines[54].name, "torchtitan-memory");
  model.budget = baselines[1].outcome.peakBytes;
  auto policies = explain(model, makeDecisions(model), options).policies;
  ASSERT_EQ(policies.size(), std::size(allPolicies));
  EXPECT_EQ(policies[0].name, "no-overlap, all recomputed");
}

} // namespace
