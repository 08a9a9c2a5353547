//===- Interruption.h - Whether a signal has asked for the end --*- C++ -*-===//
//
// A training ends after a step if a signal has asked any of its processes to.
// They have to agree on the step, which is a collective: so they ask each other
// only after so many steps as take a while.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_INTERRUPTION_H
#define FSDP_LIB_RUNTIME_TRAINING_INTERRUPTION_H

#include "fsdp/Runtime/Training/Processes.h"

#include <chrono>

namespace fsdp {

/// How long a run may go on before its processes ask each other again whether
/// it is to end.
inline constexpr std::chrono::milliseconds longestInterval{200};

/// How many steps to do before the next question, if `steps` have taken
/// `passed`: so many as take `longestInterval`, at least 1. At most twice as
/// many as before, since few steps say little of those to come: a machine may
/// have been idle for them alone.
long long getNextInterval(long long steps, std::chrono::nanoseconds passed);

class Interruption {
public:
  explicit Interruption(const Processes &processes);

  /// Asked after each step. The same on all processes.
  bool isDue(Session &session);

private:
  unsigned processes;
  std::shared_ptr<Lifeline> lifeline;
  std::chrono::steady_clock::time_point begin =
      std::chrono::steady_clock::now();
  long long interval = 1; ///< In steps.
  long long done = 0;     ///< Steps of it.
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_INTERRUPTION_H
