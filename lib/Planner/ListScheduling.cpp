//===- ListScheduling.cpp - List scheduling under a memory limit ----------===//
//
// Three steps. The leanest order says which limits can be met, and is always
// there to fall back on. From it, operations are issued by critical path as
// soon as the rest of the leanest order still fits after them. Then whatever
// takes memory is issued as late as costs no time.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Scheduling.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

using namespace fsdp::planner::scheduling;

namespace {

/// What the algorithm asks of a problem again and again.
struct Facts {
  explicit Facts(const Problem &problem);

  bool isCompute(uint32_t op) const {
    return problem.operations[op].stream == computeStream;
  }
  int64_t duration(uint32_t op) const {
    return problem.operations[op].duration;
  }
  /// True for what is better issued late: it takes more memory than it frees.
  bool takesMemory(uint32_t op) const { return takes[op] > frees[op]; }

  const Problem &problem;
  std::vector<int64_t> takes, frees;
  /// Who must be issued before and after an operation: dependences, neighbours
  /// in a sequence, and owners and releasers of memory.
  std::vector<std::vector<uint32_t>> before, after;
};

/// The largest value of a range, under additions to ranges.
class RangeMaximum {
public:
  explicit RangeMaximum(const std::vector<int64_t> &values) {
    while (leaves < values.size())
      leaves *= 2;
    largest.assign(2 * leaves, lowest);
    added.assign(2 * leaves, 0);
    std::copy(values.begin(), values.end(), largest.begin() + leaves);
    for (size_t node = leaves; --node;)
      largest[node] = std::max(largest[2 * node], largest[2 * node + 1]);
  }

  /// Of the places from `begin` to before `end`.
  int64_t get(size_t begin, size_t end) const {
    return begin >= end ? lowest : get(1, 0, leaves, begin, end);
  }
  void add(size_t begin, size_t end, int64_t value) {
    if (begin < end && value)
      add(1, 0, leaves, begin, end, value);
  }
  /// Leaves a place out from here on.
  void remove(size_t place) { add(place, place + 1, lowest); }

  static constexpr int64_t lowest = std::numeric_limits<int64_t>::min() / 4;

private:
  int64_t get(size_t node, size_t low, size_t high, size_t begin,
              size_t end) const {
    if (end <= low || high <= begin)
      return lowest;
    if (begin <= low && high <= end)
      return largest[node];
    size_t middle = (low + high) / 2;
    return added[node] + std::max(get(2 * node, low, middle, begin, end),
                                  get(2 * node + 1, middle, high, begin, end));
  }
  void add(size_t node, size_t low, size_t high, size_t begin, size_t end,
           int64_t value) {
    if (end <= low || high <= begin)
      return;
    if (begin <= low && high <= end) {
      largest[node] += value;
      added[node] += value;
      return;
    }
    size_t middle = (low + high) / 2;
    add(2 * node, low, middle, begin, end, value);
    add(2 * node + 1, middle, high, begin, end, value);
    largest[node] =
        added[node] + std::max(largest[2 * node], largest[2 * node + 1]);
  }

  size_t leaves = 1;
  std::vector<int64_t> largest, added;
};

/// Issues operations by critical path, where memory lets it.
class ListScheduler {
public:
  ListScheduler(const Facts &facts, std::vector<uint32_t> lean);
  std::vector<uint32_t> run();

private:
  /// True if the rest of the lean order fits after `op`.
  bool fits(uint32_t op) const;
  void issue(uint32_t op);
  void makeReady(uint32_t op);
  /// The computation to issue next, or `none` if memory forbids that.
  uint32_t pickComputation();

  const Facts &facts;
  std::vector<uint32_t> lean, place;
  RangeMaximum profile;         // of memory, at the places of the lean order
  std::vector<int64_t> urgency; // longest path from the start to the end
  std::vector<uint32_t> missing;
  std::vector<int64_t> end, streamEnd;
  std::vector<bool> isIssued;
  int64_t clock = 0, alive = 0;
  size_t front = 0; // of the lean order
  std::vector<uint32_t> order;

