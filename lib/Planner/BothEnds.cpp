//===- BothEnds.cpp - Large buffers from one end --------------------------===//

#include "BothEnds.h"

#include "Packing.h"

#include <limits>
#include <tuple>

using namespace fsdp::planner;

namespace {

/// Who is large, and where these are.
struct Split {
  std::vector<uint32_t> large, others; ///< In the order of placement.
  /// By buffer, of those that are large: the most bytes of others at once in
  /// its life.
  std::vector<int64_t> beside;
  std::vector<int64_t> offsets;
  int64_t need = 0; ///< Bytes of an arena in which others fit above them.
};

/// How others are packed. They may fill gaps between the large ones, and so
/// need less than what fits above these: so many quarters of the way from the
/// bytes that are alive to those that the split needs.
struct Way {
  int64_t quarters;
  bool isByArea; ///< The most bytes times length first, or the longest life.
  Gap gap;
};

constexpr Way ways[] = {{0, false, Gap::Smallest}, {1, false, Gap::Smallest},
                        {2, false, Gap::Smallest}, {4, false, Gap::Smallest},
                        {4, false, Gap::Lowest},   {4, true, Gap::Smallest},
                        {4, true, Gap::Lowest}};

class Packer {
public:
  Packer(const std::vector<Lifetime> &lifetimes, int64_t alignment,
         int64_t alive, int64_t enough, std::vector<int64_t> &offsets)
      : lifetimes(lifetimes), alignment(alignment), alive(alive),
        enough(enough), best(offsets), occupancy(lifetimes) {}

  int64_t run();

private:
  int64_t getLength(uint32_t i) const {
    return lifetimes[i].end - lifetimes[i].begin;
  }
  int64_t getTop(uint32_t i, const std::vector<int64_t> &offsets) const {
    return offsets[i] + lifetimes[i].bytes;
  }
  Split split(int64_t leastBytes) const;
  void findBeside(Split &split) const;
  void packLarge(Split &split);
  void sort(std::vector<uint32_t> &buffers, bool isByArea) const;
  void packOthers(Split &split, const Way &way, size_t &placements);
  size_t placeOthers(Split &split, Gap gap, int64_t arena,
                     std::vector<int64_t> &offsets);

  const std::vector<Lifetime> &lifetimes;
  const int64_t alignment, alive, enough;
  std::vector<int64_t> &best;
  int64_t bestArena = std::numeric_limits<int64_t>::max();
  Occupancy occupancy;
};

} // namespace

Split Packer::split(int64_t leastBytes) const {
  constexpr int64_t shortLife = 8; // goes where there is room
  Split own;
  for (uint32_t i = 0; i != lifetimes.size(); ++i) {
    bool isLarge = lifetimes[i].bytes >= leastBytes && getLength(i) > shortLife;
    (isLarge ? own.large : own.others).push_back(i);
  }
  return own;
}

void Packer::findBeside(Split &split) const {
  size_t numTimes = 0;
  for (const Lifetime &lifetime : lifetimes)
    numTimes = std::max(numTimes, size_t(lifetime.end + 1));
  std::vector<int64_t> sum(numTimes + 1, 0); // of others, by time
  for (uint32_t i : split.others) {
    sum[size_t(lifetimes[i].begin)] += lifetimes[i].bytes;
    sum[size_t(lifetimes[i].end + 1)] -= lifetimes[i].bytes;
  }
  for (size_t time = 1; time != sum.size(); ++time)
    sum[time] += sum[time - 1];
  split.beside.resize(lifetimes.size());
  for (uint32_t i : split.large)
    split.beside[i] = *std::max_element(sum.begin() + lifetimes[i].begin,
                                        sum.begin() + lifetimes[i].end + 1);
}

