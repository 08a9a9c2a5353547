//===- FakeNccl.h - NCCL of ordinary memory ---------------------*- C++ -*-===//
//
// FakeNccl.cpp defines the functions of NCCL that the runtime calls, for ranks
// that are threads or processes of one machine and have a `FakeCuda` each. They
// meet in shared memory. Where a communicator does not block, its calls are in
// progress for a random number of polls. Otherwise the first collective waits
// for all members, and so does a window. Collectives are kernels that poll;
// what the members give must agree, call by call. Sums start with another
// member on each rank, and are rounded after each addition. What NCCL does not
// survive ends the process: who aborts a communicator that a thread is in, or
// aborts one while kernels of another wait, or revokes one that is being made.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_TEST_UNIT_RUNTIME_FAKENCCL_H
#define FSDP_TEST_UNIT_RUNTIME_FAKENCCL_H

#include "FakeCuda.h"

namespace fsdp::fakenccl {

/// Of a rank.
struct Setup {
  FakeCuda *cuda = nullptr;
  unsigned seed = 0;
  /// Instead of ordinary memory.
  std::function<void *(std::size_t)> allocate = {};
  bool hasWindows = true;
  /// The communicator, counted from 0, that it never comes to.
  int absentFrom = -1;
  /// The operation of a communicator, counted from 1, that fails, or that it
  /// never comes to.
  std::uint64_t failsAt = 0, hangsAt = 0;
  /// Nothing ends its kernels, as it is where copy engines wait.
  bool isDeaf = false;
};

/// Of the communicators that this thread makes from now on.
void setUp(Setup setup);
/// The same, of a rank that was set up before: a thread may work for several.
void goOn(Setup setup);

/// The calls that this thread has made since the last time.
std::vector<std::string> takeLog();

/// How groups of communicators have ended, in all threads, since the last time:
/// "revoked 2".
std::vector<std::string> takeEndings();

/// Communicators of this process that have not been destroyed, and blocks that
/// have not been freed.
int leaks();

} // namespace fsdp::fakenccl

#endif // FSDP_TEST_UNIT_RUNTIME_FAKENCCL_H
