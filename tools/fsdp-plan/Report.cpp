//===- Report.cpp - One page about a plan ---------------------------------===//

#include "Report.h"
#include "Explain.h"
#include "Layers.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/Escape.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/FormatVariadic.h"

#include <map>
#include <tuple>

using namespace fsdp;

static void
printCalls(llvm::StringRef title,
           const std::vector<std::pair<std::string, unsigned>> &calls,
           llvm::raw_ostream &os) {
  if (calls.empty())
    return;
  os << title;
  llvm::interleaveComma(calls, os, [&](const auto &call) {
    os << archive::escape(call.first) << " x" << call.second;
  });
  os << "\n";
}

static std::pair<unsigned, uint64_t>
countTraffic(const PlanSummary::Work &work) {
  std::pair<unsigned, uint64_t> sum;
  for (const PlanSummary::Traffic &row : work.traffic) {
    sum.first += row.calls;
    sum.second += row.bytes;
  }
  return sum;
}

/// A row for each, if there are several or times, and one for the step.
static void printPrograms(const PlanSummary &summary,
                          const PlanSummary::Program &step,
                          llvm::raw_ostream &os) {
  bool isTimed = llvm::any_of(summary.programs, [](const auto &program) {
    return program.predicted.nanoseconds != 0;
  });
  if (summary.programs.size() < 2 && !isTimed)
    return;
  os << "\nprogram           runs/step  launches  collectives    received  "
        "least memory"
     << (isTimed ? "   predicted     exposed\n" : "\n");
  auto print = [&](const PlanSummary::Program &row, llvm::StringRef runs) {
    auto [calls, bytes] = countTraffic(row.work);
    os << llvm::formatv("{0,-17} {1,9} {2,9} {3,12} {4,11} {5,13}",
                        archive::escape(row.name), runs, row.work.launches,
                        calls, spellBytes(bytes), spellBytes(row.lowerBound));
    if (isTimed)
      os << llvm::formatv(" {0,8:f2} ms {1,8:f2} ms",
                          double(row.predicted.nanoseconds) / 1e6,
                          double(row.predicted.exposed) / 1e6);
    os << "\n";
  };
  for (const PlanSummary::Program &program : summary.programs)
    print(program, program.runs ? std::to_string(program.runs) : "-");
  if (step.runs > 1)
    print(step, "");
}

/// Many units are one row where they differ in nothing but a number.
static std::vector<PlanSummary::Unit>
joinUnits(const std::vector<PlanSummary::Unit> &units) {
  auto key = [](const PlanSummary::Unit &unit) {
    LayerName name = splitLayer(unit.name);
    return std::make_tuple(name.before.str(), name.after.str(),
                           name.number.has_value(), unit.parameters,
                           unit.frozen, unit.elements, unit.shardBytes,
                           unit.gathers, unit.reductions);
  };
  std::map<decltype(key(units.front())), std::set<uint64_t>> numbers;
  for (const PlanSummary::Unit &unit : units)
    if (std::optional<uint64_t> number = splitLayer(unit.name).number)
      numbers[key(unit)].insert(*number);
  std::vector<PlanSummary::Unit> rows;
  for (const PlanSummary::Unit &unit : units) {
    LayerName name = splitLayer(unit.name);
    const std::set<uint64_t> &alike = numbers[key(unit)];
    if (name.number && name.number != *alike.begin())
      continue;
    rows.push_back(unit);
    if (alike.size() > 1)
      rows.back().name =
          (name.before + spellRanges(alike) + name.after + ", each").str();
  }
  return rows;
}

static void printUnits(const PlanSummary &summary, llvm::raw_ostream &os) {
  constexpr size_t mostUnits = 12;
  std::vector<PlanSummary::Unit> rows = summary.units.size() > mostUnits
                                            ? joinUnits(summary.units)
                                            : summary.units;
  os << "unit                              parameters      elements   "
        "shard/rank  gathers  reductions\n";
  for (const auto &[i, unit] : llvm::enumerate(rows)) {
    if (i == mostUnits) {
      os << llvm::formatv("... and {0} more rows of units\n",
                          rows.size() - mostUnits);
      break;
    }
    std::string parameters = std::to_string(unit.parameters);
    if (unit.frozen)
      parameters += " (" + std::to_string(unit.frozen) + " frozen)";
    os << llvm::formatv("{0,-32} {1,11} {2,13} {3,12} {4,8} {5,11}\n",
                        archive::escape(unit.name), parameters, unit.elements,
                        spellBytes(unit.shardBytes), unit.gathers,
                        unit.reductions);
  }
}

