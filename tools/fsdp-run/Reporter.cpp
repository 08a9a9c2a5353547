//===- Reporter.cpp - What fsdp-run says of a training --------------------===//

#include "Reporter.h"

#include "TensorBoard.h"
#include "fsdp/Archive/BlockSums.h"
#include "fsdp/Archive/Bytes.h"
#include "fsdp/Archive/JSONWriter.h"
#include "fsdp/Runtime/Comm/Hosts.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <unistd.h>

using namespace fsdp;
using archive::JSONWriter;
using Fixed = JSONWriter::Fixed;
using Rounded = JSONWriter::Rounded;

namespace {

using Clock = std::chrono::steady_clock;

double secondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Says how the training goes, while it goes and at the end.
class Reporter final : public TrainingObserver {
public:
  Reporter(const Training &training, TensorBoard *tensorBoard)
      : plan(training.plan), options(training.options),
        processes(training.processes), before(training.before),
        checkpoints(training.checkpoints), session(training.session),
        log(training.log), tensorBoard(tensorBoard), begun(training.state.step),
        // What starts processes may give them a terminal of its own.
        isTerminal(!processes.backend() && ::isatty(STDOUT_FILENO) != 0),
        last(Clock::now()), shown(last) {
    if (plan->token_rows() != 0)
      tokens =
          static_cast<double>(getInputs(plan, options.program)[0].numel()) *
          planfile::getRankCount(plan.plan()) * plan->micro_batches();
    predicted = planfile::predictStep(plan.plan(), options.program);
    const LoadReport &load = session.report();
    memory = load.arenaBytes + load.hostBytes + load.scratchBytes +
             load.workspaceBytes + checkpoints.bytes() / session.ranks().count;
  }

  /// A program of a step has ended.
  void endProgram() override {
    const Statistics &statistics = session.statistics();
    forward += statistics.forward;
    backward += statistics.backward;
    update += statistics.update;
    collectives += statistics.collectives;
    if (statistics.exposed)
      exposed = exposed.value_or(0) + *statistics.exposed;
    misses += statistics.hookMisses;
  }

  /// Step number `step`, counted from 1, has ended, with that loss.
  void endStep(long long step, double loss, double lr) override {
    Clock::time_point now = Clock::now();
    double seconds = secondsBetween(last, now);
    last = now;
    total += seconds;
    if (++steps == 1)
      firstLoss = loss;
    lastLoss = loss;
    if (log.isOpen())
      noteStep(step, seconds);
    std::optional<double> norm = session.gradientNorm();
    sayObject([&](JSONWriter &json) {
      json.attribute("step", step);
      json.attribute("loss", Rounded{loss, 9});
      if (norm)
        json.attribute("grad_norm", Rounded{*norm, 9});
      json.attribute("lr", Rounded{lr, 9});
      json.attribute("seconds", Fixed{seconds, 9});
      if (tokens != 0)
        json.attribute("tokens_per_second", Fixed{tokens / seconds, 1});
      double before = std::exchange(toldCollectives, collectives);
      json.attribute("collective_seconds", Fixed{collectives - before, 9});
      if (exposed)
        json.attribute(
            "exposed_seconds",
            Fixed{*exposed - std::exchange(toldExposed, *exposed), 9});
      json.attribute("peak_bytes", memory);
    });
    if (!options.json)
      printLine(step, loss, norm, seconds, now);
    flushOutput();
  }

  /// The evaluation after that step has ended; its time is not the next step's.
  void endEvaluation(long long step, double loss) override {
    last = Clock::now();
    sayObject([&](JSONWriter &json) {
      json.attribute("step", step);
      json.attribute("eval_loss", Rounded{loss, 9});
    });
    if (!options.json)
      std::printf("%sstep %lld/%lld  eval loss %.6g\n",
                  isTerminal ? "\r\033[K" : "", step, options.steps, loss);
    flushOutput();
  }

  void summarize() override {
    options.json ? printSummary() : printText();
    flushOutput();
    if (tensorBoard) {
      tensorBoard->finish();
      warn();
    }
  }

private:
  /// Of this process alone, in seconds: who is slow shows in the others' time
  /// in collectives.
  void noteStep(long long step, double seconds) {
    auto now = std::chrono::system_clock::now().time_since_epoch();
    JSONWriter json;
    json.object([&] {
      json.attribute("step", step);
      json.attribute("time",
                     Fixed{std::chrono::duration<double>(now).count(), 3});
      json.attribute("seconds", Fixed{seconds, 6});
      json.attribute("forward", Fixed{forward - noted[0], 6});
      json.attribute("backward", Fixed{backward - noted[1], 6});
      json.attribute("update", Fixed{update - noted[2], 6});
      json.attribute("collectives", Fixed{collectives - noted[3], 6});
    });
    noted = {forward, backward, update, collectives};
    log.write(json.take());
  }

