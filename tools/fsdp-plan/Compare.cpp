//===- Compare.cpp - A table of schedules ---------------------------------===//

#include "Compare.h"
#include "../Tool.h"
#include "CommandLine.h"
#include "Compile.h"
#include "Diagnostics.h"

#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Dialect/FSDP/Transforms/Program.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"

using namespace fsdp;
using llvm::StringRef;
using mlir::failed;
using mlir::failure;
using mlir::LogicalResult;
using mlir::success;

namespace {

struct Row {
  std::string name;
  FSDPPipelineOptions options;
  std::string error; ///< Why there is no plan; then there are no figures.
  uint64_t peakBytes = 0, arenaBytes = 0;
  /// Nanoseconds of a step; 0 if nobody knows.
  int64_t predicted = 0, exposed = 0;
  unsigned calls = 0; ///< Of collectives, per step.
  bool isProved = true;
  bool fits = true; ///< Into the memory of the machine, as far as it is known.
  /// What a search stands beside; nothing, if there was none.
  std::optional<PlanSummary::Search> search;
};

/// How a figure stands to the least of its column.
class Column {
public:
  Column(const std::vector<Row> &rows,
         llvm::function_ref<double(const Row &)> get) {
    for (const Row &row : rows)
      if (double figure = get(row); figure && (!least || figure < least))
        least = figure;
    for (const Row &row : rows)
      ties += get(row) && isTie(get(row));
  }
  std::string relate(double figure) const {
    if (isTie(figure))
      return ties > 1 ? "tie" : "least";
    return llvm::formatv("+{0:f1} %", 100 * (figure / least - 1));
  }

private:
  /// Predictions are not better than that.
  static constexpr double noise = 1e-3;
  bool isTie(double figure) const { return figure < least * (1 + noise); }

  double least = 0;
  unsigned ties = 0;
};

} // namespace

/// Adds a row for the options of the line and these, which come on top.
static LogicalResult addRow(const CommandLine &line, StringRef name,
                            std::vector<GivenOption> own,
                            std::vector<Row> &rows) {
  Row row;
  row.name = name.str();
  std::string error = readOptions(overrideOptions(line.given, std::move(own)),
                                  /*isTraced=*/false, row.options);
  rows.push_back(std::move(row));
  return error.empty() ? success() : reject(name + ": " + error);
}

/// The presets, and what the user asks for.
static mlir::FailureOr<std::vector<Row>> makeRows(const CommandLine &line) {
  for (StringRef part :
       {"schedule", "backward-prefetch", "forward-prefetch",
        "limit-all-gathers", "bucket", "reduce-wait", "auto", "decisions"})
    for (const GivenOption &option : line.given)
      if (option.first == part)
        return reject("--" + part +
                      ": expected it in --with: it is what the rows differ in");
  std::vector<Row> rows;
  for (StringRef preset :
       {"fsdp1", "fsdp2", "manual-block", "inductor", "list"})
    if (failed(addRow(line, preset, {{"schedule", preset.str()}}, rows)))
      return failure();
  // What a search does not know, such as pieces, is said in its row.
  Row searched;
  searched.name = "auto";
  std::vector<GivenOption> own = line.given;
  own.emplace_back("auto", "true");
  searched.error = readOptions(own, /*isTraced=*/false, searched.options);
  rows.push_back(std::move(searched));
  for (const std::string &text : line.with) {
    std::vector<GivenOption> own;
    if (std::string error = splitOptions(text, own); !error.empty())
      return reject("--with '" + text + "': " + error);
    if (failed(addRow(line, text, std::move(own), rows)))
      return failure();
  }
  return rows;
}

/// Compiles a copy of the programs.
static void fill(Row &row, mlir::ModuleOp module, bool takesUnproved) {
  mlir::ScopedDiagnosticHandler handler(
      module.getContext(), [&](mlir::Diagnostic &diagnostic) {
        bool isError =
            diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error;
        if (isError && row.error.empty())
          row.error = diagnostic.str();
        return success();
      });
  mlir::TimingScope timing; // of nobody
  mlir::OwningOpRef<mlir::ModuleOp> copy = module.clone();
  mlir::FailureOr<Compilation> made =
      compile(*copy, {row.options, row.name, takesUnproved}, timing);
  if (failed(made)) {
    if (row.error.empty())
      row.error = "cannot be compiled";
    return;
  }
  const PlanSummary &summary = made->summary;
  PlanSummary::Program step = summary.getStep();
  row.peakBytes = summary.scheduledBytes;
  row.arenaBytes = summary.arenaBytes;
  if (!row.options.hardware.empty()) {
    row.predicted = step.predicted.nanoseconds;
    row.exposed = step.predicted.exposed;
  }
  for (const PlanSummary::Traffic &traffic : step.work.traffic)
    row.calls += traffic.calls;
  row.isProved = summary.unproved.empty();
  if (row.predicted)
    row.search = summary.search;
  row.fits = !summary.capacity || summary.arenaBytes <= summary.capacity;
}

