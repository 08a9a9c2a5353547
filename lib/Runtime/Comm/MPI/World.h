//===- World.h - Ranks as processes of one MPI job --------------*- C++ -*-===//
//
// Messages between two ranks are polled: so a wait ends with its time-out,
// knows whom it waits for, and blocks no other communicator.
//
// Any MPI 3.1 will do. Messages are of bytes: MPI need not know bf16. Each of
// our communicators has a tag of its own in one of MPI's, so that thousands of
// groups cost nothing to make.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_MPI_WORLD_H
#define FSDP_LIB_RUNTIME_COMM_MPI_WORLD_H

#include "../../Support/Text.h"
#include "../Messages.h"
#include "fsdp/Runtime/Support/Error.h"

#include <atomic>
#include <mutex>
#include <sched.h>
#include <thread>

#define OMPI_SKIP_MPICXX 1 // The C functions only.
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace fsdp {

/// A duplicate of an MPI communicator whose ranks are those of the run.
/// MPI is initialized with MPI_THREAD_SERIALIZED or more. No call waits in MPI.
class MPIWorld {
public:
  /// `spins`: how often a wait polls before it yields the core. Called by all
  /// ranks of `comm`, and waits for them.
  MPIWorld(MPI_Comm comm, unsigned spins, MessageComm::Limits limits = {});
  MPIWorld(const MPIWorld &) = delete;
  MPIWorld &operator=(const MPIWorld &) = delete;

  std::unique_ptr<Comm>
  openComm(unsigned communicator, const Group &group,
           std::chrono::milliseconds timeout = defaultTimeout);
  void abort() noexcept { aborted.store(true); }

private:
  friend class MPIComm;

  /// Makes an MPI call, alone; throws if it fails.
  template <typename Call> void call(const char *name, const Call &make) {
    std::lock_guard lock(mutex);
    if (int code = make(); code != MPI_SUCCESS)
      fail(name, code);
  }
  [[noreturn]] static void fail(const char *name, int code);
  void check() const;

  /// Polls until `test` is true. `describe`: what is waited for.
  template <typename Test, typename Describe>
  void await(const Test &test, std::chrono::milliseconds timeout,
             const Describe &describe) const;

  /// Never freed: all would have to come for it, and some may have failed.
  MPI_Comm comm = MPI_COMM_NULL;
  const unsigned spins;
  const MessageComm::Limits limits;
  std::mutex mutex; ///< Of MPI.
  std::atomic<bool> aborted{false};
};

template <typename Test, typename Describe>
void MPIWorld::await(const Test &test, std::chrono::milliseconds timeout,
                     const Describe &describe) const {
  using Clock = std::chrono::steady_clock;
  // A peer that comes so late is busy with something else.
  constexpr std::chrono::milliseconds isLate{20};
  constexpr std::chrono::microseconds nap{200};
  for (unsigned polls = 0; polls <= spins; ++polls)
    if (test())
      return;
  Clock::time_point begin = Clock::now();
  while (!test()) {
    check();
    auto waited = Clock::now() - begin;
    if (waited >= timeout)
      throw Error("waited " + spellSeconds(timeout) + " for " + describe(),
                  Failure::RankFailed);
    if (waited < isLate)
      sched_yield();
    else
      std::this_thread::sleep_for(nap);
  }
}

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_MPI_WORLD_H
