//===- Interruption.h - A training that is asked to end ---------*- C++ -*-===//
//
// While one of these exists, the first SIGTERM, SIGINT or SIGUSR1 is
// remembered, so that a training can end after a step; the second one ends the
// process. In a run of several processes, `PeerWatch` takes the signals.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_INTERRUPTION_H
#define FSDP_LIB_RUNTIME_TRAINING_INTERRUPTION_H

#include "fsdp/Runtime/Training/Processes.h"

#include <csignal>

namespace fsdp {

class Interruption {
public:
  explicit Interruption(const Processes &processes);
  ~Interruption();
  Interruption(const Interruption &) = delete;
  Interruption &operator=(const Interruption &) = delete;

  /// Whether any process is to end: the same on all of them, which ask after
  /// the same steps. Now and then, if steps are short.
  bool isDue(long long step, Session &session);

private:
  bool isAsked() const;

  const Processes &processes;
  struct sigaction before[3];
  std::chrono::steady_clock::time_point begin =
      std::chrono::steady_clock::now();
  long long first = 0, interval = 1; ///< In steps.
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_INTERRUPTION_H
