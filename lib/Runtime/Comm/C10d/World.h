//===- World.h - Ranks as processes of one c10d group -----------*- C++ -*-===//
//
// Messages between two ranks, by `send` and `recv` of a backend of c10d: a wait
// for one ends with its time-out, knows whom it waits for, and can be ended
// from any thread; collectives of gloo offer none of these. Each of our
// communicators has a tag of its own in the one group, so that thousands of
// groups cost nothing to make, and none blocks another.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_COMM_C10D_WORLD_H
#define FSDP_LIB_RUNTIME_COMM_C10D_WORLD_H

#include "../Messages.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <mutex>

namespace fsdp {

/// The members of the group are the ranks of the run. Several threads may use
/// communicators of it, one thread each.
class C10dWorld {
public:
  explicit C10dWorld(c10::intrusive_ptr<c10d::Backend> group,
                     MessageComm::Limits limits = {})
      : group(std::move(group)), limits(limits) {}
  C10dWorld(const C10dWorld &) = delete;
  C10dWorld &operator=(const C10dWorld &) = delete;

  std::unique_ptr<Comm>
  openComm(unsigned communicator, const Group &group,
           std::chrono::milliseconds timeout = defaultTimeout);
  void abort() noexcept;

private:
  friend class C10dComm;

  void check() const;

  /// Waits until the work is done, or aborted; throws what `Work::wait` does.
  void await(c10d::Work &work, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<c10d::Backend> group;
  const MessageComm::Limits limits;
  std::mutex posting; ///< Of the group.
  std::mutex mutex;   ///< Of `awaited`.
  std::vector<c10d::Work *> awaited;
  std::atomic<bool> aborted{false};
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_COMM_C10D_WORLD_H
