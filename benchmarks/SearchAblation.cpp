//===- SearchAblation.cpp - What each stage of the search is worth --------===//
//
// Searches steps with all stages, and with each of them left out, with the same
// number of evaluations; and says by how much the answer is slower then, in
// percent. The last rows are the mean of random steps of few units, and of
// many.
//
//   cmake --preset gcc -DFSDP_BUILD_BENCHMARKS=ON
//   cmake --build --preset gcc --target SearchAblation
//   build/gcc/bin/SearchAblation [EVALUATIONS]
//
//===----------------------------------------------------------------------===//
#include "Planner/StepModels.h"
#include "Planner/Transformers.h"

#include "fsdp/Planner/Baselines.h"
#include "fsdp/Planner/Search.h"

#include <cstdio>
#include <cstdlib>

using namespace fsdp::planner;
using namespace fsdp::planner::test;

namespace {

struct Variant {
  const char *name;
  unsigned stages;
};
constexpr Variant variants[] = {
    {"starts", allSearchStages & ~StartsStage},
    {"sizes", allSearchStages & ~SizesStage},
    {"counts", allSearchStages & ~CountsStage},
    {"all", allSearchStages & ~AllStage},
    {"nearby", allSearchStages & ~NearbyStage},
};

/// Steps on which the search was not chosen.
constexpr Shape others[] = {
    {"8 experts, 64 ranks", 32, 4096, 4 * 14336, 1024, 32000, 4096, 64},
    {"7B, f32 reduction", 32, 4096, 11008, 4096, 32000, 2048, 64, true, 4},
    {"13B, 90 GB/s", 40, 5120, 13824, 5120, 32000, 4096, 128, true, 2, 90},
};

/// Nanoseconds; 0 if nothing fits.
int64_t searchWith(const StepModel &model, unsigned stages,
                   int64_t evaluations) {
  SearchOptions options;
  options.stages = stages;
  options.evaluations = evaluations;
  SearchAnswer answer = search(model, options);
  return answer.isFeasible ? answer.outcome.time : 0;
}

double getLoss(int64_t time, int64_t best) {
  return 100 * (double(time) / double(best) - 1);
}

/// From the smallest budget that is known to work to that of all that is kept.
std::pair<int64_t, int64_t> findBudgets(StepModel model) {
  model.budget = 0;
  return {search(model).outcome.peakBytes,
          evaluate(model, makeBaseline(model, Policy::Fsdp2, Keep::All,
                                       Recompute::None))
              .peakBytes};
}

void printShape(const Shape &shape, int64_t evaluations) {
  StepModel model = makeTransformer(shape);
  auto [least, most] = findBudgets(model);
  for (double part : {0.0, 0.1, 0.3, 0.6, 1.0}) {
    model.budget = least + int64_t(part * double(most - least));
    int64_t best = searchWith(model, allSearchStages, evaluations);
    std::printf("| %s, %.1f GB | %.2f |", shape.name,
                double(model.budget) / 1e9, double(best) / 1e6);
    for (const Variant &variant : variants) {
      int64_t time = searchWith(model, variant.stages, evaluations);
      if (time)
        std::printf(" %.2f |", getLoss(time, best));
      else
        std::printf(" none |");
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

/// The mean of the losses, and how many there are.
void printRandom(const char *name, int64_t mostUnits, int64_t evaluations) {
  constexpr int count = 50;
  std::printf("| %s | |", name);
  for (const Variant &variant : variants) {
    Random random(11);
    double sum = 0;
    int losses = 0;
    for (int i = 0; i != count; ++i) {
      StepModel model = makeRandomModel(random, mostUnits);
      auto [least, most] = findBudgets(model);
      model.budget = random.get(least, std::max(least, most));
      int64_t best = searchWith(model, allSearchStages, evaluations);
      int64_t time = searchWith(model, variant.stages, evaluations);
      sum += time ? getLoss(time, best) : 100;
      losses += !time || time > best;
    }
    std::printf(" %.2f, in %d |", sum / count, losses);
    std::fflush(stdout);
  }
  std::printf("\n");
}

} // namespace

int main(int argc, char **argv) {
  int64_t evaluations = argc > 1 ? std::atoll(argv[1]) : 20000;
  if (evaluations < 1) {
    std::fprintf(stderr,
                 "SearchAblation: expected a number of evaluations, "
                 "found '%s'\n",
                 argv[1]);
    return 1;
  }
  std::printf("| step | all stages, ms |");
  for (const Variant &variant : variants)
    std::printf(" without %s, %% |", variant.name);
  std::printf("\n|---|---|---|---|---|---|---|\n");
  for (const Shape &shape : {gpt2, llama7B, slow7B, llama70B, llama405B})
    printShape(shape, evaluations);
  for (const Shape &shape : others)
    printShape(shape, evaluations);
  printRandom("50 random, up to 5 units", mostExactUnits, evaluations);
  printRandom("50 random, up to 16 units", 16, evaluations);
  return 0;
}