  /// A line that is overwritten, or a few lines in a file; or as often as
  /// --log-every says.
  void printLine(long long step, double loss, std::optional<double> norm,
                 double seconds, Clock::time_point now) {
    bool isLast = step == options.steps || !std::isfinite(loss);
    bool isOverwritten = isTerminal && options.logEvery == 0 && !isLast;
    long long every =
        options.logEvery ? options.logEvery : (options.steps + 9) / 10;
    bool isDue =
        isOverwritten ? secondsBetween(shown, now) >= 0.1 : step % every == 0;
    if (!isDue && !isLast && step != begun + 1)
      return;
    shown = now;
    std::printf("%sstep %lld/%lld  loss %.6g", isTerminal ? "\r\033[K" : "",
                step, options.steps, loss);
    if (norm)
      std::printf("  grad norm %.4g", *norm);
    if (tokens != 0)
      std::printf("  %.0f tokens/s", tokens / seconds);
    if (isTerminal)
      std::printf("  %.3g ms, %.0f %% in collectives, %s", 1e3 * seconds,
                  100 * session.statistics().collectives / seconds,
                  spellBytes(memory).c_str());
    std::printf("%s", isOverwritten ? "" : "\n");
  }

  void printText() const {
    if (steps == 0) {
      std::printf("step %lld: all steps had been trained\n", begun);
      return;
    }
    double seconds = total;
    std::printf("%lld steps in %.3g s, %.3g ms each", steps, seconds,
                1e3 * seconds / static_cast<double>(steps));
    if (tokens != 0)
      std::printf(", %.0f tokens/s",
                  tokens * static_cast<double>(steps) / seconds);
    std::printf("; loss %.6g to %.6g\n", firstLoss, lastLoss);

    auto percent = [&](double part) { return 100 * part / seconds; };
    std::printf(
        "time of rank 0: forward %.0f %%, backward %.0f %%, update "
        "%.0f %%, input and reporting %.0f %%; %.0f %% in collectives\n",
        percent(forward), percent(backward), percent(update),
        std::max(0.0, 100 - percent(forward + backward + update)),
        percent(collectives));
    printPrediction();
    if (processes.size() > 1)
      std::printf("%u processes on %s; figures of a process are rank 0's\n",
                  processes.size(),
                  describeHosts(plan.plan(), processes.hosts()).c_str());
    if (options.verbose)
      printMemory();
  }

  /// Of a step: the time that was predicted, and the part of it in which
  /// nothing is computed.
  void printPrediction() const {
    auto each = 1e3 / static_cast<double>(steps);
    if (predicted)
      std::printf("predicted %.3g ms a step, took %.3g ms; ",
                  1e3 * predicted->seconds, each * total);
    if (exposed)
      std::printf("exposed communication %.3g ms a step", each * *exposed);
    if (predicted)
      std::printf("%s%.3g ms",
                  exposed ? ", predicted " : "exposed communication predicted ",
                  1e3 * predicted->exposed);
    if (std::optional<double> mfu = findMFU())
      std::printf("; MFU %.1f %%", 100 * *mfu);
    if (predicted || exposed)
      std::printf("\n");
  }

  /// Of all steps so far.
  std::optional<double> findMFU() const {
    return predicted && steps ? predicted->mfu(total / double(steps))
                              : std::nullopt;
  }

  void printMemory() const {
    const LoadReport &load = session.report();
    std::printf(
        "memory of a rank: %s planned, of it %s kept from step to "
        "step; %s on the host; %s scratch of operators; %s workspace "
        "of collectives; %s for checkpoints\n",
        spellBytes(load.arenaBytes).c_str(),
        spellBytes(plan->persistent_bytes()).c_str(),
        spellBytes(load.hostBytes).c_str(),
        spellBytes(load.scratchBytes).c_str(),
        spellBytes(load.workspaceBytes).c_str(),
        spellBytes(checkpoints.bytes() / session.ranks().count).c_str());
    if (load.takenBytes != 0)
      std::printf("memory of its GPU beside that: %s for NCCL's buffers, an "
                  "estimate; %s before the start, of CUDA's context, cuBLAS "
                  "and other processes\n",
                  spellBytes(load.libraryBytes).c_str(),
                  spellBytes(load.takenBytes).c_str());
    const AllocationCounts &allocations = session.statistics().allocations;
    std::printf("allocations of the last step, all ranks: %llu in planned "
                "places, %llu on the heap (%s); %llu results copied in all\n",
                static_cast<unsigned long long>(allocations.planned),
                static_cast<unsigned long long>(allocations.heap),
                spellBytes(allocations.heapBytes).c_str(),
                static_cast<unsigned long long>(misses));
    Growth growth = measureGrowth();
    std::printf("memory of the process, beyond its start: %s resident; %s "
                "planned, %s scratch, %s heap, %s code and files\n",
                spell(growth.resident).c_str(), spell(growth.planned).c_str(),
                spell(growth.scratch).c_str(), spell(growth.heap).c_str(),
                spell(growth.files).c_str());
  }

