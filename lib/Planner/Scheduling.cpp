//===- Scheduling.cpp - Problems, schedules and their times ---------------===//
//
// Checks of what goes in and what comes out, and the machine that turns an
// order into times. The verifier shares no code with the machine.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Planner/Scheduling.h"

#include "Issue.h"

#include <algorithm>
#include <tuple>
#include <utility>

using namespace fsdp::planner::scheduling;

/// Sums of bytes, and times, stay below this, so that no arithmetic overflows.
static constexpr int64_t mostTotal = std::numeric_limits<int64_t>::max() / 4;
/// So do durations, which are counted in parts (see Streams.h); as in a step's
/// model.
static constexpr int64_t mostTime = 7LL * 24 * 3600 * 1'000'000'000;
static constexpr int64_t mostSlowdown = 8 * 1024;

static std::string quote(const char *what, size_t index) {
  return std::string(what) + " " + std::to_string(index);
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

std::string fsdp::planner::scheduling::check(const Problem &problem) {
  size_t count = problem.operations.size();
  if (count >= none)
    return "there are too many operations";
  if (problem.numStreams == 0)
    return "there is no compute stream";
  if (problem.numStreams > copyStream + 1)
    return "there are " + std::to_string(problem.numStreams) +
           " streams, and not at most " + std::to_string(copyStream + 1);
  if (problem.contention < 0 || problem.contention > mostSlowdown)
    return "the contention is " + std::to_string(problem.contention) +
           ", and not from 0 to " + std::to_string(mostSlowdown);
  if (problem.memoryLimit < 0)
    return "the memory limit is negative";
  int64_t time = 0, bytes = 0;
  for (size_t i = 0; i != count; ++i) {
    const Operation &op = problem.operations[i];
    if (op.duration < 0)
      return quote("operation", i) + " has a negative duration";
    if (op.duration > mostTime - time)
      return quote("operation", i) + " takes the total past a week";
    time += op.duration;
    if (op.stream >= problem.numStreams)
      return quote("operation", i) + " is on stream " +
             std::to_string(op.stream) + ", but there are " +
             std::to_string(problem.numStreams);
    for (uint16_t part : op.links)
      if (part > wholeLink)
        return quote("operation", i) + " takes " + std::to_string(part) +
               " parts of a link, which has " + std::to_string(wholeLink);
    for (uint32_t before : op.after) {
      if (before >= count)
        return quote("operation", i) + " depends on operation " +
               std::to_string(before) + ", but there are " +
               std::to_string(count);
      if (before >= i)
        return quote("operation", i) + " depends on operation " +
               std::to_string(before) +
               ", which is not before it: a cycle, or not program order";
    }
  }
  for (size_t i = 0; i != problem.buffers.size(); ++i) {
    const Buffer &buffer = problem.buffers[i];
    if (buffer.bytes < 0)
      return quote("buffer", i) + " has a negative size";
    if (buffer.bytes > mostTotal - bytes)
      return quote("buffer", i) + " takes the total past two exabytes";
    bytes += buffer.bytes;
    if (buffer.from >= count || buffer.until >= count)
      return quote("buffer", i) + " belongs to operation " +
             std::to_string(std::max(buffer.from, buffer.until)) +
             ", but there are " + std::to_string(count);
    if (buffer.until < buffer.from)
      return quote("buffer", i) + " ends at operation " +
             std::to_string(buffer.until) + ", before it begins at operation " +
             std::to_string(buffer.from);
  }
  return "";
}

/// What a schedule must keep between two operations; empty if it does.
static std::string verifyOrder(const Problem &problem, const Schedule &schedule,
                               const std::vector<uint32_t> &place) {
  std::vector<uint32_t> last; // of each sequence, in program order
  std::vector<uint32_t> sequences;
  for (const Operation &op : problem.operations)
    if (op.sequence != none)
      sequences.push_back(op.sequence);
  std::sort(sequences.begin(), sequences.end());
  last.resize(sequences.size(), none);
  for (size_t i = 0; i != place.size(); ++i) {
    const Operation &op = problem.operations[i];
    for (uint32_t before : op.after) {
      if (place[before] > place[i])
        return quote("operation", i) + " is issued before operation " +
               std::to_string(before) + ", which it depends on";
      if (schedule.end[before] > schedule.start[i])
        return quote("operation", i) + " starts before operation " +
               std::to_string(before) + ", which it depends on, has ended";
    }
    if (op.sequence == none)
      continue;
    size_t number =
        std::lower_bound(sequences.begin(), sequences.end(), op.sequence) -
        sequences.begin();
    if (last[number] != none && place[last[number]] > place[i])
      return quote("operation", i) + " is issued before operation " +
             std::to_string(last[number]) +
             ", which comes first in their sequence";
    last[number] = uint32_t(i);
  }
  for (const Buffer &buffer : problem.buffers)
    if (place[buffer.until] < place[buffer.from])
      return quote("operation", buffer.until) + " is issued before operation " +
             std::to_string(buffer.from) + ", whose memory it releases";
  return "";
}

/// What the machine must keep: one operation at a time, in the order of issue,
/// and what is queued after the computations before it.
static std::string verifyTimes(const Problem &problem,
                               const Schedule &schedule) {
  std::vector<int64_t> streamEnd(problem.numStreams, 0);
  for (uint32_t i : schedule.order) {
    const Operation &op = problem.operations[i];
    int64_t start = schedule.start[i];
    if (start < 0)
      return quote("operation", i) + " starts before the step";
    uint32_t stream = problem.sharesCore ? computeStream : op.stream;
    if (start < streamEnd[stream])
      return quote("operation", i) + " starts before " +
             (problem.sharesCore ? "the core"
                                 : "stream " + std::to_string(stream)) +
             " is free";
    if (!op.runsAhead && start < streamEnd[computeStream])
      return quote("operation", i) +
             " starts before the computations that are issued before it";
    if (start > mostTotal)
      return quote("operation", i) + " starts after 73 years";
    if (schedule.end[i] < start + op.duration)
      return quote("operation", i) + " takes less than its " +
             std::to_string(op.duration) + " ns";
    streamEnd[stream] = schedule.end[i];
  }
  return "";
}

/// The places of the operations in the order of issue.
static std::vector<uint32_t> getPlaces(const std::vector<uint32_t> &order) {
  std::vector<uint32_t> place(order.size());
  for (size_t i = 0; i != order.size(); ++i)
    place[order[i]] = uint32_t(i);
  return place;
}

/// The most memory at any place of the order, and the first operation that
/// takes it past the limit (or `none`).
static std::pair<int64_t, uint32_t>
findMostMemory(const Problem &problem, const std::vector<uint32_t> &order) {
  std::vector<uint32_t> place = getPlaces(order);
  std::vector<int64_t> change(order.size() + 1);
  for (const Buffer &buffer : problem.buffers) {
    change[place[buffer.from]] += buffer.bytes;
    change[place[buffer.until] + 1] -= buffer.bytes;
  }
  int64_t alive = 0, most = 0;
  uint32_t culprit = none;
  for (size_t at = 0; at != order.size(); ++at) {
    alive += change[at];
    most = std::max(most, alive);
    if (alive > problem.memoryLimit && culprit == none)
      culprit = order[at];
  }
  return {most, culprit};
}

std::string fsdp::planner::scheduling::verify(const Problem &problem,
                                              const Schedule &schedule) {
  size_t count = problem.operations.size();
  if (schedule.order.size() != count || schedule.start.size() != count ||
      schedule.end.size() != count)
    return "the schedule is not of as many operations as the problem";
  std::vector<uint32_t> place(count, none);
  for (size_t i = 0; i != count; ++i) {
    if (schedule.order[i] >= count)
      return "the schedule issues operation " +
             std::to_string(schedule.order[i]) + ", but there are " +
             std::to_string(count);
    if (place[schedule.order[i]] != none)
      return quote("operation", schedule.order[i]) + " is issued twice";
    place[schedule.order[i]] = uint32_t(i);
  }
  std::string error = verifyTimes(problem, schedule);
  if (error.empty())
    error = verifyOrder(problem, schedule, place);
  if (!error.empty())
    return error;
  if (auto [most, culprit] = findMostMemory(problem, schedule.order);
      culprit != none)
    return quote("operation", culprit) +
           " takes more memory than the limit of " +
           std::to_string(problem.memoryLimit) + " bytes; the most is " +
           std::to_string(most);
  return "";
}

//===----------------------------------------------------------------------===//
// Memory and time of an order
//===----------------------------------------------------------------------===//

Peak fsdp::planner::scheduling::findPeak(const Problem &problem,
                                         const std::vector<uint32_t> &order) {
  std::vector<int64_t> takes(problem.operations.size(), 0);
  std::vector<int64_t> frees(problem.operations.size(), 0);
  for (const Buffer &buffer : problem.buffers) {
    takes[buffer.from] += buffer.bytes;
    frees[buffer.until] += buffer.bytes;
  }
  Peak peak;
  int64_t alive = 0;
  for (uint32_t i : order) {
    alive += takes[i];
    if (alive > peak.bytes) {
      peak.bytes = alive;
      peak.operation = i;
    }
    alive -= frees[i];
  }
  if (peak.operation == none)
    return peak;
  std::vector<uint32_t> place = getPlaces(order);
  uint32_t at = place[peak.operation];
  for (size_t i = 0; i != problem.buffers.size(); ++i) {
    const Buffer &buffer = problem.buffers[i];
    if (buffer.bytes && place[buffer.from] <= at && at <= place[buffer.until])
      peak.buffers.push_back(uint32_t(i));
  }
  std::sort(peak.buffers.begin(), peak.buffers.end(),
            [&](uint32_t a, uint32_t b) {
              int64_t left = problem.buffers[a].bytes;
              int64_t right = problem.buffers[b].bytes;
              return left != right ? left > right : a < b;
            });
  return peak;
}

/// On one core each operation runs on the spot.
static void runInTurns(const Problem &problem, Schedule &schedule) {
  int64_t now = 0;
  for (uint32_t i : schedule.order) {
    schedule.start[i] = now;
    schedule.end[i] = now += problem.operations[i].duration;
  }
}

Issue::Issue(const Problem &problem, const std::vector<uint32_t> &order) {
  std::vector<uint32_t> number(order.size()); // of each on its stream, from 1
  std::array<uint32_t, copyStream + 1> issued = {};
  computations.reserve(order.size());
  for (uint32_t i : order) {
    const Operation &op = problem.operations[i];
    Item item = {i, 0, {}};
    for (uint32_t before : op.after) {
      uint32_t stream = problem.operations[before].stream;
      uint32_t &least =
          stream == computeStream ? item.place : item.needs[stream - 1];
      least = std::max(least, number[before]);
    }
    if (op.stream == computeStream || !op.runsAhead)
      item.place = issued[computeStream];
    number[i] = ++issued[op.stream];
    (op.stream == computeStream ? computations : launches).push_back(item);
  }
}

Schedule
fsdp::planner::scheduling::simulate(const Problem &problem,
                                    const std::vector<uint32_t> &order) {
  size_t count = problem.operations.size();
  Schedule schedule{order, std::vector<int64_t>(count, 0),
                    std::vector<int64_t>(count, 0)};
  if (problem.sharesCore) {
    runInTurns(problem, schedule);
    return schedule;
  }
  Issue issue(problem, order);
  OwnStreams streams;
  streams.reset(problem.contention);
  for (const auto &[i, place, needs] : issue.launches) {
    const Operation &op = problem.operations[i];
    streams.issue(op.stream - 1, {op.duration, place, needs, op.links});
  }
  streams.release(0);
  for (const auto &[i, place, needs] : issue.computations) {
    streams.waitFor(needs);
    schedule.start[i] = streams.getTime();
    streams.compute(problem.operations[i].duration);
    schedule.end[i] = streams.getTime();
    streams.release(place + 1);
  }
  streams.waitForAll();
  OwnStreams::Counts number = {};
  for (const auto &[i, place, needs] : issue.launches) {
    size_t stream = problem.operations[i].stream - 1;
    const auto &launch = streams.getLaunches(stream)[number[stream]++];
    schedule.start[i] = launch.start;
    schedule.end[i] = launch.end;
  }
  return schedule;
}

Timeline fsdp::planner::scheduling::measure(const Problem &problem,
                                            const Schedule &schedule) {
  Timeline line;
  size_t count = problem.operations.size();
  line.exposed.resize(count, 0);
  line.streams.resize(problem.numStreams);
  std::vector<std::pair<int64_t, uint32_t>> queuedEnds;
  for (uint32_t i = 0; i != count; ++i) {
    const Operation &op = problem.operations[i];
    int64_t end = schedule.end[i], took = end - schedule.start[i];
    line.streams[op.stream].busy += took;
    line.makespan = std::max(line.makespan, end);
    if (op.stream == computeStream)
      line.slowed += took - op.duration;
    if (op.stream == computeStream || !op.duration)
      continue;
    if (problem.sharesCore) {
      line.exposed[i] = op.duration;
      line.exposedTotal += op.duration;
    } else {
      queuedEnds.emplace_back(end, i);
    }
  }
  for (Timeline::Stream &stream : line.streams)
    stream.idle = line.makespan - stream.busy;
  std::sort(queuedEnds.begin(), queuedEnds.end());

  // A gap of the compute stream ends because something else has ended.
  int64_t clock = 0;
  auto closeGap = [&](int64_t end, const std::vector<uint32_t> &after) {
    if (end <= clock)
      return;
    line.exposedTotal += end - clock;
    for (uint32_t before : after)
      if (schedule.end[before] == end &&
          problem.operations[before].stream != computeStream) {
        line.exposed[before] += end - clock;
        return;
      }
    auto found = std::lower_bound(queuedEnds.begin(), queuedEnds.end(),
                                  std::make_pair(end, uint32_t(0)));
    if (found != queuedEnds.end() && found->first == end)
      line.exposed[found->second] += end - clock;
  };
  for (uint32_t i : schedule.order)
    if (!problem.sharesCore && problem.operations[i].stream == computeStream) {
      closeGap(schedule.start[i], problem.operations[i].after);
      clock = schedule.end[i];
    }
  if (!problem.sharesCore)
    closeGap(line.makespan, {});

  line.peakBytes = findPeak(problem, schedule.order).bytes;
  return line;
}
