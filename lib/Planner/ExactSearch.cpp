//===- ExactSearch.cpp - All decisions of a few units ---------------------===//
//
// All that may be recomputed of modules, by its bound; for each, all sets of
// kept units, and all calls. Launches are as early and waits as late as they
// fit under a few common limits: enumerating each of them would multiply the
// work by thousands, and the local search that follows moves them.
//
//===----------------------------------------------------------------------===//

#include "ProgramSearch.h"

#include <algorithm>

using namespace fsdp::planner;

/// The model with one program, in which it is decided what is recomputed: what
/// is computed again is a computation like others, and memory ends where it
/// does.
StepModel
ProgramSearch::fixRecompute(const std::vector<Recompute> &recompute) const {
  StepModel fixed = model;
  fixed.programs = {program};
  Program &own = fixed.programs.front();
  own.recomputable.clear();
  own.cheap.clear();
  own.ops.clear();
  own.lives.clear();
  std::vector<uint32_t> numbers; // in `own`, by number in `program`
  for (uint32_t i = 0; i != program.ops.size(); ++i) {
    numbers.push_back(uint32_t(own.ops.size()));
    if (!isThere(program.ops[i], recompute))
      continue;
    own.ops.push_back(program.ops[i]);
    own.ops.back().onlyIf = nobody;
  }
  for (const Life &life : program.lives) {
    if (!isThere(program.ops[life.begin], recompute))
      continue;
    uint32_t end = life.end;
    for (const Life::Read &read : life.reads)
      if (read.isWith(recompute[read.module]))
        end = std::max(end, read.op);
    own.lives.push_back({life.bytes, numbers[life.begin], numbers[end], {}});
  }
  return fixed;
}

namespace {
/// Sets bit after bit of what a unit joins.
template <typename GetJoins>
void setJoins(const std::vector<uint32_t> &units, size_t bits, GetJoins &&get) {
  for (size_t i = 1; i < units.size(); ++i)
    get(units[i]) = bits >> (i - 1) & 1;
}

size_t countBorders(size_t units) {
  return size_t(1) << (units ? units - 1 : 0);
}
} // namespace

/// All calls, for what is recomputed and kept.
void ProgramSearch::searchCalls(ProgramDecisions &wanted) {
  struct Limits {
    uint16_t ahead, wait;
  };
  constexpr uint16_t far = 64;
  constexpr Limits limits[] = {{far, far}, {far, 1}, {1, far}, {1, 1},
                               {0, far},   {0, 0},   {2, 2}};
  clearJoins(wanted);
  layout.build(wanted, resident, /*lean=*/true);
  std::vector<uint32_t> units[numPhases], reduced = layout.reductionUnits;
  for (size_t i = 0; i != layout.gathers.size(); ++i)
    units[size_t(layout.gathers[i].phase)].push_back(layout.gatherUnits[i]);
  for (size_t f = 0; f != countBorders(units[0].size()); ++f) {
    setJoins(units[0], f, [&](uint32_t unit) -> bool & {
      return wanted.units[unit][Phase::Forward].joins;
    });
    for (size_t b = 0; b != countBorders(units[1].size()); ++b) {
      setJoins(units[1], b, [&](uint32_t unit) -> bool & {
        return wanted.units[unit][Phase::Backward].joins;
      });
      for (size_t r = 0; r != countBorders(reduced.size()); ++r) {
        setJoins(reduced, r, [&](uint32_t unit) -> bool & {
          return wanted.units[unit].reduction.joins;
        });
        for (Limits limit : limits) {
          setLimits(wanted, limit.ahead, limit.wait);
          if (!consider(wanted))
            break; // it does not fit at all
        }
      }
    }
  }
}

/// In how many ways units may be kept.
size_t ProgramSearch::countKeeps() const {
  size_t count = 1;
  for (uint32_t unit : mayKeep)
    count *= program.traffic[unit].piece.bytes ? 3 : 2;
  return count;
}

bool ProgramSearch::searchAll() {
  struct Choice {
    int64_t bound;
    size_t set;
    std::vector<Recompute> recompute;
    StepModel fixed;
  };
  std::vector<Choice> choices;
  for (size_t set = 0; set != countRecomputes(); ++set) {
    std::vector<Recompute> recompute = getRecompute(set);
    StepModel fixed = fixRecompute(recompute);
    if (auto bound = ProgramBounds(fixed, 0).findLargest())
      choices.push_back({bound->time, set, recompute, std::move(fixed)});
  }
  std::sort(
      choices.begin(), choices.end(), [](const Choice &a, const Choice &b) {
        return std::make_pair(a.bound, a.set) < std::make_pair(b.bound, b.set);
      });
  ProgramDecisions wanted = makeDecisions(model).programs[number];
  for (const Choice &choice : choices) {
    if (best && choice.bound >= best->outcome.meanTime)
      break;
    ProgramBounds bounds(choice.fixed, 0);
    wanted.recompute = choice.recompute;
    for (size_t set = 0; set != countKeeps(); ++set) {
      std::vector<uint32_t> again, pieces; // what is gathered twice
      size_t rest = set;
      for (uint32_t unit : mayKeep) {
        const Traffic &own = program.traffic[unit];
        size_t states = own.piece.bytes ? 3 : 2;
        Keep keep = wanted.units[unit].keep = Keep(rest % states);
        rest /= states;
        if (keep != Keep::All && !resident[unit])
          (keep == Keep::Piece ? pieces : again).push_back(unit);
      }
      std::optional<int64_t> bound = bounds.boundContention(again, pieces);
      if (best && bound && *bound >= best->outcome.meanTime)
        continue;
      searchCalls(wanted);
      if (meter.isDone())
        return false;
    }
  }
  return true;
}
