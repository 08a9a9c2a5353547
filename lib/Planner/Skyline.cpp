//===- Skyline.cpp - Packing from the lowest place up ---------------------===//

#include "Skyline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

using namespace fsdp::planner;

namespace {

constexpr int64_t never = std::numeric_limits<int64_t>::max();
constexpr uint32_t noBuffer = std::numeric_limits<uint32_t>::max();

/// Buffers that are not placed yet: a tree over them by the begin of their
/// lives. A node knows the earliest end in it, and the first of the order.
class Waiting {
public:
  Waiting(const std::vector<Lifetime> &lifetimes,
          const std::vector<uint32_t> &order)
      : lifetimes(lifetimes), order(order), byBegin(order) {
    std::sort(byBegin.begin(), byBegin.end(), [&](uint32_t a, uint32_t b) {
      return lifetimes[a].begin < lifetimes[b].begin;
    });
    while (leaves < order.size())
      leaves *= 2;
    nodes.resize(2 * leaves);
    std::vector<uint32_t> rank(lifetimes.size());
    for (uint32_t i = 0; i != order.size(); ++i)
      rank[order[i]] = i;
    leafOf.resize(order.size());
    for (size_t i = 0; i != byBegin.size(); ++i) {
      leafOf[rank[byBegin[i]]] = leaves + i;
      nodes[leaves + i] = {lifetimes[byBegin[i]].end, rank[byBegin[i]]};
    }
    for (size_t node = leaves; --node != 0;)
      update(node);
  }

  /// Takes the first of the order that lives within [begin, end]; `noBuffer` if
  /// none does.
  uint32_t take(int64_t begin, int64_t end) {
    uint32_t best = noBuffer;
    auto isBefore = [&](uint32_t i, int64_t time) {
      return lifetimes[i].begin < time;
    };
    auto first =
        std::lower_bound(byBegin.begin(), byBegin.end(), begin, isBefore);
    find(1, 0, leaves, size_t(first - byBegin.begin()), end, best);
    if (best == noBuffer)
      return noBuffer;
    size_t node = leafOf[best];
    nodes[node] = {};
    while (node /= 2)
      update(node);
    return order[best];
  }

private:
  struct Node {
    int64_t end = never;
    uint32_t rank = noBuffer;
  };
  void update(size_t node) {
    const Node &a = nodes[2 * node], &b = nodes[2 * node + 1];
    nodes[node] = {std::min(a.end, b.end), std::min(a.rank, b.rank)};
  }
  /// A node has the leaves [low, high). Who ends in time has begun in time.
  void find(size_t node, size_t low, size_t high, size_t first, int64_t end,
            uint32_t &best) const {
    if (high <= first || nodes[node].end > end || nodes[node].rank >= best)
      return;
    if (node >= leaves) {
      best = nodes[node].rank;
      return;
    }
    size_t middle = (low + high) / 2;
    find(2 * node, low, middle, first, end, best);
    find(2 * node + 1, middle, high, first, end, best);
  }

  const std::vector<Lifetime> &lifetimes;
  const std::vector<uint32_t> &order;
  std::vector<uint32_t> byBegin;
  std::vector<size_t> leafOf; ///< By rank in the order.
  size_t leaves = 1;
  std::vector<Node> nodes;
};

/// The height at each time, as stretches of one height.
class Skyline {
public:
  explicit Skyline(int64_t numTimes) { insert(0, numTimes - 1, 0); }

  struct Stretch {
    int64_t begin, end, height;
  };
  /// The first of the lowest.
  Stretch getLowest() const {
    auto [height, begin] = *byHeight.begin();
    return {begin, stretches.at(begin).end, height};
  }
  /// A part of a stretch gets higher.
  void raise(const Stretch &stretch, int64_t begin, int64_t end,
             int64_t height) {
    erase(stretch);
    if (stretch.begin != begin)
      insert(stretch.begin, begin - 1, stretch.height);
    if (stretch.end != end)
      insert(end + 1, stretch.end, stretch.height);
    merge(begin, end, height);
  }
  /// To its lower neighbour.
  void lift(const Stretch &stretch) {
    auto at = stretches.find(stretch.begin);
    int64_t height = never;
    if (at != stretches.begin())
      height = std::prev(at)->second.height;
    if (auto next = std::next(at); next != stretches.end())
      height = std::min(height, next->second.height);
    raise(stretch, stretch.begin, stretch.end, height);
  }

private:
  struct Rest {
    int64_t end, height;
  };
  void insert(int64_t begin, int64_t end, int64_t height) {
    stretches[begin] = {end, height};
    byHeight.emplace(height, begin);
  }
  void erase(const Stretch &stretch) {
    stretches.erase(stretch.begin);
    byHeight.erase({stretch.height, stretch.begin});
  }
  /// Inserts a stretch, as one with neighbours of its height.
  void merge(int64_t begin, int64_t end, int64_t height) {
    auto next = stretches.lower_bound(begin);
    if (next != stretches.end() && next->second.height == height) {
      Stretch after = {next->first, next->second.end, height};
      end = after.end;
      erase(after);
    }
    next = stretches.lower_bound(begin);
    if (next != stretches.begin() && std::prev(next)->second.height == height) {
      Stretch before = {std::prev(next)->first, begin - 1, height};
      begin = before.begin;
      erase(before);
    }
    insert(begin, end, height);
  }

  std::map<int64_t, Rest> stretches;              ///< By their begin.
  std::set<std::pair<int64_t, int64_t>> byHeight; ///< And begin.
};

} // namespace

int64_t fsdp::planner::placeFromBelow(const std::vector<Lifetime> &lifetimes,
                                      const std::vector<uint32_t> &order,
                                      int64_t alignment,
                                      std::vector<int64_t> &offsets) {
  int64_t numTimes = 1, peak = 0;
  for (uint32_t i : order)
    numTimes = std::max(numTimes, lifetimes[i].end + 1);
  Waiting waiting(lifetimes, order);
  Skyline skyline(numTimes);
  for (size_t placed = 0; placed != order.size();) {
    Skyline::Stretch lowest = skyline.getLowest();
    uint32_t i = waiting.take(lowest.begin, lowest.end);
    if (i == noBuffer) {
      skyline.lift(lowest);
      continue;
    }
    ++placed;
    const Lifetime &own = lifetimes[i];
    int64_t bytes = (own.bytes + alignment - 1) / alignment * alignment;
    bool isAlive = own.begin <= own.end; // ever
    offsets[i] = isAlive ? lowest.height : 0;
    peak = std::max(peak, offsets[i] + bytes);
    if (isAlive && bytes)
      skyline.raise(lowest, own.begin, own.end, lowest.height + bytes);
  }
  return peak;
}
