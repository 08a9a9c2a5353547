//===- ThreadTeam.cpp - Threads that work on one job ----------------------===//
#include "ThreadTeam.h"

#include <algorithm>

using namespace fsdp;

/// A job always ends, so nothing interrupts the wait for it.
static const std::atomic<bool> never{false};

ThreadTeam::ThreadTeam(unsigned members, unsigned total)
    : spins(spinsFor(std::max(members, total))), finished(members) {
  for (unsigned member = 1; member != members; ++member)
    threads.emplace_back([this, member] { work(member); });
}

ThreadTeam::~ThreadTeam() {
  job = nullptr;
  started.advance(++epoch);
  for (std::thread &thread : threads)
    thread.join();
}

void ThreadTeam::run(const Job &next) {
  job = &next;
  started.advance(++epoch);
  next(0);
  for (unsigned member = 1; member != finished.size(); ++member)
    finished[member].await(epoch, never, spins);
}

void ThreadTeam::work(unsigned member) {
  for (std::uint64_t next = 1;; ++next) {
    started.await(next, never, spins);
    if (!job)
      return;
    (*job)(member);
    finished[member].advance(next);
  }
}
