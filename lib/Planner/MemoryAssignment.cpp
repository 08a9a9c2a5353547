//===- MemoryAssignment.cpp - Offsets for intervals of time ---------------===//

#include "fsdp/Planner/MemoryAssignment.h"

#include "BothEnds.h"
#include "Packing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

using namespace fsdp::planner;

namespace {

using Weight = double (*)(const Lifetime &);

double getLength(const Lifetime &lifetime) {
  return double(lifetime.end - lifetime.begin + 1);
}

int64_t roundUp(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

} // namespace

std::pair<int64_t, int64_t>
fsdp::planner::mostBytesAlive(const std::vector<Lifetime> &lifetimes,
                              int64_t alignment) {
  std::vector<std::pair<int64_t, int64_t>> changes; // time, bytes
  changes.reserve(2 * lifetimes.size());
  for (const Lifetime &lifetime : lifetimes) {
    int64_t bytes = roundUp(lifetime.bytes, alignment);
    changes.emplace_back(lifetime.begin, bytes);
    changes.emplace_back(lifetime.end + 1, -bytes);
  }
  // At equal times the ends come first: they are negative.
  std::sort(changes.begin(), changes.end());
  int64_t alive = 0, most = 0, at = 0;
  for (auto [time, bytes] : changes) {
    alive += bytes;
    if (alive > most) {
      most = alive;
      at = time;
    }
  }
  return {most, at};
}

/// The buffers by descending weight. Longest life breaks ties: what is saved
/// for the backward pass nests.
static std::vector<uint32_t> getOrder(const std::vector<Lifetime> &lifetimes,
                                      Weight weight) {
  std::vector<uint32_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  auto key = [&](uint32_t i) {
    const Lifetime &lifetime = lifetimes[i];
    return std::make_tuple(-weight(lifetime), lifetime.begin - lifetime.end,
                           lifetime.begin, i);
  };
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  return order;
}

/// Largest first is close to the bound for most plans. Where it is not, others
/// are tried: none of them is best for all.
static constexpr Weight weights[] = {
    [](const Lifetime &l) { return double(l.bytes); },
    [](const Lifetime &l) { return double(l.bytes) * getLength(l); },
    [](const Lifetime &l) { return double(l.bytes) * std::sqrt(getLength(l)); },
    [](const Lifetime &l) { return std::sqrt(double(l.bytes)) * getLength(l); },
    [](const Lifetime &l) { return getLength(l); }};

/// Orders of buffers, the best of which is taken.
MemoryPlan fsdp::planner::assignMemory(const std::vector<Lifetime> &given,
                                       int64_t alignment) {
  std::vector<Lifetime> lifetimes = given;
  for (Lifetime &lifetime : lifetimes)
    lifetime.bytes = roundUp(lifetime.bytes, alignment);
  MemoryPlan plan;
  std::tie(plan.lowerBound, plan.peakTime) = mostBytesAlive(lifetimes, 1);

  std::vector<int64_t> offsets(lifetimes.size());
  const int64_t enough = plan.lowerBound + plan.lowerBound / 1000;
  auto isGood = [&] { return plan.peak <= enough; };
  auto consider = [&](int64_t peak) {
    if (!plan.offsets.empty() && plan.peak <= peak)
      return;
    plan.peak = peak;
    plan.offsets = offsets;
  };
  std::vector<uint32_t> order = getOrder(lifetimes, weights[0]);
  consider(Occupancy(lifetimes).place(order, Gap::Smallest, offsets));
  if (!isGood())
    consider(placeFromBothEnds(lifetimes, alignment, plan.lowerBound, enough,
                               offsets));
  // Small plans can afford many orders.
  constexpr size_t maxTries = 32, maxPlacements = 20000;
  size_t placements = 0;
  for (Weight weight : weights) {
    order = getOrder(lifetimes, weight);
    for (size_t i = 0; i != maxTries && !isGood(); ++i) {
      placements += lifetimes.size();
      if (placements > maxPlacements)
        return plan;
      int64_t peak = Occupancy(lifetimes).place(order, Gap::Smallest, offsets);
      consider(peak);
      putFirst(order, [&](uint32_t buffer) {
        return offsets[buffer] + lifetimes[buffer].bytes == peak;
      });
    }
  }
  return plan;
}
