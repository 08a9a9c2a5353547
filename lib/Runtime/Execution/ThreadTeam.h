//===- ThreadTeam.h - Threads that work on one job --------------*- C++ -*-===//
//
// Runs a job on all members at once and waits for the last. Member 0 is the
// caller itself: with as many ranks as cores, a caller that waits on the side
// would either take a core away by spinning or add a sleep to every step.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_THREADTEAM_H
#define FSDP_LIB_RUNTIME_EXECUTION_THREADTEAM_H

#include "../Support/Counter.h"

#include <functional>
#include <thread>
#include <vector>

namespace fsdp {

class ThreadTeam {
public:
  /// `total`: how many threads wait and work in all, if there are other teams.
  /// Throws, and leaves no thread behind, if one can't be started.
  explicit ThreadTeam(unsigned members, unsigned total = 0);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam &) = delete;
  ThreadTeam &operator=(const ThreadTeam &) = delete;

  using Job = std::function<void(unsigned member)>;

  /// `job` must not throw.
  void run(const Job &job);

private:
  void work(unsigned member);
  void end();

  unsigned spins;
  std::uint64_t epoch = 0;
  const Job *job = nullptr; ///< Null: the end.
  Counter started;
  std::vector<Counter> finished;
  std::vector<std::thread> threads;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_THREADTEAM_H
