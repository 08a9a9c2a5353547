//===- PeerWatch.h - Who of the other processes still lives -----*- C++ -*-===//
//
// The thread that looks after the processes of a run, so that one that has died
// is named by the others whatever they are doing. On its own machine it sees
// them in the process table; of one on another machine it hears through the
// store, where each process counts up every second.
//
// What has started the processes sends SIGTERM to all when one has died, and
// soon after kills them: the thread takes the signal, and looks who it was.
// If all live, somebody wants the run to end: after SIGTERM, SIGINT or SIGUSR1
// it does so when a step has ended, after a second one at once.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_PEERWATCH_H
#define FSDP_LIB_RUNTIME_TRAINING_PEERWATCH_H

#include "fsdp/Runtime/Processes/FailureWatch.h"

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace fsdp {

class PeerWatch final : public FailureWatch {
public:
  /// Blocks these signals in this thread and those that it will start: before
  /// any.
  static void blockSignals();
  static void unblockSignals();
  /// What the signal would have done if it had not been blocked.
  static void obeySignals();

  struct Peer {
    unsigned rank;
    std::string host;
    std::string space; ///< Of the numbers of processes: those of another one
                       ///< mean nothing here.
    pid_t process;
  };
  /// That of this process.
  static std::string ownSpace();
  /// All processes of the run by rank, this one among them. `onFailure` is
  /// called once, by the thread, when one of them has died or has told of a
  /// failure; `onStop` when the run is to end.
  PeerWatch(std::vector<Peer> peers, unsigned rank,
            std::shared_ptr<Store> store,
            std::function<void(const Error &)> onFailure,
            std::function<void()> onStop);
  /// Before the processes may end.
  ~PeerWatch() override;

  /// A sentence about a process of this machine that has died, if one has.
  std::optional<Error> findDead() const;
  /// No process of this machine with a lower rank lives.
  bool isLowestHere() const;

private:
  bool isSeen(const Peer &peer) const;
  bool isDead(const Peer &peer) const;
  void work();
  std::optional<Error> look();
  std::optional<Error> ask();
  std::optional<Error> listen();

  std::vector<Peer> peers;
  unsigned rank;
  std::shared_ptr<Store> store;
  std::function<void(const Error &)> onFailure;
  std::function<void()> onStop;
  std::vector<bool> seen; ///< In this machine's process table, at first.
  std::int64_t heard = 0; ///< What the next rank has counted.
  std::chrono::steady_clock::time_point lastHeard, lastAsked;
  bool isStopped = false; ///< By a signal.
  std::atomic<bool> isOver{false};
  std::thread thread;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_PEERWATCH_H
