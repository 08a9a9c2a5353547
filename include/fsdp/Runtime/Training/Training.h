//===- Training.h - The loop over steps -------------------------*- C++ -*-===//

#ifndef FSDP_RUNTIME_TRAINING_TRAINING_H
#define FSDP_RUNTIME_TRAINING_TRAINING_H

#include "fsdp/Runtime/Data/Data.h"
#include "fsdp/Runtime/Training/CheckpointFolder.h"
#include "fsdp/Runtime/Training/Processes.h"
#include "fsdp/Runtime/Training/Resident.h"

namespace fsdp {

class LearningRates;
class Summon;

/// The program that evaluates.
inline const std::string evalProgram = "eval";

/// The exit code of a training that was asked to end.
inline constexpr int interruptedCode = 4;

/// What a training is made of.
struct Training {
  const planfile::PlanFile &plan;
  const TrainingOptions &options;
  const Processes &processes;
  const LearningRates &rates;
  const Resident &before; ///< The process before anything was loaded.
  Data &data;
  std::optional<Data> &evalData;
  Summon &summon;
  CheckpointFolder &checkpoints;
  /// Of a checkpoint but for what changes from step to step, which is where
  /// the training begins.
  archive::TrainingState state;
  Session &session;
  const RankLog &log;
};

/// Hears how a training goes, from the thread that trains. What it throws stops
/// the training.
class TrainingObserver {
public:
  virtual ~TrainingObserver() = default;
  /// A program of a step has ended.
  virtual void endProgram() {}
  /// Step number `step`, counted from 1, has ended, with that loss.
  virtual void endStep(long long /*step*/, double /*loss*/, double /*lr*/) {}
  virtual void endEvaluation(long long /*step*/, double /*loss*/) {}
  /// All steps have ended, or the last one that there will be.
  virtual void summarize() {}
};

/// Trains up to step `options.steps`, or until a loss is not finite or a signal
/// asks for an end; evaluates, writes checkpoints, and after the last step what
/// `summon` asks for. Returns the exit code; what it throws has stopped a
/// training.
int train(Training training, TrainingObserver &observer);

} // namespace fsdp

#endif // FSDP_RUNTIME_TRAINING_TRAINING_H
