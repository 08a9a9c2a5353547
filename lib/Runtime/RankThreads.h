//===- RankThreads.h - One thread per rank ----------------------*- C++ -*-===//
//
// Runs a job on all ranks at once and waits for the last. Rank 0 is the caller
// itself: with as many ranks as cores, a caller that waits on the side would
// either take a core away by spinning or add a sleep to every step.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_RANKTHREADS_H
#define FSDP_LIB_RUNTIME_RANKTHREADS_H

#include "Counter.h"

#include <functional>
#include <thread>
#include <vector>

namespace fsdp {

class RankThreads {
public:
  explicit RankThreads(unsigned ranks);
  ~RankThreads();
  RankThreads(const RankThreads &) = delete;
  RankThreads &operator=(const RankThreads &) = delete;

  using Job = std::function<void(unsigned rank)>;

  /// `job` must not throw.
  void run(const Job &job);

private:
  void work(unsigned rank);

  unsigned spins;
  std::uint64_t epoch = 0;
  const Job *job = nullptr; ///< Null: the end.
  Counter started;
  std::vector<Counter> finished;
  std::vector<std::thread> threads;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_RANKTHREADS_H
