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
  /// All that can be rejected is, before anything is allocated. `processes`
  /// outlives it.
  TrainingRun(const TrainingOptions &options, Processes &processes);
  ~TrainingRun();
  TrainingRun(const TrainingRun &) = delete;
  TrainingRun &operator=(const TrainingRun &) = delete;

  /// What must be the same for all processes.
  std::vector<Fact> facts() const;

  /// Once. Returns the exit code: 0; `interruptedCode`; or 2, for a comparison
  /// that fails or a loss that is not finite. Throws where the run fails.
  int execute(RunListener &listener);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_TRAININGRUN_H
