//===- Explanation.cpp - How good decisions are ---------------------------===//

#include "fsdp/Planner/Explanation.h"

#include "fsdp/Planner/Baselines.h"

#include <algorithm>
#include <future>
#include <tuple>

using namespace fsdp::planner;
using Point = Explanation::Point;

static std::vector<Point> evaluateScenarios(const StepModel &model,
                                            const Decisions &decisions) {
  std::vector<Scenario> others = getRobustScenarios();
  others.erase(others.begin()); // the prediction
  others.push_back({"computations that take 10 % less", 1, 0.9});
  std::vector<Point> points;
  for (const Scenario &scenario : others)
    points.push_back({scenario.name, evaluate(model, decisions, {scenario})});
  return points;
}

/// What decisions for the prediction alone take, from those that there are.
static std::vector<Point> evaluateNominal(const StepModel &model,
                                          const Decisions &decisions,
                                          SearchOptions options) {
  options.scenarios = {Scenario()};
  options.others.clear();
  SearchAnswer answer = search(model, makeShort(options, decisions));
  std::vector<Point> points = evaluateScenarios(model, answer.decisions);
  points.insert(points.begin(), {"as predicted", answer.outcome});
  return points;
}

static void evaluateBaselines(const StepModel &model,
                              Explanation &explanation) {
  auto getKey = [&](const Point &point) {
    bool fits = point.outcome.peakBytes <= model.budget;
    return std::make_pair(!fits,
                          fits ? point.outcome.time : point.outcome.peakBytes);
  };
  std::optional<Policy> last;
  for (const Baseline &baseline : makeBaselines(model)) {
    Point point = {baseline.name, evaluate(model, baseline.decisions)};
    explanation.baselines.push_back(point);
    if (last != baseline.policy)
      explanation.policies.push_back(point);
    else if (getKey(point) < getKey(explanation.policies.back()))
      explanation.policies.back() = point;
    last = baseline.policy;
  }
}

Explanation fsdp::planner::explain(const StepModel &model,
                                   const Decisions &decisions,
                                   SearchOptions options) {
  options.stages &= ~unsigned(TrimStage); // only times are asked for
  Explanation explanation;
  auto pricing = std::async(std::launch::async, [&] {
    return model.budget == StepModel().budget
               ? std::nullopt
               : std::optional(findPrice(model, decisions, options));
  });
  evaluateBaselines(model, explanation);
  explanation.scenarios = evaluateScenarios(model, decisions);
  if (options.scenarios.size() > 1)
    explanation.nominal = evaluateNominal(model, decisions, options);
  explanation.price = pricing.get();
  return explanation;
}

const Point *Explanation::findBestBaseline(int64_t budget) const {
  auto getKey = [](const Point &point) {
    return std::make_tuple(point.outcome.time, point.outcome.peakBytes);
  };
  const Point *best = nullptr;
  for (const Point &point : baselines)
    if (point.outcome.peakBytes <= budget &&
        (!best || getKey(point) < getKey(*best)))
      best = &point;
  return best;
}
