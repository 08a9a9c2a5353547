//===- Search.cpp - Decisions of a step -----------------------------------===//
//
// Which units are resident ties programs together; everything else is searched
// program by program. Sets of resident units are compared by a short search,
// and the best of them is searched to the end.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Search.h"

#include "ProgramSearch.h"
#include "fsdp/Planner/Baselines.h"

#include <algorithm>
#include <limits>
#include <tuple>

using namespace fsdp::planner;

namespace {

/// One set of resident units, and all programs.
struct Candidate {
  std::vector<uint8_t> resident;
  std::vector<std::unique_ptr<ProgramSearch>> programs;

  bool isFeasible() const {
    for (const auto &program : programs)
      if (!program->isFeasible())
        return false;
    return true;
  }
  /// As predicted, the fastest start with these resident units, each program
  /// for itself; the most that there is, if one has none.
  int64_t getSlowest(const StepModel &model) const {
    constexpr int64_t none = std::numeric_limits<int64_t>::max();
    int64_t time = 0;
    for (size_t p = 0; p != programs.size(); ++p) {
      if (programs[p]->getSlowest() == none)
        return none;
      time += model.programs[p].count * programs[p]->getSlowest();
    }
    return time;
  }
  SearchAnswer getAnswer(const StepModel &model) const {
    SearchAnswer answer;
    answer.isFeasible = isFeasible();
    answer.decisions.resident = resident;
    answer.outcome.peakBytes = model.persistentBytes;
    for (size_t p = 0; p != programs.size(); ++p) {
      answer.decisions.programs.push_back(programs[p]->getDecisions());
      const Outcome &own = programs[p]->getOutcome();
      answer.outcome.time += model.programs[p].count * own.time;
      answer.outcome.meanTime += model.programs[p].count * own.meanTime;
      answer.outcome.peakBytes =
          std::max(answer.outcome.peakBytes, own.peakBytes);
    }
    return answer;
  }
};

/// Feasible before not; then the fastest, or the leanest. As predicted, none
/// that is faster than `slowest` is worse than one that is not.
bool isBetter(const SearchAnswer &a, const SearchAnswer &b, int64_t slowest) {
  if (a.isFeasible != b.isFeasible)
    return a.isFeasible;
  auto key = [&](const SearchAnswer &answer) {
    const Outcome &own = answer.outcome;
    return answer.isFeasible
               ? std::make_tuple(std::max<int64_t>(own.time - slowest, 0),
                                 own.meanTime, own.peakBytes)
               : std::make_tuple(own.peakBytes, own.time, int64_t(0));
  };
  return key(a) < key(b);
}

class StepSearch {
public:
  StepSearch(const StepModel &model, const SearchOptions &options)
      : model(model), options(options), meter(options) {
    meter.findTime = [this]() -> int64_t {
      if (candidates.empty())
        return 0;
      SearchAnswer answer = candidates[best].getAnswer(this->model);
      return answer.isFeasible ? answer.outcome.time : 0;
    };
  }

  SearchAnswer run();

private:
  std::vector<std::vector<uint8_t>> listResidents() const;
  void begin(Candidate &candidate);
  void finish(Candidate &candidate);
  bool has(SearchStage stage) const { return options.stages & stage; }
  void note(const char *stage) {
    meter.stage = stage;
    meter.report();
  }

  const StepModel &model;
  const SearchOptions &options;
  EvaluationMeter meter;
  std::vector<Decisions> starts;
  std::vector<Candidate> candidates;
  size_t best = 0;                                       ///< Of these.
  int64_t slowest = std::numeric_limits<int64_t>::max(); ///< See `isBetter`.
};

} // namespace

