//===- Explain.cpp - Where the time and the memory of a step go -----------===//

#include "Explain.h"
#include "Layers.h"
#include "Price.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>
#include <limits>
#include <map>

using namespace fsdp;
using llvm::StringRef;
using llvm::json::Array;
using llvm::json::Object;

/// How many layers or units a line names.
static constexpr size_t mostNames = 3;

/// "1.50 GiB a, 2.00 MiB b and 7 more", of rows from the largest on. A single
/// row needs no figure: it is that of the line.
template <typename Rows, typename Spell>
static std::string spellLargest(const Rows &rows, const Spell &spell) {
  if (rows.size() == 1)
    return archive::escape(rows.front().name);
  std::string text;
  for (const auto &row : llvm::ArrayRef(rows).take_front(mostNames))
    text += (text.empty() ? "" : ", ") + archive::escape(row.name) + " " +
            spell(row);
  if (rows.size() > mostNames)
    text += " and " + std::to_string(rows.size() - mostNames) + " more";
  return text;
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

namespace {
/// Layers that differ in a number: "h.0", "h.1".
struct Layers {
  std::string name; ///< "h.0 .. 31", once all are there.
  uint64_t bytes = 0;
  std::set<uint64_t> numbers;
};
struct Kind {
  std::string name;
  uint64_t bytes = 0;
  unsigned buffers = 0;
  std::vector<Layers> layers; ///< Largest first.
};
} // namespace

static std::vector<Kind> groupPeak(const PlanSummary &summary) {
  std::map<std::string, std::pair<Kind, std::map<std::string, Layers>>> kinds;
  for (const PlanSummary::Alive &row : summary.alive) {
    auto &[kind, layers] = kinds[row.kind];
    kind.bytes += row.bytes;
    kind.buffers += row.buffers;
    LayerName place = splitLayer(row.place);
    Layers &own = layers[place.before.str()];
    own.bytes += row.bytes;
    if (place.number)
      own.numbers.insert(*place.number);
  }
  auto isLarger = [](const auto &a, const auto &b) {
    return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name);
  };
  std::vector<Kind> rows;
  for (auto &[name, group] : kinds) {
    auto &[kind, layers] = group;
    kind.name = name;
    for (auto &[path, own] : layers) {
      own.name = path + spellRanges(own.numbers);
      kind.layers.push_back(std::move(own));
    }
    llvm::sort(kind.layers, isLarger);
    rows.push_back(std::move(kind));
  }
  llvm::sort(rows, isLarger);
  return rows;
}

void fsdp::printPeak(const PlanSummary &summary, llvm::raw_ostream &os) {
  if (summary.alive.empty())
    return;
  os << "  alive at the peak (" << archive::escape(summary.peakAt) << "):\n";
  for (const Kind &kind : groupPeak(summary))
    os << llvm::formatv("    {0,-20} {1,4} buffer{2} {3,11}  {4}\n", kind.name,
                        kind.buffers, kind.buffers == 1 ? " " : "s",
                        spellBytes(kind.bytes),
                        spellLargest(kind.layers, [](const Layers &row) {
                          return spellBytes(row.bytes);
                        }));
}

Array fsdp::peakToJSON(const PlanSummary &summary) {
  Array kinds;
  for (const Kind &kind : groupPeak(summary)) {
    Array layers;
    for (const Layers &row : kind.layers)
      layers.push_back(
          Object{{"name", row.name}, {"bytes", int64_t(row.bytes)}});
    kinds.push_back(Object{{"kind", kind.name},
                           {"bytes", int64_t(kind.bytes)},
                           {"buffers", kind.buffers},
                           {"layers", std::move(layers)}});
  }
  return kinds;
}

//===----------------------------------------------------------------------===//
// Time
//===----------------------------------------------------------------------===//

namespace {
/// Transfers of a step, added up over its programs and their runs.
struct Sum {
  std::string name; ///< Of the units, or the kind.
  unsigned calls = 0;
  int64_t nanoseconds = 0, exposed = 0;
  std::vector<std::string> units; ///< Of each call.
  std::string kind, phase;