  using Ranked = std::pair<int64_t, uint32_t>; // most urgent, then first
  using Heap = std::priority_queue<Ranked>;
  std::vector<Heap> ready; // by stream; computations whose inputs are there
  std::priority_queue<Ranked> waiting; // computations, by time of their inputs
  Ranked rank(uint32_t op) const { return {urgency[op], none - op}; }
  static uint32_t unrank(Ranked ranked) { return none - ranked.second; }
};

} // namespace

Facts::Facts(const Problem &problem)
    : problem(problem), takes(problem.operations.size(), 0),
      frees(problem.operations.size(), 0), before(problem.operations.size()),
      after(problem.operations.size()) {
  std::vector<std::pair<uint32_t, uint32_t>> sequences;
  for (uint32_t op = 0; op != before.size(); ++op) {
    before[op] = problem.operations[op].after;
    if (problem.operations[op].sequence != none)
      sequences.emplace_back(problem.operations[op].sequence, op);
  }
  std::sort(sequences.begin(), sequences.end());
  for (size_t i = 1; i < sequences.size(); ++i)
    if (sequences[i].first == sequences[i - 1].first)
      before[sequences[i].second].push_back(sequences[i - 1].second);
  for (const Buffer &buffer : problem.buffers) {
    takes[buffer.from] += buffer.bytes;
    frees[buffer.until] += buffer.bytes;
    if (buffer.from != buffer.until)
      before[buffer.until].push_back(buffer.from);
  }
  for (uint32_t op = 0; op != before.size(); ++op)
    for (uint32_t earlier : before[op])
      after[earlier].push_back(op);
}

//===----------------------------------------------------------------------===//
// Moving what is queued between computations
//===----------------------------------------------------------------------===//

/// Computations stay in their order; each other operation is issued in front of
/// the computation at its slot. Within a slot, `rank` decides, then `order`.
static std::vector<uint32_t> rebuild(const std::vector<uint32_t> &order,
                                     const std::vector<uint32_t> &slot,
                                     const std::vector<uint8_t> &rank) {
  std::vector<std::tuple<uint32_t, uint8_t, uint32_t>> keys;
  keys.reserve(order.size());
  for (uint32_t i = 0; i != order.size(); ++i)
    keys.emplace_back(slot[order[i]], rank[order[i]], i);
  std::sort(keys.begin(), keys.end());
  std::vector<uint32_t> result;
  result.reserve(order.size());
  for (auto [slot, rank, i] : keys)
    result.push_back(order[i]);
  return result;
}

/// The number of computations in front of each operation.
static std::vector<uint32_t> getSlots(const Facts &facts,
                                      const std::vector<uint32_t> &order) {
  std::vector<uint32_t> slot(order.size());
  uint32_t computations = 0;
  for (uint32_t op : order) {
    slot[op] = computations;
    computations += facts.isCompute(op);
  }
  return slot;
}

constexpr uint8_t computeRank = 2;

