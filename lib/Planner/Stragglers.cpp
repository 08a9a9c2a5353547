//===- Stragglers.cpp - A step on ranks that are not alike ----------------===//
//
// Time goes from one event of any rank to the next. Between two places where
// something is waited for, or may be launched, computations of a rank are one:
// only their times are noted one by one.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Stragglers.h"

#include "Issue.h"

#include <cmath>

using namespace fsdp::planner;
using namespace fsdp::planner::scheduling;

namespace {

using Collectives = Streams<copyStream - firstCollectiveStream>;
constexpr size_t copies = copyStream - 1; // among the streams of `Issue`
constexpr int64_t noEvent = std::numeric_limits<int64_t>::max();

/// What all ranks do, and where they look up.
struct Steps {
  const Problem &problem;
  Issue issue;
  std::array<std::vector<Issue::Item>, copyStream> launches; ///< By stream.
  /// By number of computations that have ended: at how many more of them
  /// something else may happen.
  std::vector<uint32_t> stops;

  Steps(const Problem &problem, const std::vector<uint32_t> &order)
      : problem(problem), issue(problem, order) {
    size_t count = issue.computations.size();
    std::vector<uint8_t> isStop(count + 1, false);
    isStop[count] = true;
    for (const Issue::Item &item : issue.launches) {
      launches[problem.operations[item.operation].stream - 1].push_back(item);
      isStop[item.place] = true;
    }
    for (size_t i = 0; i != count; ++i)
      isStop[i] |= issue.computations[i].needs != OwnStreams::Counts();
    stops.resize(count, uint32_t(count));
    for (size_t i = count; i-- > 1;)
      stops[i - 1] = isStop[i] ? uint32_t(i) : stops[i];
  }
};

/// The compute stream of a rank, and its copies.
class Rank {
public:
  Rank(const Steps &steps, const Collectives &collectives,
       const Durations &durations, Schedule &schedule)
      : steps(steps), collectives(collectives), durations(durations),
        schedule(schedule), speed(collectives.getSpeed()) {
    total.reserve(steps.issue.computations.size() + 1);
    total.push_back(0);
    for (const Issue::Item &item : steps.issue.computations)
      total.push_back(total.back() +
                      durations[item.operation] * collectives.getParts());
  }

  /// Does all that it can until now, and starts all that it can start. Returns
  /// when something ends next, if nothing changes until then.
  int64_t moveTo(int64_t now) {
    do {
      compute(now);
      if (copyEnd == now) {
        ++copied;
        copyEnd = noEvent;
      }
    } while (startComputation(now) || startCopy(now));
    speed = collectives.getSpeed();
    return computed == stop ? copyEnd : std::min(copyEnd, getEnd(stop));
  }

  /// As far as this rank is concerned.
  bool mayStart(const Issue::Item &collective) const {
    return computed >= collective.place && copied >= collective.needs[copies];
  }

private:
  /// When so many computations are done, if nothing changes.
  int64_t getEnd(uint32_t count) const {
    return since + (total[count] - done + speed - 1) / speed;
  }

  void compute(int64_t now) {
    if (computed == stop && since != now)
      done = total[computed]; // it has stood still: nothing is left over
    while (computed != stop) {
      int64_t end = getEnd(computed + 1);
      if (end > now) {
        done += (now - since) * speed;
        break;
      }
      schedule.end[getOperation()] = end;
      if (++computed != stop)
        schedule.start[getOperation()] = end;
      else
        done += (now - since) * speed;
    }
    since = now;
  }

  bool startComputation(int64_t now) {
    if (computed != stop || computed == steps.stops.size() ||
        !isDone(steps.issue.computations[computed]))
      return false;
    schedule.start[getOperation()] = now;
    stop = steps.stops[computed];
    return true;
  }

  bool startCopy(int64_t now) {
    const std::vector<Issue::Item> &queue = steps.launches[copies];
    if (copyEnd != noEvent || copied == queue.size() ||
        computed < queue[copied].place || !isDone(queue[copied]))
      return false;
    uint32_t operation = queue[copied].operation;
    schedule.start[operation] = now;
    schedule.end[operation] = copyEnd = now + durations[operation];
    return true;
  }

  bool isDone(const Issue::Item &item) const {
    for (size_t stream = 0; stream != copies; ++stream)
      if (collectives.getNumDone(stream) < item.needs[stream])
        return false;
    return copied >= item.needs[copies];
  }

  uint32_t getOperation() const {
    return steps.issue.computations[computed].operation;
  }

  const Steps &steps;
  const Collectives &collectives;
  const Durations &durations;
  Schedule &schedule;
  std::vector<int64_t> total; ///< Parts, by number of computations.
  int64_t done = 0;           ///< Parts, of all; maybe some of the next one.
  int64_t since = 0, speed;
  uint32_t computed = 0, copied = 0;
  uint32_t stop = 0; ///< It computes until so many are computed.
  int64_t copyEnd = noEvent;
};

/// All ranks, and the collectives, which are the same on each.
class Cluster {
public:
  Cluster(const Steps &steps, const std::vector<Durations> &durations,
          std::vector<Schedule> &schedules)
      : steps(steps), schedules(schedules) {
    collectives.reset(steps.problem.contention);
    ranks.reserve(durations.size());
    for (size_t i = 0; i != durations.size(); ++i)
      ranks.emplace_back(steps, collectives, durations[i], schedules[i]);
  }

