//===- Training.cpp - The loop over steps ---------------------------------===//

#include "fsdp/Runtime/Training/Training.h"

#include "Interruption.h"
#include "LearningRates.h"
#include "Summon.h"

#include <cmath>
#include <cstdio>

using namespace fsdp;

/// Sets the inputs of a program to the next batches of the ranks of this
/// process.
static void setInputs(const std::string &program, unsigned inputs, Data &data,
                      Session &session) {
  data.next(session.ranks());
  for (unsigned rank = session.ranks().first; rank != session.ranks().end();
       ++rank)
    for (unsigned i = 0; i != inputs; ++i)
      session.setInput(rank, i, data.input(rank, i), program);
}

/// The mean loss over all batches, which are a multiple of the ranks.
static double evaluate(unsigned ranks, Data &data, Session &session) {
  double sum = 0;
  unsigned inputs = session.inputCount(evalProgram);
  data.seek(0);
  for (std::uint64_t first = 0; first != data.batches(); first += ranks) {
    setInputs(evalProgram, inputs, data, session);
    session.run(evalProgram, {.backward = false, .update = false});
    sum += session.loss(evalProgram);
  }
  return sum / static_cast<double>(data.batches() / ranks);
}

namespace {

/// How a training has ended.
struct End {
  double loss = 0; ///< Of the last step.
  bool isInterrupted = false;
};

} // namespace

static void setHyperParameters(const Training &training, double lr) {
  HyperParameters hyper = training.options.hyperParameters;
  hyper.lr = lr;
  training.session.setHyperParameters(hyper);
  for (const auto &[group, factor] : training.rates.groups()) {
    HyperParameters scaled = hyper;
    scaled.lr *= factor;
    training.session.setHyperParameters(group, scaled);
  }
}

/// Runs the programs of a step and returns its loss.
static double runStep(Training &training,
                      const std::vector<std::string> &programs, bool isLast,
                      TrainingObserver &observer) {
  Session &session = training.session;
  unsigned inputs = session.inputCount(programs.front());
  double loss = 0;
  for (const std::string &program : programs) {
    setInputs(program, inputs, training.data, session);
    bool summons = training.summon.wantsGradients() && isLast &&
                   program == programs.back();
    session.run(program, {.update = !summons});
    loss += session.loss(program) / static_cast<double>(programs.size());
    observer.endProgram();
    if (!summons)
      continue;
    training.summon.readGradients(session);
    session.run(program, {.forward = false, .backward = false});
    observer.endProgram();
  }
  return loss;
}

/// Fewer steps are done than wanted if a loss is not finite, since nothing
/// makes the parameters finite again.
static End runSteps(Training &training, TrainingObserver &observer) {
  const TrainingOptions &options = training.options;
  Session &session = training.session;
  CheckpointFolder &checkpoints = training.checkpoints;
  unsigned ranks = planfile::getRankCount(training.plan.plan());
  std::vector<std::string> programs =
      getStepPrograms(training.plan, options.program);
  Interruption interruption(training.processes);
  End end;
  for (long long step = training.state.step + 1; step <= options.steps;
       ++step) {
    double lr = training.rates.at(step);
    setHyperParameters(training, lr);
    end.loss = runStep(training, programs, step == options.steps, observer);
    training.state.step = step;
    training.state.position = training.data.position();
    training.state.updates = session.updates();
    observer.endStep(step, end.loss, lr);
    if (!std::isfinite(end.loss))
      return end;
    // It may draw random numbers: what goes on later must not draw them again.
    if (training.evalData && step % options.evalEvery == 0)
      observer.endEvaluation(step,
                             evaluate(ranks, *training.evalData, session));
    if (checkpoints.isDue(step))
      checkpoints.save(training.state, session);
    end.isInterrupted = interruption.isDue(session);
    if (end.isInterrupted)
      break;
  }
  if (checkpoints.areWanted() && !checkpoints.has(training.state.step))
    checkpoints.save(training.state, session);
  checkpoints.finish();
  return end;
}

int fsdp::train(Training training, TrainingObserver &observer) {
  const Processes &processes = training.processes;
  try {
    End end = runSteps(training, observer);
    observer.summarize();
    if (end.isInterrupted) {
      processes.note("stopped by a signal after step " +
                     std::to_string(training.state.step));
      return interruptedCode;
    }
    if (std::isfinite(end.loss)) {
      training.summon.write(training.session);
      return 0;
    }
    char found[32];
    std::snprintf(found, sizeof found, "%g", end.loss);
    processes.sayError("step " + std::to_string(training.state.step) +
                       ": expected a loss that is finite, found " + found +
                       "; training has stopped");
    return static_cast<int>(Failure::CheckFailed);
  } catch (const Error &error) {
    throw Error(error.what(), Failure::RankFailed);
  }
}