/// The order that needs least memory with the computations as they are: takers
/// as late, and all others as early as dependences let them.
static std::vector<uint32_t> getLeanOrder(const Facts &facts) {
  std::vector<uint32_t> order(facts.before.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<uint32_t> slot = getSlots(facts, order);
  std::vector<uint8_t> rank(order.size(), 0);
  for (uint32_t op = order.size(); op-- != 0;) {
    if (facts.isCompute(op)) {
      rank[op] = computeRank;
    } else if (facts.takesMemory(op)) {
      rank[op] = 1;
      slot[op] = facts.after[op].empty() ? slot[op] : none;
      for (uint32_t later : facts.after[op])
        slot[op] = std::min(slot[op], slot[later]);
    }
  }
  for (uint32_t op : order) {
    if (facts.isCompute(op))
      continue;
    if (!facts.takesMemory(op)) {
      slot[op] = 0;
      for (uint32_t earlier : facts.before[op])
        slot[op] = std::max(slot[op], slot[earlier] + facts.isCompute(earlier));
    }
    for (uint32_t earlier : facts.before[op])
      if (!facts.isCompute(earlier) && slot[earlier] == slot[op])
        rank[op] = std::max(rank[op], rank[earlier]);
  }
  return rebuild(order, slot, rank);
}

/// Issues takers of memory as late as they cost no time, with as much time in
/// reserve as they take themselves: durations are predictions.
static std::vector<uint32_t> delay(const Facts &facts,
                                   const Schedule &schedule) {
  const std::vector<uint32_t> &order = schedule.order;
  std::vector<uint32_t> slot = getSlots(facts, order);
  // When each computation lets the ones after it be issued.
  std::vector<int64_t> opens = {0};
  for (uint32_t op : order)
    if (facts.isCompute(op))
      opens.push_back(schedule.end[op]);

  std::vector<int64_t> latest = schedule.start;
  std::vector<int64_t> streamLatest(facts.problem.numStreams, unlimited);
  std::vector<uint32_t> streamSlot(facts.problem.numStreams, none);
  std::vector<uint8_t> rank(order.size(), 0);
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    uint32_t op = *it;
    if (facts.isCompute(op)) {
      rank[op] = computeRank;
      continue;
    }
    uint32_t stream = facts.problem.operations[op].stream;
    int64_t end = streamLatest[stream];
    uint32_t lastSlot = streamSlot[stream];
    for (uint32_t later : facts.after[op]) {
      end = std::min(end, latest[later]);
      lastSlot = std::min(lastSlot, slot[later]);
    }
    if (facts.takesMemory(op) && lastSlot != none) {
      int64_t reserve = 2 * facts.duration(op);
      int64_t target = std::max(schedule.start[op], end - reserve);
      uint32_t open = std::upper_bound(opens.begin(), opens.end(), target) -
                      opens.begin() - 1;
      slot[op] = std::max(slot[op], std::min(open, lastSlot));
      latest[op] = end - facts.duration(op);
    }
    streamLatest[stream] = latest[op];
    streamSlot[stream] = slot[op];
  }
  return rebuild(order, slot, rank);
}

//===----------------------------------------------------------------------===//
// The list
//===----------------------------------------------------------------------===//

/// The memory at each place of an order.
static std::vector<int64_t> getProfile(const Facts &facts,
                                       const std::vector<uint32_t> &order) {
  std::vector<int64_t> profile;
  profile.reserve(order.size());
  int64_t alive = 0;
  for (uint32_t op : order) {
    profile.push_back(alive + facts.takes[op]);
    alive += facts.takes[op] - facts.frees[op];
  }
  return profile;
}

ListScheduler::ListScheduler(const Facts &facts, std::vector<uint32_t> theLean)
    : facts(facts), lean(std::move(theLean)), place(lean.size()),
      profile(getProfile(facts, lean)), urgency(lean.size(), 0),
      missing(lean.size(), 0), end(lean.size(), 0),
      streamEnd(facts.problem.numStreams, 0), isIssued(lean.size()),
      ready(facts.problem.numStreams) {
  for (uint32_t i = 0; i != lean.size(); ++i)
    place[lean[i]] = i;
  for (uint32_t op = lean.size(); op-- != 0;) {
    for (uint32_t later : facts.after[op])
      urgency[op] = std::max(urgency[op], urgency[later]);
    urgency[op] += facts.duration(op);
    missing[op] = facts.before[op].size();
  }
  order.reserve(lean.size());
}

bool ListScheduler::fits(uint32_t op) const {
  int64_t limit = facts.problem.memoryLimit;
  int64_t extra = facts.takes[op] - facts.frees[op];
  return alive <= limit - facts.takes[op] &&
         profile.get(front, place[op]) <= limit - std::max<int64_t>(extra, 0);
}

void ListScheduler::makeReady(uint32_t op) {
  if (!facts.isCompute(op)) {
    ready[facts.problem.operations[op].stream].push(rank(op));
    return;
  }
  int64_t inputs = 0;
  for (uint32_t earlier : facts.problem.operations[op].after)
    inputs = std::max(inputs, end[earlier]);
  waiting.emplace(-inputs, none - op);
}

