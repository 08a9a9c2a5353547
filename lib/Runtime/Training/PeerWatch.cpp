//===- PeerWatch.cpp - Who of the other processes still lives -------------===//

#include "PeerWatch.h"

#include "fsdp/Runtime/Processes/Agreement.h"

#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>

using namespace fsdp;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Between two looks.
static constexpr std::chrono::milliseconds nap = 100ms;
/// How long nothing may be counted.
static constexpr auto longestSilence = 8s;
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

std::string PeerWatch::ownSpace() {
  std::error_code failed;
  std::string name =
      std::filesystem::read_symlink("/proc/self/ns/pid", failed).string();
  return failed || name.empty() ? "?" : name; // "pid:[4026531836]"
}

PeerWatch::PeerWatch(std::vector<Peer> given, unsigned rank,
                     std::shared_ptr<Store> store,
                     std::function<void(const Error &)> onFailure,
                     std::function<void()> onStop)
    : peers(std::move(given)), rank(rank), store(std::move(store)),
      onFailure(std::move(onFailure)), onStop(std::move(onStop)),
      lastHeard(Clock::now()) {
  // Two of which one sees the other one see each other.
  for (const Peer &peer : peers)
    seen.push_back(peer.host == peers[rank].host &&
                   peer.space == peers[rank].space && !isDead(peer));
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

/// To the next rank, if it can't be seen; and what counts up if the one before
/// this one cannot see it.
std::optional<Error> PeerWatch::listen() {
  auto key = [](unsigned who) { return "alive " + std::to_string(who); };
  std::size_t count = peers.size();
  if (!seen[(rank + count - 1) % count])
    store->add(key(rank), 1);
  const Peer &next = peers[(rank + 1) % count];
  if (seen[next.rank])
    return std::nullopt;
  Clock::time_point now = Clock::now();
  if (std::int64_t beats = store->add(key(next.rank), 0); beats != heard) {
    heard = beats;
    lastHeard = now;
  }
  if (now - lastHeard < longestSilence)
    return std::nullopt;
  return Error("rank " + std::to_string(next.rank) + " (process " +
                   std::to_string(next.process) + " on " + next.host +
                   ") has not been heard of for 8 s",
               Failure::RankFailed);
}

/// The store, every second; after a signal, which may come because one has
/// failed, at each look.
std::optional<Error> PeerWatch::ask() {
  Clock::time_point now = Clock::now();
  bool isDue = now - lastAsked >= period;
  if (!isDue && !isStopped)
    return std::nullopt;
  if (auto failure = findFailure(*store, 0ms))
    return failure;
  if (!isDue)
    return std::nullopt;
  lastAsked = now;
  return listen();
}

std::optional<Error> PeerWatch::look() {
  if (auto dead = findDead())
    return dead;
  try {
    return ask();
  } catch (const Error &error) {
    auto dead = findDead();
    return dead ? *dead : error;
  }
}

void PeerWatch::work() {
  sigset_t signals = terminationSignals();
  while (!isOver.load()) {
    if (auto failure = look()) {
      // What it stops may hang.
      std::thread ringing([&] { ring(*failure); });
      onFailure(*failure);
      return ringing.join();
    }
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
