//===- PeerWatch.cpp - Who of the other processes still lives -------------===//

#include "PeerWatch.h"

#include "fsdp/Runtime/Agreement.h"

#include <csignal>
#include <ctime>
#include <fstream>

using namespace fsdp;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Between two looks.
static constexpr std::chrono::milliseconds nap = 100ms;
/// Between two counts, and how long nothing may be counted.
static constexpr auto beat = 1s, longestSilence = 8s;
/// How often to look after a signal: what sends it kills a second later.
static constexpr std::chrono::milliseconds shortNap = 10ms;

static constexpr int stopSignals[] = {SIGTERM, SIGINT, SIGUSR1};

static sigset_t terminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : stopSignals)
    sigaddset(&signals, signal);
  return signals;
}

void PeerWatch::blockSignals() {
  sigset_t signals = terminationSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void PeerWatch::unblockSignals() {
  sigset_t signals = terminationSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

static void endBySignal(int signal) {
  std::signal(signal, SIG_DFL);
  PeerWatch::unblockSignals();
  raise(signal);
}

void PeerWatch::obeySignals() {
  sigset_t signals = terminationSignals();
  timespec now{};
  if (int signal = sigtimedwait(&signals, nullptr, &now); signal > 0)
    endBySignal(signal);
}

PeerWatch::PeerWatch(std::vector<Peer> given, unsigned rank,
                     std::shared_ptr<Store> store,
                     std::function<void(const Error &)> onFailure,
                     std::function<void()> onStop)
    : peers(std::move(given)), rank(rank), store(std::move(store)),
      onFailure(std::move(onFailure)), onStop(std::move(onStop)),
      lastHeard(Clock::now()) {
  // In another process namespace, the host's name may still be the same.
  for (const Peer &peer : peers)
    seen.push_back(peer.host == peers[rank].host && !isDead(peer));
  thread = std::thread([this] { work(); });
}

PeerWatch::~PeerWatch() {
  isOver.store(true);
  thread.join();
}

/// Also true of one that has ended and is still in the process table.
bool PeerWatch::isDead(const Peer &peer) const {
  std::ifstream file("/proc/" + std::to_string(peer.process) + "/stat");
  std::string text;
  if (!std::getline(file, text))
    return true;
  // "12 (name) Z ...", where the name may contain anything.
  std::size_t state = text.rfind(") ");
  return state == std::string::npos || text[state + 2] == 'Z' ||
         text[state + 2] == 'X';
}

std::optional<Error> PeerWatch::findDead() const {
  for (const Peer &peer : peers)
    if (peer.rank != rank && seen[peer.rank] && isDead(peer))
      return Error("rank " + std::to_string(peer.rank) + " (process " +
                       std::to_string(peer.process) + " on " + peer.host +
                       ") has ended before the run did",
                   Failure::RankFailed);
  return std::nullopt;
}

bool PeerWatch::isLowestHere() const {
  for (const Peer &peer : peers)
    if (peer.rank < rank && seen[peer.rank] && !isDead(peer))
      return false;
  return true;
}

/// To the next rank, if it can't be seen.
std::optional<Error> PeerWatch::listen() {
  auto key = [](unsigned who) { return "alive " + std::to_string(who); };
  Clock::time_point now = Clock::now();
  if (now - lastCounted < beat)
    return std::nullopt;
  lastCounted = now;
  store->add(key(rank), 1);
  const Peer &next = peers[(rank + 1) % peers.size()];
  if (seen[next.rank])
    return std::nullopt;
  if (std::int64_t count = store->add(key(next.rank), 0); count != heard) {
    heard = count;
    lastHeard = now;
  }
  if (now - lastHeard < longestSilence)
    return std::nullopt;
  return Error("rank " + std::to_string(next.rank) + " (process " +
                   std::to_string(next.process) + " on " + next.host +
                   ") has not been heard of for 8 s",
               Failure::RankFailed);
}

std::optional<Error> PeerWatch::look() {
  if (auto dead = findDead())
    return dead;
  try {
    if (auto failure = findFailure(*store, 0ms))
      return failure;
    return listen();
  } catch (const Error &error) {
    auto dead = findDead();
    return dead ? *dead : error;
  }
}

void PeerWatch::work() {
  sigset_t signals = terminationSignals();
  bool isStopped = false;
  while (!isOver.load()) {
    if (auto failure = look())
      return onFailure(*failure);
    timespec limit{
        0, std::chrono::nanoseconds(isStopped ? shortNap : nap).count()};
    int signal = sigtimedwait(&signals, nullptr, &limit);
    if (signal <= 0)
      continue;
    if (isStopped)
      return endBySignal(signal);
    isStopped = true;
    onStop();
  }
}
