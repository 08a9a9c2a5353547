//===- Interruption.cpp - A training that is asked to end -----------------===//

#include "Interruption.h"

using namespace fsdp;
using namespace std::chrono_literals;

static constexpr int signals[] = {SIGTERM, SIGINT, SIGUSR1};
/// How long a run may go on before its processes ask each other again.
static constexpr auto longestDelay = 200ms;

// All that a handler may write to is static.
static volatile std::sig_atomic_t isSignalled = 0;
static void remember(int) { isSignalled = 1; }

Interruption::Interruption(const Processes &processes) : processes(processes) {
  isSignalled = 0;
  struct sigaction action = {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (std::size_t i = 0; i != std::size(signals); ++i)
    ::sigaction(signals[i], &action, &before[i]);
}

Interruption::~Interruption() {
  for (std::size_t i = 0; i != std::size(signals); ++i)
    ::sigaction(signals[i], &before[i], nullptr);
}

bool Interruption::isAsked() const {
  return isSignalled != 0 || processes.isStopped();
}

bool Interruption::isDue(long long step, Session &session) {
  if (processes.size() == 1)
    return isAsked();
  if (first == 0)
    first = step;
  if ((step - first) % interval != 0)
    return false;
  // The slowest process has the say.
  auto passed = std::chrono::steady_clock::now() - begin;
  long long steps = step - first + 1;
  auto wanted = std::max<long long>(1, longestDelay * steps / passed);
  std::uint64_t shown = (isAsked() ? std::uint64_t{1} << 63 : 0) |
                        static_cast<std::uint64_t>(wanted);
  std::uint64_t agreed = session.largest(shown);
  bool isAgreed = agreed >> 63;
  interval = static_cast<long long>(agreed & ~(std::uint64_t{1} << 63));
  first = step;
  begin = std::chrono::steady_clock::now();
  return isAgreed;
}
