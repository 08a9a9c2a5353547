//===- Waits.h - How threads wait for one another ---------------*- C++ -*-===//
//
// What the waits of one set of threads have in common: how long they spin, and
// that one call ends them all.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_SUPPORT_WAITS_H
#define FSDP_LIB_RUNTIME_SUPPORT_WAITS_H

#include "Counter.h"
#include "Text.h"

namespace fsdp {

class Waits {
public:
  explicit Waits(unsigned threads) : spins(spinsFor(threads)) {}

  /// All waits throw, these and later ones.
  void abort() noexcept { aborted.store(true); }

  void check() const {
    if (aborted.load(std::memory_order_relaxed))
      stop();
  }

  /// Throws if it is over before `goal` is reached; `describe` then returns
  /// what was waited for.
  template <typename Describe>
  void await(Counter &counter, std::uint64_t goal,
             std::chrono::milliseconds timeout, Describe describe) const {
    if (counter.reached(goal))
      return;
    switch (counter.await(goal, aborted, spins, timeout)) {
    case Counter::Outcome::Reached:
      return;
    case Counter::Outcome::Aborted:
      stop();
    case Counter::Outcome::TimedOut:
      throw Error("waited " + spellSeconds(timeout) + " for " + describe(),
                  Failure::RankFailed);
    }
  }

private:
  [[noreturn]] static void stop() {
    throw Error("stopped because another rank failed", Failure::RankFailed);
  }

  std::atomic<bool> aborted{false};
  unsigned spins;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_SUPPORT_WAITS_H
