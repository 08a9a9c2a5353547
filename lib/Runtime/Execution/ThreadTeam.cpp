//===- ThreadTeam.cpp - Threads that work on one job ----------------------===//
#include "ThreadTeam.h"

#include "fsdp/Archive/WriteFile.h"
#include "fsdp/Runtime/Support/Error.h"

#include <algorithm>
#include <string>
#include <system_error>

using namespace fsdp;

/// A job always ends, so nothing interrupts the wait for it.
static const std::atomic<bool> never{false};
static constexpr std::chrono::milliseconds always =
    std::chrono::milliseconds::max();

ThreadTeam::ThreadTeam(unsigned members, unsigned total)
    : spins(spinsFor(std::max(members, total))), finished(members) {
  // Who interrupts the process interrupts the thread that runs the team: what
  // that holds is not left behind.
  archive::SignalsBlocked blocked;
  try {
    for (unsigned member = 1; member != members; ++member)
      threads.emplace_back([this, member] { work(member); });
  } catch (const std::system_error &error) {
    std::size_t started = threads.size();
    end();
    throw Error("cannot start thread " + std::to_string(started + 1) + " of " +
                std::to_string(members - 1) + ": " + error.code().message());
  }
}

ThreadTeam::~ThreadTeam() { end(); }

void ThreadTeam::end() {
  job = nullptr;
  started.advance(++epoch);
  for (std::thread &thread : threads)
    thread.join();
  threads.clear();
}

void ThreadTeam::run(const Job &next) {
  job = &next;
  started.advance(++epoch);
  next(0);
  for (unsigned member = 1; member != finished.size(); ++member)
    finished[member].await(epoch, never, spins, always);
}

void ThreadTeam::work(unsigned member) {
  for (std::uint64_t next = 1;; ++next) {
    started.await(next, never, spins, always);
    if (!job)
      return;
    (*job)(member);
    finished[member].advance(next);
  }
}
