//===- Lifeline.h - Whether a run goes on -----------------------*- C++ -*-===//
//
// The one thread of a process that looks whether its run goes on, whatever else
// the process is doing. With a store alone, it asks once a second whether a
// process has told of a failure: a thousand others ask, too. If it knows the
// processes, one that has died is named: on this machine by the process table;
// on another machine through the store, where each process counts up every
// second.
//
// It takes SIGTERM, SIGINT and SIGUSR1 only if it is asked to, while it exists.
// What has started the processes sends one to all when a process has died, and
// soon after kills them: so the thread looks who it was. If all live, somebody
// wants the run to end: the first signal is remembered, the second one ends the
// process. One takes signals at a time; its threads need not block them.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_PROCESSES_LIFELINE_H
#define FSDP_RUNTIME_PROCESSES_LIFELINE_H

#include "fsdp/Runtime/Processes/Process.h"
#include "fsdp/Runtime/Processes/Store.h"
#include "fsdp/Runtime/Support/Error.h"

#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace fsdp {

class Lifeline : public std::enable_shared_from_this<Lifeline> {
public:
  /// Between two questions to the store, while nothing is wrong.
  static constexpr std::chrono::seconds period{1};

  struct Options {
    std::shared_ptr<Store> store =
        nullptr;                         ///< Null: nobody else is in the run.
    std::vector<Process> processes = {}; ///< By rank, if they are known.
    unsigned rank = 0;                   ///< Of this process among them.
    bool takesSignals = false;
  };
  explicit Lifeline(Options options);
  ~Lifeline();
  Lifeline(const Lifeline &) = delete;
  Lifeline &operator=(const Lifeline &) = delete;

  /// Calls `onFailure` once if a process has died or told of a failure, at any
  /// time, from any thread, until what is returned goes, which waits for the
  /// call.
  [[nodiscard]] std::shared_ptr<void>
  subscribe(std::function<void(const Error &)> onFailure);

  /// A signal has asked for the end of the run.
  bool isInterrupted() const;

  /// A sentence about a process of this machine that has died, if one has.
  std::optional<Error> findDead() const;
  /// No process of this machine with a lower rank lives.
  bool isLowestHere() const;

  /// From now on, processes may end. Signals are still taken.
  void stopLooking();

private:
  void takeSignals();
  std::optional<Error> look();
  std::optional<Error> listen();
  void ring(const Error &error);
  void work();

  static constexpr std::array signals = {SIGTERM, SIGINT, SIGUSR1};

  const Options options;
  std::vector<bool> seen; ///< In this machine's process table, at first.
  std::int64_t heard = 0; ///< What the next rank has counted.
  std::chrono::steady_clock::time_point lastHeard, lastAsked;

  std::recursive_mutex mutex; ///< Of the next three.
  std::optional<Error> failure;
  unsigned next = 0;
  std::map<unsigned, std::function<void(const Error &)>> subscribers;

  int wakeup = -1; ///< A descriptor that ends the nap of the thread.
  int wakeupBefore = -1;
  std::array<struct sigaction, signals.size()> before = {};
  std::atomic<bool> isOver{false};
  std::thread thread;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_PROCESSES_LIFELINE_H