  void run() {
    std::vector<int64_t> next(ranks.size(), 0); // events
    for (int64_t now = 0; now != noEvent;) {
      bool changes = now == collectives.getNextEnd();
      collectives.moveOn(now);
      do {
        for (size_t i = 0; i != ranks.size(); ++i)
          if (changes || next[i] == now)
            next[i] = ranks[i].moveTo(now);
        changes = launch();
      } while (changes);
      now = std::min(collectives.getNextEnd(),
                     *std::min_element(next.begin(), next.end()));
    }
    writeCollectives();
  }

private:
  /// Hands over what all ranks may start. Who may start something may do so
  /// from then on: the ranks are asked one after the other, and once.
  bool launch() {
    bool changes = false;
    for (size_t stream = 0; stream != copies; ++stream) {
      auto &[issued, asked] = queues[stream];
      const std::vector<Issue::Item> &items = steps.launches[stream];
      for (; issued != items.size(); ++issued, asked = 0) {
        const Issue::Item &item = items[issued];
        while (asked != ranks.size() && ranks[asked].mayStart(item))
          ++asked;
        if (asked != ranks.size())
          break;
        Collectives::Counts needs;
        std::copy_n(item.needs.begin(), needs.size(), needs.begin());
        const Operation &op = steps.problem.operations[item.operation];
        collectives.issue(stream, {op.duration, 0, needs, op.links});
        changes = true;
      }
    }
    if (changes)
      collectives.release(0);
    return changes;
  }

  void writeCollectives() {
    for (size_t stream = 0; stream != copies; ++stream)
      for (size_t i = 0; i != steps.launches[stream].size(); ++i)
        for (Schedule &schedule : schedules) {
          uint32_t operation = steps.launches[stream][i].operation;
          schedule.start[operation] = collectives.getLaunches(stream)[i].start;
          schedule.end[operation] = collectives.getLaunches(stream)[i].end;
        }
  }

  struct Queue {
    size_t issued = 0, asked = 0;
  };

  const Steps &steps;
  std::vector<Schedule> &schedules;
  Collectives collectives;
  std::array<Queue, copies> queues;
  std::vector<Rank> ranks;
};

} // namespace

/// On a core of its own each rank runs everything on the spot; for a collective
/// it waits for the others.
static void runInTurns(const Problem &problem,
                       const std::vector<uint32_t> &order,
                       const std::vector<Durations> &ranks,
                       std::vector<Schedule> &schedules) {
  std::vector<int64_t> now(ranks.size(), 0);
  for (uint32_t i : order) {
    const Operation &op = problem.operations[i];
    bool isOwn = op.stream == computeStream || op.stream == copyStream;
    if (!isOwn)
      std::fill(now.begin(), now.end(),
                *std::max_element(now.begin(), now.end()));
    for (size_t rank = 0; rank != ranks.size(); ++rank) {
      schedules[rank].start[i] = now[rank];
      now[rank] += isOwn ? ranks[rank][i] : op.duration;
      schedules[rank].end[i] = now[rank];
    }
  }
}

std::vector<Schedule>
fsdp::planner::scheduling::simulate(const Problem &problem,
                                    const std::vector<uint32_t> &order,
                                    const std::vector<Durations> &ranks) {
  std::vector<int64_t> zeros(order.size(), 0);
  std::vector<Schedule> schedules(ranks.size(), {order, zeros, zeros});
  if (ranks.empty())
    return schedules;
  if (problem.sharesCore)
    runInTurns(problem, order, ranks, schedules);
  else
    Cluster(Steps(problem, order), ranks, schedules).run();
  return schedules;
}

/// A number of 64 bits for each of several; the finalizer of SplitMix64.
static uint64_t draw(uint64_t number) {
  number += 0x9e3779b97f4a7c15;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

Durations fsdp::planner::scheduling::vary(const Problem &problem, uint32_t rank,
                                          double spread) {
  constexpr int bits = 20; // a week of nanoseconds times 2^20 is too large
  constexpr int64_t one = int64_t(1) << bits;
  int64_t most = std::llround(spread * double(one));
  Durations durations;
  for (const Operation &op : problem.operations) {
    int64_t duration = op.duration;
    if (op.stream == computeStream) {
      uint64_t number = (uint64_t(rank) << 32) + durations.size();
      int64_t part = int64_t(draw(number) >> (63 - bits)) - one;
      int64_t change = part * most / one; // of 2^20
      duration += duration / one * change + duration % one * change / one;
    }
    durations.push_back(duration);
  }
  return durations;
}

int64_t
fsdp::planner::scheduling::simulateVaried(const Problem &problem,
                                          const std::vector<uint32_t> &order,
                                          uint32_t numRanks, double spread) {
  std::vector<Durations> ranks;
  for (uint32_t rank = 0; rank != numRanks; ++rank)
    ranks.push_back(vary(problem, rank, spread));
  int64_t time = 0;
  for (const Schedule &schedule : simulate(problem, order, ranks))
    for (int64_t end : schedule.end)
      time = std::max(time, end);
  return time;
}
