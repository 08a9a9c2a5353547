//===- Price.cpp - What more memory would buy -----------------------------===//
//
// A short search with more of it finds decisions that differ from what there is
// in many ways, of which few matter: blocks of a model are alike. What can be
// as it was, without much of the gain, is made so.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Explanation.h"

#include <algorithm>

using namespace fsdp::planner;
using Change = Explanation::Change;

//===----------------------------------------------------------------------===//
// Changes
//===----------------------------------------------------------------------===//

static bool isSameCall(const UnitDecision &a, const UnitDecision &b) {
  return a[Phase::Forward].joins == b[Phase::Forward].joins &&
         a[Phase::Backward].joins == b[Phase::Backward].joins &&
         a.reduction.joins == b.reduction.joins;
}

static bool isSamePlace(const UnitDecision &a, const UnitDecision &b) {
  return a[Phase::Forward].ahead == b[Phase::Forward].ahead &&
         a[Phase::Backward].ahead == b[Phase::Backward].ahead &&
         a.reduction.wait == b.reduction.wait;
}

std::vector<Change> fsdp::planner::findChanges(const StepModel &model,
                                               const Decisions &before,
                                               const Decisions &after) {
  std::vector<Change> changes;
  auto add = [&](Change::Kind kind, size_t count, auto getName, auto differs) {
    Change change = {kind, {}, {}};
    for (size_t i = 0; i != count; ++i)
      if (differs(i)) {
        change.items.push_back(i);
        change.names.push_back(getName(i));
      }
    if (!change.names.empty())
      changes.push_back(std::move(change));
  };
  /// `differs`: of a program before and after, and a number.
  auto inAny = [&](auto differs) {
    return [&, differs](size_t i) {
      for (size_t p = 0; p != model.programs.size(); ++p)
        if (differs(before.programs[p], after.programs[p], i))
          return true;
      return false;
    };
  };
  using Program = const ProgramDecisions &;
  constexpr std::pair<Change::Kind, Recompute> recomputes[] = {
      {Change::Kind::NotRecomputed, Recompute::None},
      {Change::Kind::CheapRecomputed, Recompute::Cheap},
      {Change::Kind::Recomputed, Recompute::All}};
  for (auto [kind, now] : recomputes)
    add(
        kind, model.modules.size(), [&](size_t i) { return model.modules[i]; },
        inAny([now = now](Program a, Program b, size_t i) {
          return a.recompute[i] != b.recompute[i] && b.recompute[i] == now;
        }));
  auto addUnits = [&](Change::Kind kind, auto differs) {
    add(
        kind, model.units.size(), [&](size_t i) { return model.units[i].name; },
        differs);
  };
  auto inUnit = [&](auto differs) {
    return inAny([differs](Program a, Program b, size_t i) {
      return differs(a.units[i], b.units[i]);
    });
  };
  using Unit = const UnitDecision &;
  constexpr std::pair<Change::Kind, Keep> keeps[] = {
      {Change::Kind::Kept, Keep::All},
      {Change::Kind::NotKept, Keep::None},
      {Change::Kind::PieceKept, Keep::Piece}};
  for (auto [kind, now] : keeps)
    addUnits(kind, inUnit([now = now](Unit a, Unit b) {
               return a.keep != b.keep && b.keep == now;
             }));
  addUnits(Change::Kind::Resident,
           [&](size_t i) { return after.resident[i] && !before.resident[i]; });
  addUnits(Change::Kind::NotResident,
           [&](size_t i) { return before.resident[i] && !after.resident[i]; });
  addUnits(Change::Kind::Calls,
           inUnit([](Unit a, Unit b) { return !isSameCall(a, b); }));
  addUnits(Change::Kind::Places,
           inUnit([](Unit a, Unit b) { return !isSamePlace(a, b); }));
  return changes;
}

//===----------------------------------------------------------------------===//
// Fewer of them
//===----------------------------------------------------------------------===//

namespace {
/// Takes changes back, as long as a step keeps to the budget and to a time.
class Reverter {
public:
  Reverter(const StepModel &model, const Decisions &before, Decisions &now,
           int64_t most)
      : model(model), before(before), now(now), most(most) {}

  void run();

private:
  using Items = std::vector<size_t>; ///< Modules, and units after these.
  Items list(Change::Kind kind) const;
  void set(Decisions &decisions, size_t item) const;
  bool revert(const Items &items);
  void revertPairs(Change::Kind a, Change::Kind b);

  const StepModel &model;
  const Decisions &before;
  Decisions &now;
  int64_t most; ///< Nanoseconds.
};
} // namespace

/// As it was before, in all programs.
void Reverter::set(Decisions &decisions, size_t item) const {
  size_t modules = model.modules.size();
  for (size_t p = 0; p != model.programs.size(); ++p) {
    const ProgramDecisions &was = before.programs[p];
    ProgramDecisions &own = decisions.programs[p];
    if (item < modules)
      own.recompute[item] = was.recompute[item];
    else
      own.units[item - modules] = was.units[item - modules];
  }
  if (item >= modules)
    decisions.resident[item - modules] = before.resident[item - modules];
}

bool Reverter::revert(const Items &items) {
  Decisions tried = now;
  for (size_t item : items)
    set(tried, item);
  Outcome outcome = evaluate(model, tried);
  if (outcome.peakBytes > model.budget || outcome.time > most)
    return false;
  now = std::move(tried);
  return true;
}

Reverter::Items Reverter::list(Change::Kind kind) const {
  size_t first = kind <= Change::Kind::Recomputed ? 0 : model.modules.size();
  Items items;
  for (const Change &change : findChanges(model, before, now))
    if (change.kind == kind)
      for (size_t i : change.items)
        items.push_back(first + i);
  return items;
}

/// One instead of another.
void Reverter::revertPairs(Change::Kind a, Change::Kind b) {
  for (size_t first : list(a))
    for (size_t second : list(b))
      if (revert({first, second}))
        break;
}

void Reverter::run() {
  using Kind = Change::Kind;
  Items places = list(Kind::Calls);
  for (size_t item : list(Kind::Places))
    places.push_back(item);
  revert(places);
  for (Kind more : {Kind::Recomputed, Kind::CheapRecomputed})
    for (Kind less : {Kind::NotRecomputed, Kind::CheapRecomputed})
      if (more != less)
        revertPairs(more, less);
  for (Kind less : {Kind::NotKept, Kind::PieceKept})
    revertPairs(less, Kind::Kept);
  for (Kind kind :
       {Kind::Recomputed, Kind::CheapRecomputed, Kind::NotKept,
        Kind::NotResident, Kind::PieceKept, Kind::Kept, Kind::Resident,
        Kind::NotRecomputed, Kind::Calls, Kind::Places})
    for (size_t item : list(kind))
      revert({item});
}

Explanation::Price fsdp::planner::findPrice(StepModel model,
                                            const Decisions &decisions,
                                            const SearchOptions &options) {
  constexpr int64_t most = int64_t(1) << 30;
  Explanation::Price price;
  price.more = std::min(most, model.budget / 10);
  std::optional<Bound> before = findBound(model);
  model.budget += price.more;
  SearchAnswer answer = search(model, makeShort(options, decisions));
  if (before)
    price.bound = before->time - findBound(model)->time;
  price.time = answer.outcome.time;
  int64_t gain = evaluate(model, decisions).time - price.time;
  if (gain <= 0)
    return price;
  Reverter(model, decisions, answer.decisions, price.time + gain / 10).run();
  price.time = evaluate(model, answer.decisions).time;
  price.changes = findChanges(model, decisions, answer.decisions);
  return price;
}
