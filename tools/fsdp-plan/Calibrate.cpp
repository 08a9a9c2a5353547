//===- Calibrate.cpp - fsdp-plan calibrate --------------------------------===//
//
// Rates, logs of nccl-tests and profiles in, hardware file out.
//
//===----------------------------------------------------------------------===//

#include "../Tool.h"
#include "Subcommands.h"

#include "fsdp/Archive/InputFile.h"
#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Planner/Calibration.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <memory>

using namespace fsdp;
using namespace fsdp::planner;
using llvm::StringRef;
using mlir::failed;
using mlir::failure;
using mlir::LogicalResult;
using mlir::success;
namespace cl = llvm::cl;

namespace {

/// The options as LLVM parses and lists them.
struct Options {
  cl::OptionCategory category{"Options"};
  cl::opt<std::string> hardware{
      "hardware",
      cl::desc("The hardware file, or a name that is built in, that has all "
               "that is not measured"),
      cl::value_desc("FILE.toml|NAME"), cl::cat(category)};
  cl::opt<std::string> output{"o", cl::desc("Where the new file goes"),
                              cl::value_desc("mine.toml"), cl::cat(category)};
  cl::list<std::string> gathers{
      "all-gather", cl::desc("What all_gather_perf of nccl-tests printed"),
      cl::value_desc("a.log"), cl::cat(category)};
  cl::list<std::string> scatters{"reduce-scatter",
                                 cl::desc("What reduce_scatter_perf printed"),
                                 cl::value_desc("r.log"), cl::cat(category)};
  cl::list<std::string> reduces{"all-reduce",
                                cl::desc("What all_reduce_perf printed"),
                                cl::value_desc("s.log"), cl::cat(category)};
  cl::list<std::string> profiles{
      "profile", cl::desc("Measured times of fsdp-run --profile"),
      cl::value_desc("p.json"), cl::cat(category)};
  cl::opt<std::string> rates{
      "rates",
      cl::desc("A hardware file in part: its numbers take the place of those "
               "of --hardware"),
      cl::value_desc("r.toml"), cl::cat(category)};

  /// The outputs can be written, and are no inputs.
  LogicalResult checkFiles() const;
};

} // namespace

LogicalResult Options::checkFiles() const {
  std::vector<archive::NamedPath> inputs;
  for (const auto *list : {std::addressof(gathers), std::addressof(scatters),
                           std::addressof(reduces), std::addressof(profiles)})
    for (const std::string &path : *list)
      inputs.push_back({"a measurement", path});
  if (!rates.empty())
    inputs.push_back({"--rates", rates});
  if (hardware.empty() || output.empty() || inputs.empty())
    return reject("expected --hardware, -o, and a measurement (--all-gather, "
                  "--reduce-scatter, --all-reduce, --profile or --rates); see "
                  "--help");
  inputs.push_back({"--hardware", hardware});
  auto error = archive::checkOutputs({{"-o", output}}, inputs);
  return error ? reject(error->message) : success();
}

static LogicalResult readLogs(planner::CollectiveKind kind,
                              const cl::list<std::string> &paths,
                              std::vector<MeasuredCall> &calls) {
  for (const std::string &path : paths) {
    auto text = archive::InputFile::readWhole(path);
    if (!text)
      return reject(text.error().message);
    auto found = readNcclTests(*text, path, kind);
    if (!found)
      return reject(found.error().message);
    calls.insert(calls.end(), found->begin(), found->end());
  }
  return success();
}

static LogicalResult readProfiles(const cl::list<std::string> &paths,
                                  int64_t nodeRanks,
                                  std::vector<MeasuredCall> &calls) {
  for (const std::string &path : paths) {
    auto profile = archive::Profile::read(path);
    if (!profile)
      return reject(profile.error().message);
    std::vector<MeasuredCall> found = getCalls(*profile, nodeRanks);
    calls.insert(calls.end(), found.begin(), found.end());
  }
  return success();
}

static void print(const LineFit &fit, const Hardware &hardware) {
  static constexpr const char *kinds[] = {"all_gather", "reduce_scatter",
                                          "all_reduce"};
  const Hardware::Link &link = fit.isNetwork ? hardware.network : hardware.node;
  const Hardware::Line &line = link[size_t(fit.kind)];
  llvm::outs() << llvm::formatv(
      "{0,-8}{1,-15}{2,5} calls: {3:F1} us, {4:F2} us a step, {5:F2} GB/s; "
      "mean error {6:F1} %, before {7:F1} %\n",
      fit.isNetwork ? "network" : "node", kinds[size_t(fit.kind)], fit.calls,
      line.latency / 1e3, line.perStep / 1e3, line.bandwidth,
      100 * fit.errorAfter, 100 * fit.errorBefore);
}

LogicalResult fsdp::runCalibrate(int argc, char **argv) {
  Options options;
  if (failed(parseOptions(
          argc, argv,
          "Fits the links of a hardware file to measured collectives, and "
          "takes "
          "over measured rates.\n\n"
          "Example: fsdp-plan calibrate --hardware h100 --all-gather ag.log "
          "--reduce-scatter rs.log -o mine.toml\n",
          {&options.category})) ||
      failed(options.checkFiles()))
    return failure();
  auto hardware = options.rates.empty()
                      ? loadHardware(options.hardware)
                      : loadMeasuredHardware(options.hardware, options.rates);
  if (!hardware)
    return reject(hardware.error().message);
  std::vector<MeasuredCall> calls;
  int64_t nodeRanks = hardware->hasNetwork ? hardware->nodeRanks : INT64_MAX;
  if (failed(readLogs(planner::CollectiveKind::AllGather, options.gathers,
                      calls)) ||
      failed(readLogs(planner::CollectiveKind::ReduceScatter, options.scatters,
                      calls)) ||
      failed(readLogs(planner::CollectiveKind::AllReduce, options.reduces,
                      calls)) ||
      failed(readProfiles(options.profiles, nodeRanks, calls)))
    return failure();
  auto fits = calibrate(*hardware, calls);
  if (!fits)
    return reject(fits.error().message);
  if (fits->empty() && !calls.empty())
    return reject("expected collectives of one kind of two sizes, of which the "
                  "larger takes longer, found none among " +
                  llvm::Twine(calls.size()) + " calls");
  for (const LineFit &fit : *fits)
    print(fit, *hardware);
  hardware->name = llvm::sys::path::stem(options.output).str();
  auto written = archive::writeFile(options.output, {write(*hardware)});
  return written ? finishOutput() : reject(written.error().message);
}
