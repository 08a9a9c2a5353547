//===- Explanation.cpp - How good decisions are ---------------------------===//

#include "fsdp/Planner/Explanation.h"

#include "fsdp/Planner/Baselines.h"

#include <algorithm>
#include <cmath>
#include <tuple>

using namespace fsdp::planner;
using Point = Explanation::Point;

/// The same step where what is sent, and what is computed, takes so many times
/// as long.
static StepModel scaleTimes(StepModel model, double network, double compute) {
  auto scale = [](int64_t &time, double factor) {
    time = std::llround(double(time) * factor);
  };
  for (Program &program : model.programs) {
    for (Traffic &row : program.traffic)
      for (CollectiveCost *cost : {&row.gather, &row.reduction, &row.allReduce})
        scale(cost->transfer, network);
    for (ComputeOp &op : program.ops)
      scale(op.duration, compute);
  }
  return model;
}

static std::vector<Point> evaluateScenarios(const StepModel &model,
                                            const Decisions &decisions) {
  auto evaluateAt = [&](double network, double compute) {
    return evaluate(scaleTimes(model, network, compute), decisions);
  };
  return {{"a network of 20 % less bandwidth", evaluateAt(1 / 0.8, 1)},
          {"computations that take 10 % longer", evaluateAt(1, 1.1)},
          {"computations that take 10 % less", evaluateAt(1, 0.9)}};
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

/// A gibibyte more, or a tenth of the budget if that is less.
static Explanation::Price findPrice(StepModel model, const Decisions &decisions,
                                    SearchOptions options) {
  constexpr int64_t most = int64_t(1) << 30;
  Explanation::Price price;
  price.more = std::min(most, model.budget / 10);
  model.budget += price.more;
  options.evaluations /= 4;
  options.starts = {decisions};
  price.time = search(model, options).outcome.time;
  return price;
}

Explanation fsdp::planner::explain(const StepModel &model,
                                   const Decisions &decisions,
                                   const SearchOptions &options) {
  Explanation explanation;
  evaluateBaselines(model, explanation);
  explanation.scenarios = evaluateScenarios(model, decisions);
  if (model.budget != StepModel().budget)
    explanation.price = findPrice(model, decisions, options);
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