  void add(const PlanSummary::Transfer &row, unsigned runs) {
    calls += runs;
    nanoseconds += runs * row.nanoseconds;
    exposed += runs * row.exposed;
  }
};
} // namespace

static std::string nameCall(const PlanSummary::Transfer &row) {
  std::string units = row.units.empty() ? "no unit" : row.units.front();
  if (row.units.size() > 1)
    units += " and " + std::to_string(row.units.size() - 1) + " more";
  return units + " (" + row.phase + ")";
}

/// By `key`; those for which the compute stream stands still longest first.
template <typename Key>
static std::vector<Sum> sumTransfers(const PlanSummary &summary,
                                     const Key &key) {
  std::map<std::string, Sum> sums;
  for (const PlanSummary::Program &program : summary.programs)
    for (const PlanSummary::Transfer &row : program.predicted.transfers) {
      std::string name = key(row);
      if (!program.runs || name.empty())
        continue;
      Sum &sum = sums[name];
      if (!sum.calls)
        sum = {name, 0, 0, 0, row.units, row.kind, row.phase};
      sum.add(row, program.runs);
    }
  std::vector<Sum> rows;
  for (auto &[name, sum] : sums)
    rows.push_back(std::move(sum));
  llvm::sort(rows, [](const Sum &a, const Sum &b) {
    return std::tie(b.exposed, a.name) < std::tie(a.exposed, b.name);
  });
  return rows;
}

static std::vector<Sum> sumKinds(const PlanSummary &summary) {
  return sumTransfers(summary, [](const auto &row) { return row.kind; });
}

/// The calls of a kind that are exposed.
static std::vector<Sum> sumExposed(const PlanSummary &summary, StringRef kind) {
  return sumTransfers(summary, [&](const PlanSummary::Transfer &row) {
    return row.kind == kind && row.exposed ? nameCall(row) : "";
  });
}

void fsdp::printPrediction(const PlanSummary &summary, llvm::raw_ostream &os) {
  PlanSummary::Prediction step = summary.getStep().predicted;
  if (!step.nanoseconds)
    return;
  os << llvm::formatv(
      "\npredicted step {0}, of it {1} ({2:f1} %) exposed communication\n",
      spellTime(step.nanoseconds), spellTime(step.exposed),
      100.0 * double(step.exposed) / double(step.nanoseconds));
  if (!summary.hardware.empty())
    os << "  by the costs of " << summary.hardware << "\n";
  if (step.slowed)
    os << llvm::formatv("  {0,-15} {1,12} longer beside collectives\n",
                        "computations", spellTime(step.slowed));
  for (const Sum &kind : sumKinds(summary)) {
    os << llvm::formatv("  {0,-15} {1,12} exposed of {2,12}", kind.name,
                        spellTime(kind.exposed), spellTime(kind.nanoseconds));
    if (kind.exposed)
      os << "  "
         << spellLargest(sumExposed(summary, kind.name),
                         [](const Sum &row) { return spellTime(row.exposed); });
    os << "\n";
  }
  if (std::isfinite(step.atPeak) && step.atPeak > 0)
    os << llvm::formatv("  {0,-15} {1,11:f1} %\n", "MFU",
                        100.0 * step.atPeak / double(step.nanoseconds));
}

llvm::json::Value fsdp::predictionToJSON(const PlanSummary &summary) {
  PlanSummary::Prediction step = summary.getStep().predicted;
  if (!step.nanoseconds)
    return nullptr;
  Array kinds, exposed;
  for (const Sum &kind : sumKinds(summary)) {
    auto spell = [](const Sum &row) {
      return Object{{"kind", row.kind},
                    {"calls", row.calls},
                    {"ns", row.nanoseconds},
                    {"exposed_ns", row.exposed}};
    };
    kinds.push_back(spell(kind));
    for (const Sum &row : sumExposed(summary, kind.name)) {
      Object call = spell(row);
      call["units"] = Array(row.units);
      call["phase"] = row.phase;
      exposed.push_back(std::move(call));
    }
  }
  return Object{{"step_ns", step.nanoseconds}, {"exposed_ns", step.exposed},
                {"slowed_ns", step.slowed},    {"flops", step.flops},
                {"kinds", std::move(kinds)},   {"exposed", std::move(exposed)}};
}

