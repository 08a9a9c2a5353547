//===- TrainingRun.h - A training from its options to its end ---*- C++ -*-===//
//
// What fsdp-run does, without its command line and its output: opens the plan
// and all files, agrees with other processes, starts or resumes, trains or
// compares, and writes what is asked for.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_TRAINING_TRAININGRUN_H
#define FSDP_RUNTIME_TRAINING_TRAININGRUN_H

#include "fsdp/Runtime/Data/Reference.h"
#include "fsdp/Runtime/Training/Training.h"

namespace fsdp {

/// Hears what becomes of a run. Nothing, if it overrides nothing.
class RunListener {
public:
  virtual ~RunListener() = default;
  /// A training begins, or goes on.
  virtual std::unique_ptr<TrainingObserver>
  watch(const Training & /*training*/) {
    return std::make_unique<TrainingObserver>();
  }
  /// A step was compared with a reference.
  virtual void tell(const Comparison & /*comparison*/) {}
};

class TrainingRun {
public:
  /// Runs what all processes are given, which they compare before anything is
  /// loaded. `readOptions` may reject what there is, and returns nothing if
  /// there is nothing to do. Returns the exit code of the run, or throws on all
  /// processes.
  static int
  run(Processes &processes,
      const std::function<std::optional<TrainingOptions>()> &readOptions,
      const std::function<std::unique_ptr<RunListener>(const TrainingOptions &)>
          &makeListener);

  // The same for one process.

  /// All that can be rejected is, before anything is allocated. `processes`
  /// outlives it.
  TrainingRun(const TrainingOptions &options, Processes &processes);
  ~TrainingRun();
  TrainingRun(const TrainingRun &) = delete;
  TrainingRun &operator=(const TrainingRun &) = delete;

  /// Once. Returns the exit code: 0; `interruptedCode`; or 2, for a comparison
  /// that fails or a loss that is not finite. Throws where the run fails.
  int execute(RunListener &listener);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_TRAININGRUN_H
