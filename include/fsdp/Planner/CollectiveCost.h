//===- CollectiveCost.h - What a collective adds to its call ----*- C++ -*-===//
//
// A call for several units takes the largest latency of theirs and the sum of
// their transfers. Both are in picoseconds, so that a call is rounded once,
// whoever adds them up.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_COLLECTIVECOST_H
#define FSDP_PLANNER_COLLECTIVECOST_H

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace fsdp::planner {

struct CollectiveCost {
  int64_t latency = 0;
  int64_t transfer = 0;

  /// Adds what is issued in the same call.
  void add(const CollectiveCost &other) {
    latency = std::max(latency, other.latency);
    transfer += other.transfer;
  }
  /// Of the call, in nanoseconds.
  int64_t getDuration() const { return (latency + transfer + 500) / 1000; }
};

/// Those in a node, and those between nodes.
constexpr size_t numLinks = 2;
/// What a collective that runs alone takes of the bandwidth of these links, in
/// parts of 1024. 0: it does not go over a link, or shares it with nobody.
using LinkUse = std::array<uint16_t, numLinks>;
constexpr uint16_t wholeLink = 1024;

} // namespace fsdp::planner

#endif // FSDP_PLANNER_COLLECTIVECOST_H
