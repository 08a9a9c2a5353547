//===- Search.cpp - Decisions of a step -----------------------------------===//
//
// Which units are resident ties programs together; everything else is searched
// program by program: first with none, then from what was found with sets of
// them, and the best of these to the end.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Search.h"

#include "ProgramSearch.h"
#include "fsdp/Planner/Baselines.h"

#include <algorithm>
#include <future>
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
               : std::make_tuple(own.peakBytes, int64_t(0), int64_t(0));
  };
  return key(a) < key(b);
}

class StepSearch {
public:
  StepSearch(const StepModel &model, const SearchOptions &options)
      : model(model), options(options), meter(options) {
    meter.findTime = [this]() -> int64_t {
      if (tried.empty())
        return 0;
      SearchAnswer answer = best.getAnswer(this->model);
      return answer.isFeasible ? answer.outcome.time : 0;
    };
  }

  SearchAnswer run();

private:
  using Units = std::vector<uint8_t>; ///< True of those in a set.

  void begin(Candidate &candidate);
  void tryResident(Units resident);
  void tryResident(size_t count, bool isFront);
  void searchResidents();
  void searchGrid(Candidate &candidate);
  void finish(Candidate &candidate, int64_t evaluations);
  void repair(Candidate &candidate, int64_t evaluations);
  bool has(SearchStage stage) const { return options.stages & stage; }
  void note(const char *stage) {
    meter.stage = stage;
    meter.report();
  }

  const StepModel &model;
  const SearchOptions &options;
  EvaluationMeter meter;
  std::vector<Baseline> baselines;
  std::vector<size_t> mayStay; ///< Units.
  std::vector<Units> tried;    ///< The sets of resident units.
  Candidate best;
  int64_t slowest = std::numeric_limits<int64_t>::max(); ///< See `isBetter`.
};

} // namespace

/// The first set from all starts; others from those that the caller gave and
/// the best set so far, with the fewest recomputed modules that fit. Units that
/// are kept to the backward compete with those that are resident.
void StepSearch::begin(Candidate &candidate) {
  bool isFirst = tried.empty();
  Decisions before = best.getAnswer(model).decisions, resharded = before;
  for (ProgramDecisions &program : resharded.programs)
    for (UnitDecision &unit : program.units)
      unit.keep = Keep::None;
  for (size_t p = 0; p != model.programs.size(); ++p) {
    auto program =
        std::make_unique<ProgramSearch>(model, p, candidate.resident, meter);
    if (isFirst)
      for (const Baseline &baseline : baselines)
        program->start(baseline.decisions.programs[p]);
    for (const Decisions &start : options.starts)
      program->start(start.programs[p]);
    for (const Decisions &start : options.starts)
      program->startNear(start.programs[p]);
    if (!isFirst) {
      program->adopt(before.programs[p]);
      program->startNear(before.programs[p]);
      program->startNear(resharded.programs[p]);
    }
    program->startLean();
    candidate.programs.push_back(std::move(program));
  }
}

void StepSearch::tryResident(Units resident) {
  if (std::find(tried.begin(), tried.end(), resident) != tried.end())
    return;
  Candidate candidate = {std::move(resident), {}};
  begin(candidate);
  slowest = std::min(slowest, candidate.getSlowest(model));
  bool isFirst = tried.empty();
  tried.push_back(candidate.resident);
  if (isFirst ||
      isBetter(candidate.getAnswer(model), best.getAnswer(model), slowest))
    best = std::move(candidate);
  note("starts");
}

/// So many of those that may stay, from the front or the back.
void StepSearch::tryResident(size_t count, bool isFront) {
  Units resident(model.units.size(), false);
  for (size_t i = 0; i != count; ++i)
    resident[mayStay[isFront ? i : mayStay.size() - 1 - i]] = true;
  tryResident(std::move(resident));
}

/// Those of the starts; every set, if they are few; otherwise parts of all, and
/// numbers nearer and nearer to that of the best.
void StepSearch::searchResidents() {
  size_t count = mayStay.size();
  for (const Decisions &start : options.starts)
    tryResident(start.resident);
  if (count <= mostExactUnits) {
    for (size_t bits = 1; bits < size_t(1) << count; ++bits) {
      Units resident(model.units.size(), false);
      for (size_t i = 0; i != count; ++i)
        resident[mayStay[i]] = bits >> i & 1;
      tryResident(std::move(resident));
    }
    return;
  }
  constexpr size_t parts = 4;
  for (size_t part = 1; part <= parts && has(CountsStage); ++part)
    for (bool isFront : {true, false})
      tryResident(count * part / parts, isFront);
  for (size_t step = (count + parts) / (2 * parts); step != 0; step /= 2) {
    auto chosen = size_t(
        std::count(best.resident.begin(), best.resident.end(), uint8_t(true)));
    for (bool isFront : {true, false}) {
      if (chosen && bool(best.resident[mayStay.front()]) != isFront)
        continue; // the other end
      tryResident(std::min(chosen + step, count), isFront);
      tryResident(chosen - std::min(step, chosen), isFront);
    }
  }
}

