//===- Lifeline.cpp - Whether a run goes on -------------------------------===//

#include "fsdp/Runtime/Processes/Lifeline.h"

#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Processes/Agreement.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

using namespace fsdp;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Between two looks.
static constexpr std::chrono::milliseconds nap = 100ms;
/// After a signal: what sends it kills a second later.
static constexpr std::chrono::milliseconds shortNap = 10ms;
/// How long nothing may be counted.
static constexpr auto longestSilence = 8s;

// All that a handler may use is static.
static std::atomic<int> signalsTaken{0}, latestSignal{0}, signalWakeup{-1};

static void wake(int descriptor) {
  std::uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(descriptor, &one, sizeof one);
}

static void takeSignal(int signal) {
  int cause = errno;
  latestSignal = signal;
  ++signalsTaken;
  wake(signalWakeup);
  errno = cause;
}

Lifeline::Lifeline(Options given)
    : options(std::move(given)), lastHeard(Clock::now()), lastAsked(lastHeard),
      wakeup(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wakeup < 0)
    throw Error(std::string("cannot look after the run: eventfd: ") +
                std::strerror(errno));
  // Two of which one sees the other one see each other.
  for (const Process &each : options.processes)
    seen.push_back(each.host == options.processes[options.rank].host &&
                   each.space == options.processes[options.rank].space &&
                   !isDead(each.number));
  if (options.takesSignals)
    takeSignals();
  archive::SignalsBlocked blocked;
  thread = std::thread([this] { work(); });
}

Lifeline::~Lifeline() {
  stopLooking();
  if (options.takesSignals) {
    for (std::size_t i = 0; i != signals.size(); ++i)
      ::sigaction(signals[i], &before[i], nullptr);
    signalWakeup = wakeupBefore;
  }
  ::close(wakeup);
}

void Lifeline::takeSignals() {
  signalsTaken = 0;
  wakeupBefore = signalWakeup.exchange(wakeup);
  struct sigaction action = {};
  action.sa_handler = takeSignal;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i != signals.size(); ++i)
    ::sigaction(signals[i], &action, &before[i]);
}

void Lifeline::stopLooking() {
  isOver = true;
  wake(wakeup);
  if (thread.joinable())
    thread.join();
}

std::shared_ptr<void>
Lifeline::subscribe(std::function<void(const Error &)> onFailure) {
  std::lock_guard lock(mutex);
  if (failure)
    onFailure(*failure);
  subscribers.emplace(next, std::move(onFailure));
  return {nullptr, [self = shared_from_this(), number = next++](void *) {
            std::lock_guard lock(self->mutex);
            self->subscribers.erase(number);
          }};
}

void Lifeline::ring(const Error &error) {
  std::lock_guard lock(mutex);
  failure = error;
  for (const auto &[number, onFailure] : subscribers)
    onFailure(error);
}

bool Lifeline::isInterrupted() const {
  return options.takesSignals && signalsTaken != 0;
}

static Error describe(unsigned rank, const Process &process, const char *what) {
  return Error("rank " + std::to_string(rank) + " (process " +
                   std::to_string(process.number) + " on " + process.host +
                   ") " + what,
               Failure::RankFailed);
}

std::optional<Error> Lifeline::findDead() const {
  for (unsigned rank = 0; rank != seen.size(); ++rank)
    if (rank != options.rank && seen[rank] &&
        isDead(options.processes[rank].number))
      return describe(rank, options.processes[rank],
                      "has ended before the run did");
  return std::nullopt;
}

bool Lifeline::isLowestHere() const {
  for (unsigned rank = 0; rank < options.rank; ++rank)
    if (seen[rank] && !isDead(options.processes[rank].number))
      return false;
  return true;
}

/// To the next rank, if it can't be seen; and what counts up if the one before
/// this one cannot see it.
std::optional<Error> Lifeline::listen() {
  auto key = [](std::size_t who) { return "alive " + std::to_string(who); };
  std::size_t count = seen.size(), rank = options.rank;
  if (!seen[(rank + count - 1) % count])
    options.store->add(key(rank), 1);
  std::size_t after = (rank + 1) % count;
  if (seen[after])
    return std::nullopt;
  Clock::time_point now = Clock::now();
  if (std::int64_t beats = options.store->add(key(after), 0); beats != heard) {
    heard = beats;
    lastHeard = now;
  }
  if (now - lastHeard < longestSilence)
    return std::nullopt;
  return describe(unsigned(after), options.processes[after],
                  "has not been heard of for 8 s");
}

/// The process table, always; the store, every second and, after a signal,
/// which may come because a process has failed, at each look.
std::optional<Error> Lifeline::look() {
  if (auto dead = findDead())
    return dead;
  Clock::time_point now = Clock::now();
  bool isDue = now - lastAsked >= period;
  if (!options.store || (!isDue && !isInterrupted()))
    return std::nullopt;
  try {
    if (auto told = findFailure(*options.store, 0ms))
      return told;
    if (!isDue)
      return std::nullopt;
    lastAsked = now;
    return seen.empty() ? std::nullopt : listen();
  } catch (const std::exception &lost) {
    auto dead = findDead();
    return dead ? *dead : Error(lost.what(), Failure::RankFailed);
  }
}

void Lifeline::work() {
  while (!isOver) {
    if (auto found = look()) {
      // Who speaks of it is not to be ended by who has seen it, too.
      for (int signal : signals)
        if (options.takesSignals)
          std::signal(signal, SIG_IGN);
      return ring(*found);
    }
    if (options.takesSignals && signalsTaken > 1) {
      std::signal(latestSignal, SIG_DFL);
      ::kill(::getpid(), latestSignal);
    }
    pollfd woken{wakeup, POLLIN, 0};
    auto limit = isInterrupted() ? shortNap : nap;
    ::poll(&woken, 1, options.store ? int(limit.count()) : -1);
    std::uint64_t count = 0;
    [[maybe_unused]] ssize_t ignored = ::read(wakeup, &count, sizeof count);
  }
}
