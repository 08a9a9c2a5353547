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
  int64_t need = 0; ///< Bytes of an arena in which others may fit.
};

class Packer {
public:
  Packer(const std::vector<Lifetime> &lifetimes, int64_t alive, int64_t enough,
         std::vector<int64_t> &offsets)
      : lifetimes(lifetimes), alive(alive), enough(enough), best(offsets) {}

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
  void packLarge(Split &split) const;
  void packOthers(Split &split);

  const std::vector<Lifetime> &lifetimes;
  const int64_t alive, enough;
  std::vector<int64_t> &best;
  int64_t bestArena = std::numeric_limits<int64_t>::max();
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
void Packer::packLarge(Split &split) const {
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
    Occupancy(lifetimes).place(split.large, Gap::Lowest, offsets);
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

/// From the other end: the longest life first, or the most bytes times length.
void Packer::packOthers(Split &split) {
  constexpr size_t maxTries = 8, maxPlacements = 150000;
  size_t placements = 0;
  std::vector<int64_t> offsets(lifetimes.size());
  for (uint32_t i : split.large)
    offsets[i] = split.need - getTop(i, split.offsets);
  for (bool isByArea : {false, true})
    for (Gap gap : {Gap::Smallest, Gap::Lowest}) {
      auto key = [&](uint32_t i) {
        double bytes = isByArea ? double(lifetimes[i].bytes) : 1;
        return std::make_tuple(-bytes * double(getLength(i) + 1),
                               lifetimes[i].begin, i);
      };
      std::sort(split.others.begin(), split.others.end(),
                [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
      for (size_t i = 0; i != maxTries; ++i) {
        placements += split.others.size();
        if (placements > maxPlacements ||
            bestArena <= std::max(split.need, enough))
          return;
        Occupancy occupancy(lifetimes);
        for (uint32_t large : split.large)
          occupancy.insert(large, offsets[large]);
        int64_t arena =
            std::max(split.need, occupancy.place(split.others, gap, offsets));
        if (arena < bestArena) {
          bestArena = arena;
          best = offsets;
        }
        putFirst(split.others, [&](uint32_t other) {
          return getTop(other, offsets) > split.need;
        });
      }
    }
}

/// The split that may need the least first.
int64_t Packer::run() {
  std::vector<Split> splits;
  for (int64_t parts : {32, 64, 128}) {
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
  for (Split &split : splits)
    if (bestArena > enough)
      packOthers(split);
  return bestArena;
}

int64_t fsdp::planner::placeFromBothEnds(const std::vector<Lifetime> &lifetimes,
                                         int64_t alive, int64_t enough,
                                         std::vector<int64_t> &offsets) {
  return Packer(lifetimes, alive, enough, offsets).run();
}