//===----------------------------------------------------------------------===//
// Decisions
//===----------------------------------------------------------------------===//

/// A time, and by how much it is above that of the step.
static std::string spellChange(int64_t time, int64_t step) {
  double percent = std::round(1000 * (double(time) / double(step) - 1)) / 10;
  return llvm::formatv("{0} ({1}{2:f1} %)", spellTime(time),
                       percent < 0 ? "-" : "+", std::abs(percent));
}

/// The decisions on other machines; beside those that were searched for slower
/// machines as well, those for the prediction alone.
static void printScenarios(const planner::Explanation &explanation,
                           int64_t step, llvm::raw_ostream &os) {
  const auto &nominal = explanation.nominal;
  auto printNominal = [&](size_t i) {
    if (i < nominal.size())
      os << "decided for the prediction alone, "
         << spellChange(nominal[i].outcome.time, step);
    os << "\n";
  };
  if (!nominal.empty()) {
    os << "  ";
    printNominal(0);
  }
  for (const auto &[i, point] : llvm::enumerate(explanation.scenarios)) {
    os << llvm::formatv("  with {0}: {1}{2}", point.name,
                        spellChange(point.outcome.time, step),
                        nominal.empty() ? "" : "; ");
    printNominal(i + 1);
  }
}

/// What is worth a line: 5 %, on the most ranks that were simulated.
static void printJitter(const PlanSummary &summary, int64_t step,
                        llvm::raw_ostream &os) {
  const auto &rows = summary.search->jitter;
  for (const auto &[spread, ranks, time] : rows)
    if (spread == 0.05 && ranks == rows.back().ranks)
      os << llvm::formatv(
          "  with computations that vary by 5 % on each of "
          "{0}{1} ranks: {2}\n",
          ranks == summary.ranks ? "" : std::to_string(ranks) + " of ",
          summary.ranks, spellChange(time, step));
}

static void printTried(const char *with, const PlanSummary::Tried &tried,
                       int64_t step, llvm::raw_ostream &os) {
  for (const auto &[name, outcome, bound] : tried.points) {
    os << "  " << with << " " << name << ": ";
    if (bound)
      os << "at least " << spellChange(bound, step);
    else if (outcome.time)
      os << spellChange(outcome.time, step);
    else
      os << "at least " << spellBytes(outcome.peakBytes);
    os << (name == tried.taken ? ", taken\n" : "\n");
  }
}

/// The fastest; of the others, which are many, what they are at the least.
static void printAxes(const PlanSummary::Tried &tried, int64_t step,
                      llvm::raw_ostream &os) {
  constexpr size_t mostShown = 8;
  std::multimap<int64_t, const PlanSummary::Tried::Point *> searched;
  size_t slower = 0, larger = 0;
  int64_t time = std::numeric_limits<int64_t>::max(), bytes = time;
  auto addSlower = [&](int64_t least) {
    ++slower;
    time = std::min(time, least);
  };
  for (const auto &point : tried.points) {
    if (point.bound) {
      addSlower(point.bound);
    } else if (point.outcome.time) {
      searched.emplace(point.outcome.meanTime, &point);
    } else {
      ++larger;
      bytes = std::min(bytes, point.outcome.peakBytes);
    }
  }
  PlanSummary::Tried shown{{}, tried.taken};
  for (auto [mean, point] : searched)
    if (shown.points.size() < mostShown || point->name == tried.taken)
      shown.points.push_back(*point);
    else
      addSlower(point->outcome.time);
  printTried("with", shown, step, os);
  if (slower)
    os << llvm::formatv("  with each of {0} other choices: at least {1}\n",
                        slower, spellChange(time, step));
  if (larger)
    os << llvm::formatv("  with each of {0} other choices: at least {1}\n",
                        larger, spellBytes(bytes));
}

