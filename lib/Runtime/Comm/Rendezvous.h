//===- Rendezvous.h - The sessions of one run -------------------*- C++ -*-===//
//
// What a session says to the others of its run, through their store: the first
// failure of the run is that of all sessions, and they wait for one another
// before the first step. A session that has all ranks talks to nobody.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_RENDEZVOUS_H
#define FSDP_LIB_RUNTIME_COMM_RENDEZVOUS_H

#include "fsdp/Runtime/Comm/Comm.h"
#include "fsdp/Runtime/Processes/Lifeline.h"
#include "fsdp/Runtime/Support/Error.h"

#include <functional>
#include <memory>

namespace fsdp {

class Rendezvous {
public:
  Rendezvous(std::shared_ptr<Store> store, RankRange here, unsigned worldSize,
             std::chrono::milliseconds timeout);
  Rendezvous(const Rendezvous &) = delete;
  Rendezvous &operator=(const Rendezvous &) = delete;

  bool isAlone() const { return here.count == worldSize; }

  /// Calls `onFailure`, from another thread, when another session fails. With
  /// `shared`, somebody looks for that already.
  void watch(std::shared_ptr<Lifeline> shared,
             std::function<void(const Error &)> onFailure);

  /// Tells the others, and returns the first failure of the run, as far as it
  /// can be known.
  Error fail(const Error &error);

  /// Returns when all sessions have called it for this `deed`, "load the plan".
  void meet(const std::string &deed);

  /// Rank 0's value of `key`: its session sets it, the others wait for it.
  std::string share(const std::string &key, const std::string &value);

private:
  std::string await(const std::string &key,
                    const std::function<std::string()> &describe);

  std::shared_ptr<Store> store;
  RankRange here;
  unsigned worldSize;
  std::chrono::milliseconds timeout;
  std::shared_ptr<Lifeline> lifeline;
  std::shared_ptr<void> subscription; ///< Ends before what it is of.
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_RENDEZVOUS_H
