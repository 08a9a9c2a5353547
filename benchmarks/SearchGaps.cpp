//===- SearchGaps.cpp - How far answers are from the best -----------------===//
//
// Searches the steps of well-known models on the machines of hardware/, at six
// budgets from the smallest that is known to work to that of all that is kept,
// and prints each answer beside its bound and the best known policy; then the
// median gap, how many are within 2 %, and where a policy is better: nowhere.
// The same decisions are compared with all policies elsewhere, too: with 20 %
// less and more bandwidth, and with a contention of 0.05 and 0.40.
//
//   cmake --preset gcc -DFSDP_BUILD_BENCHMARKS=ON
//   cmake --build --preset gcc --target SearchGaps
//   build/gcc/bin/SearchGaps [EVALUATIONS]
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Baselines.h"
#include "fsdp/Planner/Search.h"
#include "fsdp/Planner/Transformer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

using namespace fsdp::planner;

namespace {

struct Case {
  const char *name;
  Transformer shape;
  int64_t ranks, sequence, batch;
  const char *hardware;
  const char *whatIf = "";
};

constexpr Transformer gpt2Small = {12, 768, 3072, 12, 12, 50304, false, true};
constexpr Transformer gpt2XL = {48, 1600, 6400, 25, 25, 50304, false, true};
constexpr Transformer llama1B = {16, 2048, 8192, 32, 8, 128256, true, true};
constexpr Transformer llama7B = {32, 4096, 11008, 32, 32, 32000, true, false};
constexpr Transformer llama70B = {80, 8192, 28672, 64, 8, 128256, true, false};
constexpr Transformer llama405B = {126, 16384,  53248, 128,
                                   8,   128256, true,  false};
/// Eight experts, of which all compute.
constexpr Transformer experts = {32, 4096,  8 * 14336, 32,
                                 8,  32000, true,      false};

const Case cases[] = {
    {"GPT-2, 8", gpt2Small, 8, 1024, 16, "a100-40"},
    {"GPT-2 XL, 16", gpt2XL, 16, 1024, 4, "a100-40"},
    {"Llama 1B, 8", llama1B, 8, 4096, 1, "h100"},
    {"7B, 64", llama7B, 64, 4096, 1, "h100"},
    {"7B, 64", llama7B, 64, 4096, 1, "a100-80"},
    {"7B, 64, an eighth of the network", llama7B, 64, 4096, 1, "h100",
     "link.network.gbytes=0.125x"},
    {"70B, 256", llama70B, 256, 4096, 1, "h100"},
    {"70B, 144", llama70B, 144, 8192, 1, "gb200-nvl72"},
    {"70B, 128", llama70B, 128, 4096, 2, "b200"},
    {"405B, 10,000", llama405B, 10000, 8192, 1, "h100"},
    {"8 experts of 7B, 64", experts, 64, 4096, 1, "h200"},
};

/// What is said at the end.
struct Summary {
  std::vector<double> gaps;
  int worse = 0, compared = 0;
};

void printCase(const Case &own, int64_t evaluations, Summary &summary) {
  auto hardware = loadHardware(own.hardware, own.whatIf);
  if (!hardware) {
    std::fprintf(stderr, "SearchGaps: %s\n", hardware.error().message.c_str());
    std::exit(1);
  }
  TrainingSetup setup;
  setup.ranks = own.ranks;
  setup.sequence = own.sequence;
  setup.batch = own.batch;
  setup.recompute = TrainingSetup::Recompute::Full;
  StepModel model = makeTransformer(own.shape, setup, *hardware);
  model.budget = 0;
  int64_t least = search(model).outcome.peakBytes;
  std::vector<Baseline> policies = makeBaselines(model);
  int64_t most = least;
  for (const Baseline &policy : policies)
    if (policy.name == "fsdp1, all kept")
      most = evaluate(model, policy.decisions).peakBytes;
  for (double part : {0.0, 0.05, 0.15, 0.35, 0.65, 1.0}) {
    model.budget = least + int64_t(part * double(most - least));
    SearchOptions options = makeSearchOptions(evaluations, /*isRobust=*/true);
    std::clock_t start = std::clock();
    SearchAnswer answer = search(model, options);
    double took = double(std::clock() - start) / CLOCKS_PER_SEC;
    const Baseline *best = nullptr;
    int64_t bestTime = 0;
    for (const Baseline &policy : policies)
      if (Outcome found = evaluate(model, policy.decisions);
          found.peakBytes <= model.budget && (!best || found.time < bestTime)) {
        best = &policy;
        bestTime = found.time;
      }
    bool isWorse = best && answer.outcome.time > bestTime;
    for (const Scenario &there : getOtherScenarios()) {
      summary.compared += best != nullptr;
      int64_t time = evaluate(model, answer.decisions, {there}).time;
      for (const Baseline &policy : policies)
        if (Outcome found = evaluate(model, policy.decisions, {there});
            found.peakBytes <= model.budget)
          isWorse |= time > found.time;
    }
    summary.gaps.push_back(100 * answer.getGap());
    summary.worse += isWorse;
    std::printf(
        "| %s | %s | %.2f | %s | %.2f | %.2f (%s) | %.2f | %.1f |%s\n",
        own.name, own.hardware, double(model.budget) / (1 << 30),
        best ? (best->name + ": " + std::to_string(double(bestTime) / 1e6))
                   .c_str()
             : "none",
        double(answer.outcome.time) / 1e6, double(answer.bound->time) / 1e6,
        answer.bound->name, summary.gaps.back(), took, isWorse ? " worse" : "");
    std::fflush(stdout);
  }
}

} // namespace

int main(int argc, char **argv) {
  int64_t evaluations = argc > 1 ? std::atoll(argv[1]) : 20000;
  if (evaluations < 1) {
    std::fprintf(stderr,
                 "SearchGaps: expected a number of evaluations, found '%s'\n",
                 argv[1]);
    return 1;
  }
  Summary summary;
  std::printf("| step, ranks | hardware | budget, GiB | best policy, ms | "
              "searched, ms | bound, ms | gap, %% | CPU, s |\n"
              "|---|---|---|---|---|---|---|---|\n");
  for (const Case &own : cases)
    printCase(own, evaluations, summary);
  std::vector<double> &gaps = summary.gaps;
  std::sort(gaps.begin(), gaps.end());
  auto within = std::upper_bound(gaps.begin(), gaps.end(), 2.0) - gaps.begin();
  std::printf("%zu answers: median gap %.2f %%, %td within 2 %%, largest %.2f "
              "%%; a policy is better than %d, here or in one of %d "
              "comparisons elsewhere\n",
              gaps.size(), gaps[gaps.size() / 2], within, gaps.back(),
              summary.worse, summary.compared);
  return summary.worse != 0;
}
