//===- Watch.cpp - Who ends waits that the rank cannot end ----------------===//
#include "Watch.h"

#include "../../Support/Text.h"
#include "fsdp/Archive/WriteFile.h"

#include <algorithm>

using namespace fsdp;
using namespace std::chrono_literals;

void NCCLWatch::stop() {
  if (!thread.joinable())
    return;
  bool isStuck = false;
  {
    std::lock_guard lock(mutex);
    isOver = true;
    isStuck = isAborted() && !isRevoked && !all.empty();
    if (isStuck)
      for (Watched &watched : all)
        (void)watched.done.release(); // Destroying it might wait, too.
  }
  changed.notify_all();
  isStuck ? thread.detach() : thread.join();
}

NCCLWatch::Place NCCLWatch::add(Watched watched) {
  std::lock_guard lock(mutex);
  if (!thread.joinable()) {
    archive::SignalsBlocked blocked;
    thread = std::thread([self = shared_from_this()] { self->work(); });
  }
  all.push_back(std::move(watched));
  return std::prev(all.end());
}

bool NCCLWatch::remove(Place place) {
  std::lock_guard lock(mutex);
  if (isAborted())
    return false;
  all.erase(place);
  return true;
}

std::optional<std::vector<ncclComm_t>>
NCCLWatch::takeRevoked(Clock::duration grace) {
  std::unique_lock lock(mutex);
  std::vector<ncclComm_t> comms;
  if (!changed.wait_for(lock, grace,
                        [this] { return isRevoked || all.empty(); }))
    return std::nullopt;
  for (const Watched &watched : all)
    comms.push_back(watched.comm);
  all.clear();
  return comms;
}

NCCLWatch::Call::Call(NCCLWatch &watch, Place place)
    : watch(watch), place(place) {
  watch.check();
  std::lock_guard lock(watch.mutex);
  place->since = Clock::now();
  place->isInside = true;
}

NCCLWatch::Call::~Call() {
  std::lock_guard lock(watch.mutex);
  place->isInside = false;
}

void NCCLWatch::check() const {
  if (!isAborted())
    return;
  std::lock_guard lock(mutex);
  throw Error(reason, Failure::RankFailed);
}

void NCCLWatch::abort() noexcept {
  {
    std::lock_guard lock(mutex);
    aborted.store(true);
  }
  changed.notify_all();
}

bool NCCLWatch::isDone(Watched &watched) const {
  if (watched.isInside || !watched.since)
    return !watched.isInside;
  api.setDevice(watched.device); // Or the thread would make another context.
  if (api.eventQuery(watched.done.get()) == cudaErrorNotReady)
    return false;
  watched.since.reset();
  return true;
}

std::optional<std::string> NCCLWatch::findLate(Clock::time_point now) {
  for (Watched &watched : all)
    if (watched.since && now - *watched.since >= watched.timeout &&
        !isDone(watched))
      return "waited " + spellSeconds(watched.timeout) + " for the others of " +
             watched.members + " to join a collective";
  return std::nullopt;
}

std::optional<std::string> NCCLWatch::describeLatest() {
  std::lock_guard lock(mutex);
  const Watched *oldest = nullptr;
  for (Watched &watched : all)
    if (!isDone(watched) && (!oldest || watched.since < oldest->since))
      oldest = &watched;
  if (!oldest)
    return std::nullopt;
  return "the others of " + oldest->members + " to join a collective";
}

void NCCLWatch::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    Clock::duration pause = 1s;
    for (const Watched &watched : all)
      pause = std::min<Clock::duration>(pause, watched.timeout / 8);
    bool isWoken = changed.wait_for(lock, std::max<Clock::duration>(pause, 1ms),
                                    [this] { return isOver || isAborted(); });
    if (isOver)
      return;
    if (!isWoken) {
      std::optional<std::string> late = findLate(Clock::now());
      if (!late)
        continue;
      reason = *late;
      aborted.store(true);
    }
    return revoke(lock);
  }
}

void NCCLWatch::revoke(std::unique_lock<std::mutex> &lock) {
  std::vector<ncclComm_t> comms;
  for (const Watched &watched : all)
    comms.push_back(watched.comm);
  // None is freed before all are revoked. Whoever is inside goes on meanwhile.
  lock.unlock();
  ncclGroupStart();
  for (ncclComm_t comm : comms)
    ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT);
  ncclGroupEnd();
  lock.lock();
  isRevoked = true;
  changed.notify_all();
}