void fsdp::printReport(const PlanSummary &summary, llvm::raw_ostream &os) {
  os << llvm::formatv("plan for {0} rank{1} (", summary.ranks,
                      summary.ranks == 1 ? "" : "s");
  llvm::interleaveComma(summary.mesh, os, [&](const auto &axis) {
    os << archive::escape(axis.first) << " " << axis.second;
  });
  os << "), " << summary.strategy << ", " << summary.device << "\n\n";

  printUnits(summary, os);
  os << "\nper step and rank\n";
  PlanSummary::Program step = summary.getStep();
  for (const PlanSummary::Traffic &row : step.work.traffic)
    os << llvm::formatv("  {0,-15} over {1,-11} {2,4} calls {3,12}\n", row.kind,
                        row.communicator, row.calls, spellBytes(row.bytes));
  if (step.work.traffic.empty())
    os << "  no communication\n";
  for (const PlanSummary::Traffic &row : step.work.hostCopies)
    if (row.calls)
      os << llvm::formatv("  {0,-15} {1,-16} {2,4} calls {3,12}\n", row.kind,
                          row.communicator, row.calls, spellBytes(row.bytes));
  os << llvm::formatv("  {0} launches, {1} copies", step.work.launches,
                      step.work.copies);
  if (summary.recomputed)
    os << llvm::formatv("; {0} operators computed again in the backward",
                        summary.recomputed);
  if (summary.initLaunches)
    os << llvm::formatv("; {0} launches once, at load", summary.initLaunches);
  os << "\n";
  printPrograms(summary, step, os);
  printPrediction(summary, os);
  printSearch(summary, os);

  os << "\nmemory per rank\n";
  for (const PlanSummary::Alive &row : summary.persistent)
    os << llvm::formatv("  {0,-40} {1,12}\n", row.what, spellBytes(row.bytes));
  uint64_t transient = summary.arenaBytes - summary.persistentBytes;
  uint64_t bound = summary.lowerBound - summary.persistentBytes;
  os << llvm::formatv("  {0,-40} {1,12}   lower bound {2} (+{3:f2} %)\n",
                      "activations, gathers and temporaries",
                      spellBytes(transient), spellBytes(bound),
                      bound ? 100.0 * (double(transient) / double(bound) - 1)
                            : 0.0);
  os << llvm::formatv("  {0,-40} {1,12}", "arena",
                      spellBytes(summary.arenaBytes));
  if (summary.capacity)
    os << llvm::formatv("   {0} {1} that the machine has",
                        summary.arenaBytes > summary.capacity ? "MORE than the"
                                                              : "of the",
                        spellBytes(summary.capacity));
  os << "\n";
  if (summary.scheduledBytes) {
    auto change = [](uint64_t from, uint64_t to) {
      return (to < from ? "-" : "+") +
             spellBytes(to < from ? from - to : to - from);
    };
    os << llvm::formatv("  {0,-40} {1,12}   {2} alignment, {3} gaps",
                        "of which values of the schedule",
                        spellBytes(summary.scheduledBytes),
                        change(summary.valueBytes, summary.lowerBound),
                        change(summary.lowerBound, summary.arenaBytes));
    // See "A budget is checked twice" in docs/Rationale.md.
    if (summary.valueBytes != summary.scheduledBytes)
      os << ", " << change(summary.scheduledBytes, summary.valueBytes)
         << " that the schedule does not count";
    os << "\n";
  }
  printPeak(summary, os);
  if (!summary.offloaded.empty()) {
    os << "\nhost memory per rank\n";
    for (const PlanSummary::Alive &row : summary.offloaded)
      os << llvm::formatv("  {0,-40} {1,12}\n", row.what,
                          spellBytes(row.bytes));
    os << llvm::formatv("  {0,-40} {1,12}   {2} of it pinned\n", "host arena",
                        spellBytes(summary.hostBytes),
                        spellBytes(summary.pinnedBytes));
  }
  os << "\n";
  printCalls("through the allocator hook: ", summary.hooked, os);
  printCalls("custom operators (fsdp-run needs --load): ", summary.foreign, os);
  printCalls("operators not known to be safe (fsdp-run needs --trust): ",
             summary.untrusted, os);
  for (const std::string &note : summary.notes)
    os << "note: " << archive::escape(note) << "\n";
  if (summary.unproved.empty())
    os << "proved: the plan computes what the model does\n";
  else
    os << "not proved: " << archive::escape(summary.unproved) << "\n";
}

