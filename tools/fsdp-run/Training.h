//===- Training.h - The loop of fsdp-run, and what it says ------*- C++ -*-===//

#ifndef FSDP_TOOLS_FSDP_RUN_TRAINING_H
#define FSDP_TOOLS_FSDP_RUN_TRAINING_H

#include "LearningRates.h"
#include "Processes.h"
#include "Resident.h"
#include "Summon.h"
#include "fsdp/Runtime/Data.h"

namespace fsdp {

/// The program that evaluates.
inline const std::string evalProgram = "eval";

/// Trains for `options.steps` steps at these rates, or until a loss is not
/// finite, and reports on stdout; evaluates `evalData`, if there is any, now
/// and then. `before`: the memory of the process before anything was loaded.
/// `summon` reads what is asked for and writes it after the last step.
/// Returns the exit code; what it throws has stopped a training.
int train(const planfile::PlanFile &plan, const Options &options,
          const Processes &processes, const LearningRates &rates,
          const Resident &before, Data &data, std::optional<Data> &evalData,
          Summon &summon, Session &session);

/// The factor of each decay group of the plan that has one, by those of groups
/// of learning rates. Throws if the plan lacks one of these.
std::map<unsigned, double>
scaleGroups(const planfile::PlanFile &plan,
            const std::map<unsigned, double> &scales);

/// Throws if something that was printed is lost.
void flushOutput();

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_TRAINING_H
