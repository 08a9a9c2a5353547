//===- Stragglers.h - A step on ranks that are not alike --------*- C++ -*-===//
//
// Several ranks run one step, in one order, by the machine of Scheduling.h.
// Each computes, and copies between host and device, at a pace of its own. A
// collective runs on all of them at once: it starts when each of them may start
// it, so that the last one decides.
//
// All collectives are over all of these ranks. Where a group has fewer, it
// waits for fewer, and this is too much.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_STRAGGLERS_H
#define FSDP_PLANNER_STRAGGLERS_H

#include "fsdp/Planner/Scheduling.h"

namespace fsdp::planner::scheduling {

/// What the operations take on one rank, in nanoseconds; by operation. Those of
/// collectives are not looked at.
using Durations = std::vector<int64_t>;

/// What they take on a rank whose computations vary: each takes from 1 - spread
/// to 1 + spread times as long, uniformly, and whatever others take. `spread`
/// is from 0 to 1. The same on every machine, and for any number of ranks.
Durations vary(const Problem &problem, uint32_t rank, double spread);

/// The times of an order on each rank: everything as early as the machine can.
/// `check` accepts the problem with the durations of any of them.
std::vector<Schedule> simulate(const Problem &problem,
                               const std::vector<uint32_t> &order,
                               const std::vector<Durations> &ranks);

/// More ranks than these are not simulated.
constexpr uint32_t mostVaried = 64;

/// The time, in nanoseconds, until the last of so many ranks has done what it
/// does in an order, if its computations vary.
int64_t simulateVaried(const Problem &problem,
                       const std::vector<uint32_t> &order, uint32_t numRanks,
                       double spread);

} // namespace fsdp::planner::scheduling

#endif // FSDP_PLANNER_STRAGGLERS_H
