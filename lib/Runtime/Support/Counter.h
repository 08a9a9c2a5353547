//===- Counter.h - Waiting for a number to be reached -----------*- C++ -*-===//
//
// A number that one thread raises and others wait for. Waiting spins for a
// while, since a sleep costs about 40 us, and then sleeps on a futex, since
// pure spinning collapses as soon as there are more threads than cores. The
// sleep is cut into short ones that look at the abort flag and at the clock:
// nobody has to know who sleeps where.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_SUPPORT_COUNTER_H
#define FSDP_LIB_RUNTIME_SUPPORT_COUNTER_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fsdp {

/// 128: neighbours are fetched in pairs of cache lines.
class alignas(128) Counter {
public:
  void advance(std::uint64_t to) {
    value.store(to);
    if (sleepers.load() != 0)
      futex(FUTEX_WAKE_PRIVATE, INT_MAX, nullptr);
  }

  bool reached(std::uint64_t goal) const {
    return value.load(std::memory_order_acquire) >= goal;
  }

  enum class Outcome : std::uint8_t { Reached, Aborted, TimedOut };

  /// Until the goal is reached, `aborted` is set or `timeout` is over.
  Outcome await(std::uint64_t goal, const std::atomic<bool> &aborted,
                unsigned spins, std::chrono::milliseconds timeout) {
    for (unsigned i = 0; i != spins; ++i) {
      if (reached(goal))
        return Outcome::Reached;
      pause();
    }
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds longest{100};
    Clock::time_point begin = Clock::now();
    Outcome outcome = Outcome::Reached;
    sleepers.fetch_add(1);
    for (std::uint64_t seen; (seen = value.load()) < goal;) {
      auto waited =
          std::chrono::floor<std::chrono::milliseconds>(Clock::now() - begin);
      if (aborted.load() || waited >= timeout) {
        outcome = aborted.load() ? Outcome::Aborted : Outcome::TimedOut;
        break;
      }
      timespec limit{0,
                     std::min(longest, timeout - waited).count() * 1'000'000};
      futex(FUTEX_WAIT_PRIVATE, static_cast<std::uint32_t>(seen), &limit);
    }
    sleepers.fetch_sub(1);
    return outcome;
  }

private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  /// On the low half of the value.
  void futex(int operation, std::uint32_t argument, const timespec *limit) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    syscall(SYS_futex, &value, operation, argument, limit, nullptr, 0);
  }

  std::atomic<std::uint64_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// How long to spin: with fewer cores than threads, whoever spins keeps the
/// one that is waited for from running.
inline unsigned spinsFor(unsigned threads) {
  return threads <= std::thread::hardware_concurrency() ? 4000 : 50;
}

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_SUPPORT_COUNTER_H
