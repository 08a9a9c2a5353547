//===- Validate.cpp - fsdp-plan validate ----------------------------------===//
//
// Predicts runs that others have measured, and says how far that is off.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"
#include "Subcommands.h"

#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/InputFile.h"
#include "fsdp/Planner/PublishedRows.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <cmath>

using namespace fsdp;
using namespace fsdp::planner;
using llvm::formatv;
using llvm::StringRef;
using mlir::failed;
using mlir::failure;
using mlir::LogicalResult;
using mlir::success;
namespace cl = llvm::cl;

namespace {

/// The mean of errors, without their signs.
struct Mean {
  double sum = 0;
  size_t count = 0;

  void add(double error) {
    sum += std::abs(error);
    ++count;
  }
  std::string spell() const {
    return count ? formatv("{0:F1} %", 100 * sum / double(count)).str()
                 : "nothing";
  }
};

struct Means {
  Mean plain, fitted;
};

/// The rows of one hardware and source.
class Cluster {
public:
  std::vector<const PublishedRow *> rows;

  LogicalResult print(StringRef path, Means &all) const;

private:
  LogicalResult printRow(StringRef path, const PublishedRow &row,
                         const Hardware &hardware, double factor,
                         Means &means) const;
};

} // namespace

static LogicalResult rejectRow(StringRef path, const archive::Error &error) {
  return reject(path + ": " + error.message);
}

static std::string spellError(double error) {
  return formatv("{0}{1:F1} %", error < 0 ? "-" : "+", 100 * std::abs(error));
}

/// What distinguishes a row from the others.
static std::string describe(const PublishedRow &row) {
  static constexpr const char *recomputes[] = {"", ", selective", ", recompute",
                                               ", recompute"};
  const TrainingSetup &setup = row.setup;
  std::string text =
      formatv("{0}, {1} x {2}", row.modelName, setup.batch, setup.sequence);
  if (setup.microBatches > 1)
    text += formatv(" x {0}", setup.microBatches);
  text += recomputes[size_t(setup.recompute)];
  text += row.keep ? ", kept" : "";
  text += setup.isCompiled ? ", compiled" : "";
  return archive::escape(text);
}

LogicalResult Cluster::printRow(StringRef path, const PublishedRow &row,
                                const Hardware &hardware, double factor,
                                Means &means) const {
  auto plain = predict(row, hardware), fitted = predict(row, hardware, factor);
  if (!plain || !fitted)
    return rejectRow(path, plain ? fitted.error() : plain.error());
  double error = plain->tokens / row.tokens - 1;
  double fittedError = fitted->tokens / row.tokens - 1;
  means.plain.add(error);
  if (!row.isFitted)
    means.fitted.add(fittedError);
  std::string memory =
      row.gib ? formatv("{0:F1}", row.gib).str() : std::string("-");
  llvm::outs() << formatv(
      "{0,-50}{1,6}{2,11:F0}{3,11:F0}{4,10}{5,10}{6,8}{7,8:F1}\n",
      describe(row), row.setup.ranks, row.tokens, plain->tokens,
      spellError(error), row.isFitted ? "fitted" : spellError(fittedError),
      memory, plain->gib);
  return success();
}

LogicalResult Cluster::print(StringRef path, Means &all) const {
  auto hardware = loadHardware(rows.front()->hardware);
  if (!hardware)
    return reject(path + ": line " + llvm::Twine(rows.front()->line) + ": " +
                  hardware.error().message);
  double factor = 1;
  auto fitted = llvm::find_if(rows, [](auto *row) { return row->isFitted; });
  if (fitted != rows.end()) {
    auto fit = fitFactor(**fitted, *hardware);
    if (!fit)
      return rejectRow(path, fit.error());
    factor = *fit;
  }
  std::string title = archive::escape(rows.front()->getCluster());
  if (hardware->capacity > 0)
    title += formatv(", {0:F1} GiB", hardware->capacity / double(1 << 30));
  llvm::outs() << formatv("{0,-50}{1,6}{2,11}{3,11}{4,10}{5,10}{6,8}{7,8}\n",
                          title, "ranks", "measured", "predicted", "error",
                          "fitted", "GiB", "pred.");
  Means own;
  for (const PublishedRow *row : rows)
    if (failed(printRow(path, *row, *hardware, factor, own)))
      return failure();
  for (auto [sum, part] : {std::pair(&all.plain, &own.plain),
                           std::pair(&all.fitted, &own.fitted)}) {
    sum->sum += part->sum;
    sum->count += part->count;
  }
  llvm::outs() << formatv("mean error {0}", own.plain.spell());
  if (fitted != rows.end())
    llvm::outs() << formatv(
        "; {0} with computations {1:F2} times as long, fitted to line {2}",
        own.fitted.spell(), factor, (*fitted)->line);
  llvm::outs() << "\n\n";
  return success();
}

LogicalResult fsdp::runValidate(int argc, char **argv) {
  cl::OptionCategory category{"Options"};
  cl::opt<std::string> input{cl::Positional, cl::desc("<rows.toml>"),
                             cl::cat(category)};
  if (failed(parseOptions(
          argc, argv,
          "Predicts runs that others have measured, by their dimensions, and "
          "says how far that is off.\n\nExample: fsdp-plan validate "
          "benchmarks/rows.toml\n",
          {&category})))
    return failure();
  if (input.empty())
    return reject("expected a file of published rows (rows.toml); see --help");
  auto text = archive::InputFile::readWhole(input);
  if (!text)
    return reject(text.error().message);
  auto rows = readPublishedRows(*text, input);
  if (!rows)
    return reject(rows.error().message);

  std::vector<Cluster> clusters;
  for (const PublishedRow &row : *rows) {
    auto cluster = llvm::find_if(clusters, [&](const Cluster &each) {
      return each.rows.front()->getCluster() == row.getCluster();
    });
    if (cluster == clusters.end())
      cluster = clusters.emplace(cluster);
    cluster->rows.push_back(&row);
  }
  llvm::outs() << "Tokens a second and a rank; errors are of these.\n\n";
  Means all;
  for (const Cluster &cluster : clusters)
    if (failed(cluster.print(input, all)))
      return failure();
  llvm::outs() << formatv("{0} rows: mean error {1}; {2} where a factor was "
                          "fitted, without the rows it was fitted to\n",
                          rows->size(), all.plain.spell(), all.fitted.spell());
  return finishOutput();
}
