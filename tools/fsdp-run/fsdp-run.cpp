//===- fsdp-run.cpp - Runs a plan -----------------------------------------===//

#include "Options.h"
#include "Reporter.h"
#include "TensorBoard.h"
#include "fsdp/Archive/Escape.h"
#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Runtime/Training/TrainingRun.h"

#include <algorithm>
#include <csignal>
#include <cstdio>

using namespace fsdp;

namespace {

/// Says what becomes of a run.
class Printer final : public RunListener {
public:
  Printer(const TrainingOptions &options, const Processes &processes)
      : options(options), processes(processes) {
    if (!options.tensorBoard.empty() && processes.isFirst())
      tensorBoard.emplace(options.tensorBoard);
  }

  std::unique_ptr<TrainingObserver> watch(const Training &training) override {
    return makeReporter(training, tensorBoard ? &*tensorBoard : nullptr);
  }

  void tell(const Comparison &comparison) override {
    if (options.json)
      std::printf("%s\n", spell(comparison).c_str());
    else
      std::printf("%s\n", archive::escape(comparison.summary()).c_str());
    flushOutput();
    constexpr std::size_t most = 5;
    std::vector<std::string> problems = comparison.problems();
    for (std::size_t i = 0; i != problems.size() && i != most; ++i)
      processes.sayError(options.reference + ": " + problems[i]);
    if (problems.size() > most)
      processes.sayError(options.reference + ": and " +
                         std::to_string(problems.size() - most) +
                         " more like these");
  }

private:
  static std::string spell(const Comparison &comparison) {
    using Rounded = archive::JSONWriter::Rounded;
    auto differenceOf = [](const Comparison::Tensor &tensor) {
      return Rounded{std::min(tensor.difference, 1e300), 6};
    };
    const Comparison::Tensor &worst = comparison.worstTensor();
    archive::JSONWriter json;
    json.object([&] {
      json.attribute("compared", comparison.compared().size());
      json.attribute("worst", worst.name);
      json.attribute("difference", differenceOf(worst));
      json.attribute("allowed", Rounded{worst.allowed, 6});
      json.attribute("passed", comparison.passed());
      json.attributeObject("differences", [&] {
        for (const Comparison::Tensor &tensor : comparison.compared())
          json.attribute(tensor.name, differenceOf(tensor));
      });
    });
    return json.take();
  }

  const TrainingOptions &options;
  const Processes &processes;
  std::optional<TensorBoard> tensorBoard;
};

/// The exit code of a run of which nothing is left.
int runMain(int argc, char **argv) {
  std::signal(SIGPIPE, SIG_IGN); // What can't be written is an error.
  std::optional<Processes> processes;
  auto fail = [&](const Error &error) {
    if (processes)
      return processes->fail(error);
    std::fprintf(stderr, "error: %s\n", archive::escape(error.what()).c_str());
    return error.exitCode();
  };
  try {
    processes.emplace(findOption(argc, argv, "--backend"),
                      findOption(argc, argv, "--map"));
    return TrainingRun::run(
        *processes, [&] { return parseOptions(argc, argv); },
        [&](const TrainingOptions &options) {
          return std::make_unique<Printer>(options, *processes);
        });
  } catch (const Error &error) {
    return fail(error);
  } catch (const std::bad_alloc &) {
    return fail(Error("no memory is left"));
  } catch (const std::exception &error) {
    return fail(Error(error.what()));
  } catch (...) {
    return fail(Error("an exception of an unknown type"));
  }
}

} // namespace

int main(int argc, char **argv) {
  int code = runMain(argc, argv);
  // LibTorch would take its operators apart one by one, which takes a third of
  // the time of a short run.
  std::fflush(nullptr);
  std::_Exit(code);
}