void fsdp::printSearch(const PlanSummary &summary, llvm::raw_ostream &os) {
  if (!summary.search)
    return;
  const auto &[answer, explanation, budget, resident, choices, jitter] =
      *summary.search;
  int64_t own = answer.outcome.time;
  if (answer.bound)
    os << llvm::formatv(
        "  no decisions take less than {0} ({1}): at most {2:f2} % above the "
        "best\n",
        spellTime(answer.bound->time), answer.bound->name,
        100 * answer.getGap());
  if (const auto *best = explanation.findBestBaseline(budget))
    os << llvm::formatv("  best of {0} known policies: {1}, {2}\n",
                        explanation.baselines.size(), best->name,
                        spellChange(best->outcome.time, own));
  else
    os << llvm::formatv("  none of {0} known policies keeps to the budget\n",
                        explanation.baselines.size());
  if (const auto &price = explanation.price)
    os << "  " << spellPrice(*price, own) << "\n";
  printScenarios(explanation, own, os);
  printJitter(summary, own, os);
  if (!resident.empty())
    os << "  gathered once for all micro-batches: " << spellNames(resident)
       << "\n";
  printTried("on a mesh of", choices.meshes, own, os);
  printAxes(choices.axes, own, os);
  printTried("with --reshard-after-forward", choices.reshards, own, os);
  printTried("with --offload", choices.offloads, own, os);
  printTried("with --chunk-loss", choices.chunks, own, os);
  if (answer.evaluations)
    os << llvm::formatv("  {0:N0} steps tried\n", answer.evaluations);
}

static Object toJSON(const planner::Explanation::Point &point) {
  return Object{{"name", point.name},
                {"bytes", point.outcome.peakBytes},
                {"nanoseconds", point.outcome.time},
                {"mean_nanoseconds", point.outcome.meanTime}};
}

static Array
listPoints(const std::vector<planner::Explanation::Point> &points) {
  Array rows;
  for (const auto &point : points)
    rows.push_back(toJSON(point));
  return rows;
}

static Array listTried(const PlanSummary::Tried &tried) {
  Array rows;
  for (const auto &[name, outcome, bound] : tried.points)
    if (bound)
      rows.push_back(Object{{"name", name}, {"bound_ns", bound}});
    else
      rows.push_back(toJSON({name, outcome}));
  return rows;
}

llvm::json::Value fsdp::searchToJSON(const PlanSummary &summary) {
  if (!summary.search)
    return nullptr;
  const auto &[answer, explanation, budget, resident, choices, jitter] =
      *summary.search;
  Array varied;
  for (const auto &[spread, ranks, time] : jitter)
    varied.push_back(
        Object{{"spread", spread}, {"ranks", ranks}, {"nanoseconds", time}});
  Object search{{"evaluations", answer.evaluations},
                {"budget_bytes", budget},
                {"step_ns", answer.outcome.time},
                {"scenarios", listPoints(explanation.scenarios)},
                {"nominal", listPoints(explanation.nominal)},
                {"resident", Array(resident)},
                {"meshes", listTried(choices.meshes)},
                {"axes", listTried(choices.axes)},
                {"reshards", listTried(choices.reshards)},
                {"offloads", listTried(choices.offloads)},
                {"chunks", listTried(choices.chunks)},
                {"jitter", std::move(varied)}};
  for (auto [key, tried] : {std::pair("mesh", &choices.meshes),
                            {"unit_axes", &choices.axes},
                            {"reshard_after_forward", &choices.reshards},
                            {"offload", &choices.offloads},
                            {"chunk_loss", &choices.chunks}})
    if (!tried->taken.empty())
      search[key] = tried->taken;
  if (!choices.unit.empty())
    search["unit"] = choices.unit;
  if (answer.bound) {
    search["bound_ns"] = answer.bound->time;
    search["bound_by"] = answer.bound->name;
    search["gap"] = answer.getGap();
  }
  if (explanation.price)
    addPrice(*explanation.price, search);
  return search;
}

Array fsdp::pointsToJSON(const PlanSummary &summary) {
  return summary.search ? listPoints(summary.search->explanation.baselines)
                        : Array();
}