/// By a grid. Those of micro-batches are alike: one is searched, and the others
/// go on from what it finds.
void StepSearch::searchGrid(Candidate &candidate) {
  note("sizes");
  ProgramSearch *part = nullptr; // of a micro-batch
  for (size_t p = 0; p != model.programs.size(); ++p) {
    ProgramSearch &program = *candidate.programs[p];
    bool isPart = model.programs[p].role != Program::Role::Whole;
    if (isPart && part) {
      program.adopt(part->getDecisions());
      program.startNear(part->getDecisions());
      continue;
    }
    if (has(SizesStage))
      program.searchSizes();
    if (has(CountsStage))
      program.searchCounts();
    if (isPart)
      part = &program;
  }
}

/// With so many evaluations in all.
void StepSearch::finish(Candidate &candidate, int64_t evaluations) {
  meter.limit = evaluations;
  if (candidate.getSlowest(model) > slowest)
    for (auto &program : candidate.programs)
      program->keepTime();
  if (tried.size() == 1)
    searchGrid(candidate);
  // In equal parts of what is left. Where all are few, small changes come first
  // and last: a better answer lets bounds reject more of all there are, and
  // afterwards launches may move.
  constexpr int64_t mostBeforeAll = 8000, mostAfterAll = 4000;
  size_t count = candidate.programs.size();
  auto searchNearby = [&](size_t p, int64_t most) {
    int64_t part = (evaluations - meter.count) / int64_t(count - p);
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
    searchNearby(p, isExact[p] ? mostAfterAll : evaluations);
}

/// Where it is slower elsewhere than a baseline: with so many evaluations more.
void StepSearch::repair(Candidate &candidate, int64_t evaluations) {
  if (options.others.empty())
    return;
  note("elsewhere");
  size_t count = candidate.programs.size();
  for (size_t p = 0; p != count; ++p) {
    ProgramSearch &program = *candidate.programs[p];
    if (!program.penalize(baselines))
      continue;
    int64_t part = evaluations / int64_t(count);
    meter.limit += part;
    program.searchNearby(part, options.seed);
    for (const Baseline &baseline : baselines)
      program.start(baseline.decisions.programs[p]);
  }
}

/// Where nothing fits without resident units, nothing fits with some. They are
/// chosen beside a step that is good without, unless the caller gave one.
SearchAnswer StepSearch::run() {
  std::future<std::optional<Bound>> bound;
  if (has(BoundStage))
    bound = std::async(std::launch::async, [&] { return findBound(model); });
  if (has(StartsStage))
    baselines = makeBaselines(model);
  for (size_t i = 0; i != model.units.size(); ++i)
    if (model.units[i].residentBytes)
      mayStay.push_back(i);

  tryResident(Units(model.units.size(), false));
  if (best.isFeasible()) {
    int64_t most = options.evaluations;
    if (mayStay.empty() || options.starts.empty())
      finish(best, mayStay.empty() ? most : most / 2);
    meter.limit = most;
    if (!mayStay.empty()) {
      searchResidents();
      finish(best, most);
    }
    repair(best, most / 4);
  }
  if (has(TrimStage)) {
    note("trim");
    for (auto &program : best.programs)
      program->trim();
  }
  SearchAnswer answer = best.getAnswer(model);
  if (bound.valid())
    answer.bound = bound.get();
  answer.evaluations = meter.count;
  note("end");
  return answer;
}

SearchOptions fsdp::planner::makeSearchOptions(int64_t evaluations,
                                               bool robust) {
  SearchOptions options;
  options.evaluations = evaluations;
  if (robust) {
    options.scenarios = getRobustScenarios();
    options.others = getOtherScenarios();
  }
  return options;
}

SearchOptions fsdp::planner::makeShort(SearchOptions options, Decisions start) {
  options.evaluations /= 4;
  options.stages &= ~unsigned(SizesStage | CountsStage | BoundStage);
  options.starts = {std::move(start)};
  return options;
}

SearchAnswer fsdp::planner::search(const StepModel &model,
                                   const SearchOptions &options) {
  return StepSearch(model, options).run();
}