/// An array with what `spell` makes of each.
template <typename T, typename Spell>
static llvm::json::Array toArray(const std::vector<T> &rows,
                                 const Spell &spell) {
  llvm::json::Array array;
  for (const T &row : rows)
    array.push_back(spell(row));
  return array;
}

static llvm::json::Object
toObject(const std::vector<std::pair<std::string, unsigned>> &calls) {
  llvm::json::Object object;
  for (const auto &[name, count] : calls)
    object[name] = count;
  return object;
}

llvm::json::Value fsdp::toJSON(const PlanSummary &summary) {
  using llvm::json::Array;
  using llvm::json::Object;
  Object mesh;
  for (const auto &[name, size] : summary.mesh)
    mesh[name] = int64_t(size);
  auto spellUnit = [](const PlanSummary::Unit &unit) {
    return Object{{"name", unit.name},
                  {"parameters", int64_t(unit.parameters)},
                  {"frozen", int64_t(unit.frozen)},
                  {"elements", int64_t(unit.elements)},
                  {"shard_bytes", int64_t(unit.shardBytes)},
                  {"gathers", unit.gathers},
                  {"reductions", unit.reductions}};
  };
  auto spellTraffic = [](const PlanSummary::Traffic &row) {
    return Object{{"kind", row.kind},
                  {"communicator", row.communicator},
                  {"calls", row.calls},
                  {"bytes", int64_t(row.bytes)}};
  };
  auto spellAlive = [](const PlanSummary::Alive &row) {
    return Object{{"what", row.what},
                  {"bytes", int64_t(row.bytes)},
                  {"buffers", row.buffers}};
  };
  auto spellProgram = [](const PlanSummary::Program &program) {
    auto [calls, bytes] = countTraffic(program.work);
    return Object{{"name", program.name},
                  {"runs", program.runs},
                  {"launches", program.work.launches},
                  {"copies", program.work.copies},
                  {"collectives", calls},
                  {"bytes", int64_t(bytes)},
                  {"predicted_ns", program.predicted.nanoseconds},
                  {"exposed_ns", program.predicted.exposed},
                  {"lower_bound_bytes", int64_t(program.lowerBound)}};
  };
  PlanSummary::Work step = summary.getStep().work;
  Array hostCopies;
  for (const PlanSummary::Traffic &row : step.hostCopies)
    if (row.calls)
      hostCopies.push_back(Object{{"copied", row.communicator},
                                  {"calls", row.calls},
                                  {"bytes", int64_t(row.bytes)}});
  return Object{
      {"ranks", int64_t(summary.ranks)},
      {"mesh", std::move(mesh)},
      {"strategy", summary.strategy},
      {"device", summary.device},
      {"units", toArray(summary.units, spellUnit)},
      {"collectives", toArray(step.traffic, spellTraffic)},
      {"host_copies", std::move(hostCopies)},
      {"launches", step.launches},
      {"copies", step.copies},
      {"init_launches", summary.initLaunches},
      {"recomputed", summary.recomputed},
      {"programs", toArray(summary.programs, spellProgram)},
      {"predicted", predictionToJSON(summary)},
      {"search", searchToJSON(summary)},
      {"points", pointsToJSON(summary)},
      {"memory", Object{{"arena_bytes", int64_t(summary.arenaBytes)},
                        {"budget_bytes", int64_t(summary.budget)},
                        {"capacity_bytes", int64_t(summary.capacity)},
                        {"persistent_bytes", int64_t(summary.persistentBytes)},
                        {"host_bytes", int64_t(summary.hostBytes)},
                        {"pinned_bytes", int64_t(summary.pinnedBytes)},
                        {"lower_bound_bytes", int64_t(summary.lowerBound)},
                        {"value_bytes", int64_t(summary.valueBytes)},
                        {"scheduled_bytes", int64_t(summary.scheduledBytes)},
                        {"persistent", toArray(summary.persistent, spellAlive)},
                        {"offloaded", toArray(summary.offloaded, spellAlive)},
                        {"peak_at", summary.peakAt},
                        {"peak_by_kind", peakToJSON(summary)},
                        {"alive_at_peak", toArray(summary.alive, spellAlive)}}},
      {"hooked", toObject(summary.hooked)},
      {"custom_operators", toObject(summary.foreign)},
      {"untrusted_operators", toObject(summary.untrusted)},
      {"notes", Array(summary.notes)},
      {"proved", summary.unproved.empty()},
      {"unproved", summary.unproved}};
}