/// Each as low as it can be, those first that others leave the least.
void Packer::packLarge(Split &split) {
  findBeside(split);
  auto key = [&](uint32_t i) {
    return std::make_tuple(-split.beside[i], -getLength(i), lifetimes[i].begin,
                           i);
  };
  std::sort(split.large.begin(), split.large.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
  constexpr size_t maxTries = 64, maxPlacements = 8192;
  size_t tries =
      std::min(maxTries, 1 + maxPlacements / (1 + split.large.size()));
  std::vector<int64_t> offsets(lifetimes.size());
  for (; tries != 0 && (split.offsets.empty() || split.need > alive); --tries) {
    occupancy.clear();
    occupancy.place(split.large, Gap::Lowest, offsets);
    auto getNeed = [&](uint32_t i) {
      return getTop(i, offsets) + split.beside[i];
    };
    int64_t need = alive;
    for (uint32_t i : split.large)
      need = std::max(need, getNeed(i));
    if (split.offsets.empty() || need < split.need) {
      split.need = need;
      split.offsets = offsets;
    }
    putFirst(split.large, [&](uint32_t i) {
      return getNeed(i) >= need - (need - alive) / 8;
    });
  }
}

void Packer::sort(std::vector<uint32_t> &buffers, bool isByArea) const {
  auto key = [&](uint32_t i) {
    double bytes = isByArea ? double(lifetimes[i].bytes) : 1;
    return std::make_tuple(-bytes * double(getLength(i) + 1),
                           lifetimes[i].begin, i);
  };
  std::sort(buffers.begin(), buffers.end(),
            [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
}

/// From the other end. Those that break through `arena` go first the next time.
/// Ends where the arena is no smaller than the best. Returns how many were
/// placed.
size_t Packer::placeOthers(Split &split, Gap gap, int64_t arena,
                           std::vector<int64_t> &offsets) {
  occupancy.clear();
  for (uint32_t large : split.large)
    occupancy.insert(large, offsets[large]);
  int64_t needed = arena;
  std::vector<uint32_t> beyond, within;
  auto next = split.others.begin();
  for (; next != split.others.end() && needed < bestArena; ++next) {
    int64_t top = occupancy.place(*next, gap, offsets);
    needed = std::max(needed, top);
    (top > arena ? beyond : within).push_back(*next);
  }
  if (needed < bestArena) {
    bestArena = needed;
    best = offsets;
  }
  std::copy(within.begin(), within.end(),
            std::copy(beyond.begin(), beyond.end(), split.others.begin()));
  return beyond.size() + within.size();
}

void Packer::packOthers(Split &split, const Way &way, size_t &placements) {
  constexpr size_t maxTries = 16, maxPlacements = 50000;
  if (bestArena <= enough)
    return;
  int64_t arena =
      alive + (split.need - alive) / alignment * way.quarters / 4 * alignment;
  for (uint32_t i : split.large)
    arena = std::max(arena, getTop(i, split.offsets));
  std::vector<int64_t> offsets(lifetimes.size());
  for (uint32_t i : split.large)
    offsets[i] = arena - getTop(i, split.offsets);
  sort(split.others, way.isByArea);
  for (size_t tries = 0; tries != maxTries && placements <= maxPlacements &&
                         bestArena > std::max(arena, enough);
       ++tries)
    placements += placeOthers(split, way.gap, arena, offsets);
}

/// The split that may need the least first.
int64_t Packer::run() {
  std::vector<Split> splits;
  for (int64_t parts : {32, 64, 128, 256, 512}) {
    Split own = split(alive / parts);
    if (!splits.empty() && own.large.size() == splits.back().large.size())
      continue;
    packLarge(own);
    splits.push_back(std::move(own));
  }
  std::sort(splits.begin(), splits.end(), [](const Split &a, const Split &b) {
    return std::make_pair(a.need, a.large.size()) <
           std::make_pair(b.need, b.large.size());
  });
  for (Split &split : splits) {
    size_t placements = 0;
    for (const Way &way : ways)
      packOthers(split, way, placements);
  }
  return bestArena;
}

int64_t fsdp::planner::placeFromBothEnds(const std::vector<Lifetime> &lifetimes,
                                         int64_t alignment, int64_t alive,
                                         int64_t enough,
                                         std::vector<int64_t> &offsets) {
  return Packer(lifetimes, alignment, alive, enough, offsets).run();
}
