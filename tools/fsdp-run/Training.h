//===- Training.h - The loop of fsdp-run, and what it says ------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_RUN_TRAINING_H
#define FSDP_TOOLS_FSDP_RUN_TRAINING_H

#include "Checkpoints.h"
#include "LearningRates.h"
#include "Processes.h"
#include "Resident.h"
#include "Summon.h"
#include "TensorBoard.h"
#include "fsdp/Runtime/Data/Data.h"

namespace fsdp {

/// The program that evaluates.
inline const std::string evalProgram = "eval";

/// What a training is made of.
struct Training {
  const planfile::PlanFile &plan;
  const Options &options;
  const Processes &processes;
  const LearningRates &rates;
  const Resident &before; ///< The process before anything was loaded.
  Data &data;
  std::optional<Data> &evalData;
  Summon &summon;
  Checkpoints &checkpoints;
  /// Of a checkpoint but for what changes from step to step, which is where
  /// the training begins.
  archive::TrainingState state;
  Session &session;
  const RankLog &log;
  TensorBoard *tensorBoard; ///< Or null.
};

/// Trains up to step `options.steps`, or until a loss is not finite or a signal
/// asks for an end, and reports on stdout; evaluates, writes checkpoints, and
/// after the last step what `summon` asks for. Returns the exit code; what it
/// throws has stopped a training.
int train(Training training);

/// The factor of each decay group of the plan that has one, by those of groups
/// of learning rates. Throws if the plan lacks one of these.
std::map<unsigned, double>
scaleGroups(const planfile::PlanFile &plan,
            const std::map<unsigned, double> &scales);

/// Throws if something that was printed is lost.
void flushOutput();

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_TRAINING_H