void ListScheduler::issue(uint32_t op) {
  const Operation &own = facts.problem.operations[op];
  int64_t &free = streamEnd[own.stream];
  int64_t start = own.runsAhead ? free : std::max(clock, free);
  for (uint32_t earlier : own.after)
    start = std::max(start, end[earlier]);
  free = end[op] = start + facts.duration(op);
  if (facts.problem.sharesCore || facts.isCompute(op))
    clock = end[op];
  alive += facts.takes[op] - facts.frees[op];
  profile.add(front, place[op], facts.takes[op] - facts.frees[op]);
  profile.remove(place[op]);
  isIssued[op] = true;
  order.push_back(op);
  while (front != lean.size() && isIssued[lean[front]])
    ++front;
  for (uint32_t later : facts.after[op])
    if (--missing[later] == 0)
      makeReady(later);
}

uint32_t ListScheduler::pickComputation() {
  Heap &computations = ready[computeStream];
  auto drop = [this](auto &heap) {
    while (!heap.empty() && isIssued[unrank(heap.top())])
      heap.pop();
  };
  drop(waiting);
  // What can start now, or else what can start first.
  while (!waiting.empty() &&
         (-waiting.top().first <= clock || computations.empty())) {
    computations.push(rank(unrank(waiting.top())));
    waiting.pop();
    drop(computations);
    drop(waiting);
  }
  drop(computations);
  if (computations.empty() || !fits(unrank(computations.top())))
    return none;
  return unrank(computations.top());
}

std::vector<uint32_t> ListScheduler::run() {
  for (uint32_t op : lean)
    if (missing[op] == 0)
      makeReady(op);
  while (front != lean.size()) {
    for (uint32_t stream = 1; stream != ready.size(); ++stream) {
      Heap &queue = ready[stream];
      while (!queue.empty()) {
        uint32_t op = unrank(queue.top());
        if (!isIssued[op] && !fits(op))
          break;
        queue.pop();
        if (!isIssued[op])
          issue(op);
      }
    }
    if (front == lean.size())
      break;
    // The next of the lean order always fits.
    uint32_t op = pickComputation();
    issue(op == none ? lean[front] : op);
  }
  return std::move(order);
}

//===----------------------------------------------------------------------===//
// Solving
//===----------------------------------------------------------------------===//

static Answer tryOrder(const Problem &problem,
                       const std::vector<uint32_t> &order) {
  Answer answer;
  answer.peak = findPeak(problem, order);
  answer.isFeasible = answer.peak.bytes <= problem.memoryLimit;
  if (answer.isFeasible)
    answer.schedule = simulate(problem, order);
  return answer;
}

/// True if `a` is done first, or at the same time with less memory.
static bool isBetter(const Problem &problem, const Answer &a, const Answer &b) {
  if (!a.isFeasible || !b.isFeasible)
    return a.isFeasible;
  auto key = [&](const Answer &answer) {
    return std::make_pair(measure(problem, answer.schedule).makespan,
                          answer.peak.bytes);
  };
  return key(a) < key(b);
}

Answer fsdp::planner::scheduling::solve(const Problem &problem,
                                        Algorithm algorithm) {
  std::vector<uint32_t> order(problem.operations.size());
  std::iota(order.begin(), order.end(), 0);
  Answer best = tryOrder(problem, std::move(order));
  if (algorithm == Algorithm::Program)
    return best;

  Facts facts(problem);
  std::vector<uint32_t> lean = getLeanOrder(facts);
  Answer candidate = tryOrder(problem, lean);
  if (!candidate.isFeasible)
    return best.isFeasible ? best : candidate;
  for (int step = 0; step != 3; ++step) {
    if (isBetter(problem, candidate, best))
      best = candidate;
    if (step == 0)
      candidate = tryOrder(problem, ListScheduler(facts, lean).run());
    else if (step == 1)
      candidate = tryOrder(problem, delay(facts, candidate.schedule));
  }
  return best;
}
