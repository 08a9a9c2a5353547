//===- Interruption.cpp - Whether a signal has asked for the end ----------===//

#include "Interruption.h"

#include <algorithm>

using namespace fsdp;

long long fsdp::getNextInterval(long long steps,
                                std::chrono::nanoseconds passed) {
  if (passed * 2 <= longestInterval)
    return 2 * steps;
  return std::max<long long>(1, longestInterval * steps / passed);
}

Interruption::Interruption(const Processes &processes)
    : processes(processes.size()), lifeline(processes.getLifeline()) {
  if (!lifeline)
    lifeline =
        std::make_shared<Lifeline>(Lifeline::Options{.takesSignals = true});
}

bool Interruption::isDue(Session &session) {
  if (processes == 1)
    return lifeline->isInterrupted();
  if (++done != interval)
    return false;
  // The largest of what the processes say has the smallest of their intervals:
  // the slowest one has the say.
  constexpr std::uint64_t asked = std::uint64_t{1} << 63;
  long long wanted =
      getNextInterval(done, std::chrono::steady_clock::now() - begin);
  std::uint64_t agreed =
      session.largest((lifeline->isInterrupted() ? asked : 0) |
                      (asked - static_cast<std::uint64_t>(wanted)));
  interval = static_cast<long long>(asked - (agreed & ~asked));
  done = 0;
  begin = std::chrono::steady_clock::now();
  return (agreed & asked) != 0;
}