static void print(const std::vector<Row> &rows, llvm::raw_ostream &os) {
  bool isTimed =
      llvm::any_of(rows, [](const Row &row) { return row.predicted; });
  size_t width = 16;
  for (const Row &row : rows)
    width = std::max(width, archive::escape(row.name).size());
  Column memory(rows, [](const Row &row) { return double(row.arenaBytes); }),
      time(rows, [](const Row &row) { return double(row.predicted); });
  auto pad = [&](StringRef name) {
    os << name << std::string(width - name.size(), ' ');
  };
  pad("schedule");
  os << "         peak        arena           calls";
  os << (isTimed ? "    predicted               exposed\n" : "\n");
  for (const Row &row : rows) {
    pad(archive::escape(row.name));
    if (!row.error.empty()) {
      os << "  " << archive::escape(row.error) << "\n";
      continue;
    }
    os << llvm::formatv(" {0,12} {1,12} {2,-9} {3,5}",
                        spellBytes(row.peakBytes), spellBytes(row.arenaBytes),
                        memory.relate(double(row.arenaBytes)), row.calls);
    if (row.predicted)
      os << llvm::formatv(" {0,12} {1,-9} {2,12}", spellTime(row.predicted),
                          time.relate(double(row.predicted)),
                          spellTime(row.exposed));
    os << (row.isProved ? "" : "  not proved")
       << (row.fits ? "\n" : "  more than the machine has\n");
  }
}

/// What others decide. What the planner says of decisions is what a compilation
/// makes of them, so nothing is compiled.
static void printPolicies(const std::vector<Row> &rows, llvm::raw_ostream &os) {
  for (const Row &row : rows) {
    if (!row.search)
      continue;
    os << llvm::formatv("\n{0,-44} {1,12} {2,12}  against {3}\n",
                        "policies, as the planner models them", "peak",
                        "predicted", archive::escape(row.name));
    for (const auto &[name, outcome] : row.search->explanation.policies)
      os << llvm::formatv(
          "{0,-44} {1,12} {2,12} {3}{4:f1} %{5}\n", name,
          spellBytes(outcome.peakBytes), spellTime(outcome.time),
          outcome.time < row.predicted ? "" : "+",
          100 * (double(outcome.time) / double(row.predicted) - 1),
          outcome.peakBytes <= row.search->budget ? ""
                                                  : "  more than the budget");
  }
}

static LogicalResult write(const std::string &path,
                           const std::vector<Row> &rows) {
  llvm::json::Array points, policies;
  for (const Row &row : rows) {
    llvm::json::Object point{{"name", row.name}};
    if (!row.error.empty()) {
      point["error"] = row.error;
    } else {
      point["bytes"] = int64_t(row.arenaBytes);
      point["peak_bytes"] = int64_t(row.peakBytes);
      point["calls"] = row.calls;
      point["proved"] = row.isProved;
      if (row.predicted) {
        point["nanoseconds"] = row.predicted;
        point["exposed_ns"] = row.exposed;
      }
    }
    points.push_back(std::move(point));
    if (row.search)
      for (const auto &[name, outcome] : row.search->explanation.policies)
        policies.push_back(llvm::json::Object{{"name", name},
                                              {"peak_bytes", outcome.peakBytes},
                                              {"nanoseconds", outcome.time}});
  }
  llvm::json::Value report = llvm::json::Object{
      {"points", std::move(points)}, {"policies", std::move(policies)}};
  auto written =
      archive::writeFile(path, {llvm::formatv("{0:2}\n", report).str()});
  return written ? success() : reject(written.error().message);
}

LogicalResult fsdp::compareSchedules(int argc, char **argv) {
  CommandLine line;
  if (failed(parseCompareLine(argc, argv, line)))
    return failure();
  mlir::FailureOr<std::vector<Row>> rows = makeRows(line);
  if (failed(rows))
    return failure();
  mlir::ScopedDiagnosticHandler handler(&getContext(), printDiagnostic);
  mlir::ModuleOp module = importPrograms(line);
  if (!module)
    return failure();
  for (Row &row : *rows)
    if (row.error.empty())
      fill(row, module, line.unproved);
  if (!line.report.empty() && failed(write(line.report, *rows)))
    return failure();
  print(*rows, llvm::outs());
  printPolicies(*rows, llvm::outs());
  if (failed(finishOutput()))
    return failure();
  bool isAnyMade =
      llvm::any_of(*rows, [](const Row &row) { return row.error.empty(); });
  return isAnyMade ? success() : reject("expected a row that can be compiled");
}
