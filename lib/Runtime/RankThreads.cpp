//===- RankThreads.cpp - One thread per rank ------------------------------===//
#include "RankThreads.h"

using namespace fsdp;

/// A job always ends, so nothing interrupts the wait for it.
static const std::atomic<bool> never{false};

RankThreads::RankThreads(unsigned ranks)
    : spins(spinsFor(ranks)), finished(ranks) {
  for (unsigned rank = 1; rank != ranks; ++rank)
    threads.emplace_back([this, rank] { work(rank); });
}

RankThreads::~RankThreads() {
  job = nullptr;
  started.advance(++epoch);
  for (std::thread &thread : threads)
    thread.join();
}

void RankThreads::run(const Job &next) {
  job = &next;
  started.advance(++epoch);
  next(0);
  for (unsigned rank = 1; rank != finished.size(); ++rank)
    finished[rank].await(epoch, never, spins);
}

void RankThreads::work(unsigned rank) {
  for (std::uint64_t next = 1;; ++next) {
    started.await(next, never, spins);
    if (!job)
      return;
    (*job)(rank);
    finished[rank].advance(next);
  }
}
