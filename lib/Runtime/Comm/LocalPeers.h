//===- LocalPeers.h - The group of a rank in one process --------*- C++ -*-===//
//
// What communicators of ranks that are threads have in common: how a member
// waits for another.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_LOCALPEERS_H
#define FSDP_LIB_RUNTIME_COMM_LOCALPEERS_H

#include "../Support/Waits.h"
#include "Slices.h"
#include "fsdp/Runtime/Comm/Comm.h"

namespace fsdp {

class LocalPeers {
public:
  LocalPeers(const Waits &waits, std::chrono::milliseconds timeout,
             const Group &own)
      : index(own.index), size(static_cast<unsigned>(own.members.size())),
        waits(waits), timeout(timeout), ranks(own.members) {}

  const unsigned index; ///< This member.
  const unsigned size;

  /// Its rank among all.
  unsigned rank(unsigned member) const { return ranks[member]; }

  /// Waits for a counter of `member`, who is to do `deed`. Throws when the time
  /// is over, or the run has been aborted.
  void await(Counter &counter, std::uint64_t goal, unsigned member,
             const char *deed) const {
    waits.await(counter, goal, timeout, [&] {
      return "rank " + std::to_string(ranks[member]) + " to " + deed;
    });
  }
  void check() const { waits.check(); }

  /// See `Slices`.
  std::size_t begin(unsigned member, std::size_t count) const {
    return Slices{size}.begin(member, count);
  }
  std::size_t slice(std::size_t count) const {
    return Slices{size}.most(count);
  }

private:
  const Waits &waits;
  std::chrono::milliseconds timeout;
  std::vector<unsigned> ranks;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_LOCALPEERS_H