/// None, those of the starts, and parts of all, from the front and the back;
/// every set, if they are few.
std::vector<std::vector<uint8_t>> StepSearch::listResidents() const {
  size_t count = model.units.size();
  std::vector<std::vector<uint8_t>> sets = {std::vector<uint8_t>(count, false)};
  for (const Decisions &start : starts)
    sets.push_back(start.resident);
  bool mayStay = std::any_of(model.programs.begin(), model.programs.end(),
                             [](const Program &program) {
                               return program.role != Program::Role::Whole;
                             });
  if (mayStay && count <= mostExactUnits) {
    for (size_t bits = 1; bits != size_t(1) << count; ++bits) {
      sets.emplace_back(count, false);
      for (size_t i = 0; i != count; ++i)
        sets.back()[i] = bits >> i & 1;
    }
  } else if (mayStay) {
    constexpr size_t parts = 8;
    for (size_t part = 1; part <= parts; ++part)
      for (bool isFront : {true, false}) {
        sets.emplace_back(count, false);
        size_t chosen = count * part / parts;
        std::fill_n(sets.back().begin() + (isFront ? 0 : count - chosen),
                    chosen, true);
      }
  }
  std::vector<std::vector<uint8_t>> unique;
  for (std::vector<uint8_t> &set : sets)
    if (std::find(unique.begin(), unique.end(), set) == unique.end())
      unique.push_back(std::move(set));
  return unique;
}

void StepSearch::begin(Candidate &candidate) {
  for (size_t p = 0; p != model.programs.size(); ++p) {
    auto program =
        std::make_unique<ProgramSearch>(model, p, candidate.resident, meter);
    for (const Decisions &start : starts)
      program->start(start.programs[p]);
    for (const Decisions &start : options.starts)
      program->startNear(start.programs[p]);
    program->startLean();
    candidate.programs.push_back(std::move(program));
  }
}

void StepSearch::finish(Candidate &candidate) {
  if (candidate.getSlowest(model) > slowest)
    for (auto &program : candidate.programs)
      program->keepTime();
  note("sizes");
  for (auto &program : candidate.programs) {
    if (has(SizesStage))
      program->searchSizes();
    if (has(CountsStage))
      program->searchCounts();
  }
  // In equal parts of what is left. Where all are few, small changes come first
  // and last: a better answer lets bounds reject more of all there are, and
  // afterwards launches may move.
  constexpr int64_t mostBeforeAll = 8000, mostAfterAll = 4000;
  size_t count = candidate.programs.size();
  auto searchNearby = [&](size_t p, int64_t most) {
    int64_t part = (options.evaluations - meter.count) / int64_t(count - p);
    if (has(NearbyStage))
      candidate.programs[p]->searchNearby(std::min(part, most), options.seed);
  };
  std::vector<bool> isExact(count, false);
  note("all");
  for (size_t p = 0; p != count; ++p)
    if (has(AllStage) && candidate.programs[p]->isSmall()) {
      searchNearby(p, mostBeforeAll);
      isExact[p] = candidate.programs[p]->searchAll();
    }
  note("nearby");
  for (size_t p = 0; p != count; ++p)
    searchNearby(p, isExact[p] ? mostAfterAll : options.evaluations);
}

SearchAnswer StepSearch::run() {
  if (has(StartsStage))
    for (Baseline &baseline : makeBaselines(model))
      starts.push_back(std::move(baseline.decisions));
  starts.insert(starts.end(), options.starts.begin(), options.starts.end());

  for (std::vector<uint8_t> &resident : listResidents()) {
    Candidate candidate = {std::move(resident), {}};
    begin(candidate);
    candidates.push_back(std::move(candidate));
    slowest = std::min(slowest, candidates.back().getSlowest(model));
    if (isBetter(candidates.back().getAnswer(model),
                 candidates[best].getAnswer(model), slowest))
      best = candidates.size() - 1;
    note("starts");
  }
  if (candidates[best].isFeasible())
    finish(candidates[best]);
  SearchAnswer answer = candidates[best].getAnswer(model);
  answer.bound = findBound(model);
  answer.evaluations = meter.count;
  note("end");
  return answer;
}

SearchOptions fsdp::planner::makeSearchOptions(int64_t evaluations,
                                               bool robust) {
  SearchOptions options;
  options.evaluations = evaluations;
  if (robust)
    options.scenarios = getRobustScenarios();
  return options;
}

SearchOptions fsdp::planner::makeShort(SearchOptions options, Decisions start) {
  options.evaluations /= 4;
  options.stages &= ~unsigned(SizesStage | CountsStage);
  options.starts = {std::move(start)};
  return options;
}

SearchAnswer fsdp::planner::search(const StepModel &model,
                                   const SearchOptions &options) {
  return StepSearch(model, options).run();
}