  /// How much memory the process has taken since its start, and for what, in
  /// bytes; all ranks.
  struct Growth {
    std::int64_t resident, planned, scratch, heap, files;
  };
  Growth measureGrowth() const {
    Resident now = measureResident();
    const LoadReport &load = session.report();
    auto ranks = static_cast<std::int64_t>(session.ranks().count);
    return {now.total - before.total,
            ranks * static_cast<std::int64_t>(load.arenaBytes + load.hostBytes),
            ranks * static_cast<std::int64_t>(load.scratchBytes),
            now.heap - before.heap, now.files - before.files};
  }
  /// Files may also be let go.
  static std::string spell(std::int64_t bytes) {
    return bytes < 0 ? "-" + spellBytes(static_cast<std::uint64_t>(-bytes))
                     : spellBytes(static_cast<std::uint64_t>(bytes));
  }

  void printSummary() const {
    Growth growth = measureGrowth();
    JSONWriter json;
    auto addSummary = [&] {
      json.attribute("steps", steps);
      json.attribute("seconds", Fixed{total, 9});
      if (exposed)
        json.attribute("exposed_seconds", Fixed{*exposed, 9});
      if (predicted)
        json.attributeObject("predicted", [&] {
          json.attribute("step_seconds", Fixed{predicted->seconds, 9});
          json.attribute("exposed_seconds", Fixed{predicted->exposed, 9});
          json.attribute("flops", Rounded{predicted->flops, 17});
        });
      if (std::optional<double> mfu = findMFU())
        json.attribute("mfu", Rounded{*mfu, 9});
      json.attribute("parameters",
                     archive::spellChecksum(session.digestParameters()));
      json.attribute("resident_bytes", growth.resident);
      json.attribute("planned_bytes", growth.planned);
      json.attribute("scratch_bytes", growth.scratch);
      json.attribute("heap_bytes", growth.heap);
      json.attribute("file_bytes", growth.files);
      json.attribute("highest_byte", session.highestByte());
      json.attribute("load_seconds", Fixed{checkpoints.loadSeconds(), 6});
      json.attribute("save_seconds", Fixed{checkpoints.saveSeconds(), 6});
    };
    json.object([&] { json.attributeObject("summary", addSummary); });
    std::printf("%s\n", json.take().c_str());
  }

  /// A line for whoever reads objects.
  template <typename Contents> void sayObject(const Contents &contents) {
    if (!options.json && !tensorBoard)
      return;
    JSONWriter json;
    json.object([&] { contents(json); });
    std::string object = json.take() + '\n';
    if (options.json)
      std::fputs(object.c_str(), stdout);
    if (!tensorBoard)
      return;
    tensorBoard->tell(object);
    warn();
  }

  void warn() {
    if (std::string warning = tensorBoard->takeWarning(); !warning.empty())
      processes.note(warning);
  }

  const planfile::PlanFile &plan;
  const TrainingOptions &options;
  const Processes &processes;
  Resident before;
  const CheckpointFolder &checkpoints;
  const Session &session;
  const RankLog &log;
  std::array<double, 4> noted = {}; // in the log so far
  TensorBoard *tensorBoard;
  long long begun; // the step after which it goes on
  bool isTerminal;
  Clock::time_point last, shown;
  double total = 0;  // seconds of all steps
  double tokens = 0; // of a step, all ranks; 0 if there are none
  std::uint64_t memory = 0, misses = 0;
  double forward = 0, backward = 0, update = 0, collectives = 0;
  std::optional<double> exposed;               // of those that know it
  double toldCollectives = 0, toldExposed = 0; // of the steps that were told
  std::optional<planfile::StepPrediction> predicted;
  double firstLoss = 0, lastLoss = 0;
  long long steps = 0; // so far
};

} // namespace

std::unique_ptr<TrainingObserver> fsdp::makeReporter(const Training &training,
                                                     TensorBoard *tensorBoard) {
  return std::make_unique<Reporter>(training, tensorBoard);
}

void fsdp::flushOutput() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw Error(std::string("standard output: cannot write: ") +
                    std::strerror(errno),
                Failure::RankFailed);
}
