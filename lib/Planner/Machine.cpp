//===- Machine.cpp - The time of a layout ---------------------------------===//
//
// Time moves from one event to the next. Work is counted exactly, in parts of a
// nanosecond; an end is the first whole nanosecond at which nothing is left. A
// computation of d ns has d (1024 + x) parts, of which 1024 are done in each
// nanosecond while a collective runs, and all 1024 + x otherwise: it takes
// d (1 + x / 1024) under communication and exactly d without. A collective of d
// ns has 12 d parts, of which each of k that share a link does 12 / k.
//
//===----------------------------------------------------------------------===//

#include "Layout.h"

#include <algorithm>
#include <numeric>

using namespace fsdp::planner;

static constexpr int64_t never = std::numeric_limits<int64_t>::max();
static constexpr int64_t linkParts = 12; // divides by 1, 2 and 3
static constexpr int64_t busyParts = 1024;

/// Moves the clock; nothing ends on the way.
inline void Machine::moveTo(int64_t time) {
  if (sharesLink && numActive) {
    int64_t done = (time - now) * (linkParts / numActive);
    for (Queue &queue : queues)
      queue.work -= done;
  }
  now = time;
}

/// Ends what ends now, and starts what can start now.
void Machine::update() {
  auto mayStart = [&](const Launch &launch) {
    for (size_t stream = 0; stream != numStreams; ++stream)
      if (queues[stream].done < launch.needs[stream])
        return false;
    return true;
  };
  do {
    for (Queue &queue : queues)
      if (queue.isActive && queue.end == now) {
        queue.isActive = false;
        ++queue.done;
        --numActive;
      }
    for (Queue &queue : queues)
      if (!queue.isActive && queue.done != queue.released &&
          mayStart(queue.launches[queue.done])) {
        int64_t duration = queue.launches[queue.done].duration;
        queue.isActive = true;
        queue.end = now + duration;
        queue.work = linkParts * duration;
        ++numActive;
      }
    nextEnd = never;
    for (Queue &queue : queues) {
      if (!queue.isActive)
        continue;
      if (sharesLink) {
        int64_t rate = linkParts / numActive;
        queue.end = now + (queue.work + rate - 1) / rate;
      }
      nextEnd = std::min(nextEnd, queue.end);
    }
  } while (nextEnd == now);
}

inline void Machine::waitFor(const Counts &counts) {
  for (size_t stream = 0; stream != numStreams; ++stream)
    while (queues[stream].done < counts[stream]) {
      moveTo(nextEnd);
      update();
    }
}

inline void Machine::compute(int64_t duration) {
  if (!numActive) {
    now += duration;
    return;
  }
  int64_t rate = busyParts + contention, work = duration * rate;
  while (work) {
    int64_t speed = numActive ? busyParts : rate;
    int64_t end = now + (work + speed - 1) / speed;
    if (end < nextEnd) {
      moveTo(end);
      return;
    }
    work -= std::min(work, (nextEnd - now) * speed);
    moveTo(nextEnd);
    update();
  }
}

uint32_t Machine::issue(Stream stream, int64_t duration, uint64_t place,
                        uint32_t group, Counts needs) {
  std::vector<Launch> &launches = queues[size_t(stream)].launches;
  auto number = uint32_t(launches.size()) + 1;
  if (!model->overlaps.empty()) {
    for (size_t other = 0; other != latest.size(); ++other)
      for (size_t i = 0; model->overlaps[group][other] && i != numStreams; ++i)
        needs[i] = std::max(needs[i], latest[other][i]);
    latest[group] = {};
    latest[group][size_t(stream)] = number;
  }
  launches.push_back({duration, place, needs});
  return number;
}

void Machine::issueGather(const Layout &layout, const Layout::Call &call) {
  uint32_t group =
      layout.program.traffic[layout.gatherUnits[call.begin]].gatherGroup;
  uint32_t number = issue(Stream::Gather, call.duration,
                          uint64_t(call.launch) * 2, group, {});
  for (uint32_t i = call.begin; i != call.end; ++i) {
    uint32_t use = layout.uses[layout.gatherUnits[i]].first[size_t(call.phase)];
    waits[use].late[size_t(Stream::Gather)] = number;
  }
}

void Machine::issueReduction(const Layout &layout, const Layout::Call &call) {
  const Traffic &own =
      layout.program.traffic[layout.reductionUnits[call.begin]];
  uint64_t place = uint64_t(call.launch) * 2;
  Waits &wait = waits[call.wait];
  Counts &counts = call.wait > call.launch ? wait.early : wait.late;
  Counts needs = {};
  if (own.isReduced) {
    uint32_t number =
        issue(Stream::Reduce, call.duration, place, own.reduceGroup, {});
    needs[size_t(Stream::Reduce)] = number;
    counts[size_t(Stream::Reduce)] = number;
  }
  if (own.isAllReduced)
    counts[size_t(Stream::AllReduce)] = issue(Stream::AllReduce, call.allReduce,
                                              place, own.allReduceGroup, needs);
}

/// Queues all calls in the order of issue and notes who waits for them.
void Machine::start(const Layout &layout) {
  for (Queue &queue : queues) {
    queue.released = queue.done = 0;
    queue.isActive = false;
    queue.work = 0;
    queue.launches.clear();
  }
  now = numActive = 0;
  nextEnd = never;
  model = &layout.model;
  sharesLink = model->sharesLink;
  contention = model->contention;
  latest.assign(model->overlaps.size(), {});
  waits.assign(layout.steps.size() + 1, {});

  auto gather = layout.gathers.begin();
  auto reduction = layout.reductions.begin();
  auto issueUpTo = [&](uint32_t place) {
    while (gather != layout.gathers.end() ||
           reduction != layout.reductions.end()) {
      uint32_t next[] = {
          gather != layout.gathers.end() ? gather->launch : nobody,
          reduction != layout.reductions.end() ? reduction->launch : nobody};
      if (std::min(next[0], next[1]) > place)
        return;
      if (next[1] <= next[0])
        issueReduction(layout, *reduction++);
      else
        issueGather(layout, *gather++);
    }
  };
  fixed.resize(layout.program.calls.size());
  for (uint32_t place : layout.fixedPlaces) {
    issueUpTo(place);
    const Layout::Step &step = layout.steps[place];
    if (step.launches != nobody) {
      const FixedCall &call = layout.program.calls[step.launches];
      fixed[step.launches] = issue(call.stream, call.duration,
                                   uint64_t(place) * 2 + 1, call.group, {});
    }
    if (step.awaits != nobody) {
      auto stream = size_t(layout.program.calls[step.awaits].stream);
      uint32_t &count = waits[place].late[stream];
      count = std::max(count, fixed[step.awaits]);
    }
  }
  issueUpTo(nobody - 1);
}

/// Hands over what is issued at this place or before.
void Machine::release(uint64_t place) {
  bool isNew = false;
  for (Queue &queue : queues)
    while (queue.released != queue.launches.size() &&
           queue.launches[queue.released].place <= place) {
      ++queue.released;
      isNew = true;
    }
  if (isNew)
    update();
}

int64_t Machine::run(const Layout &layout) {
  if (layout.model.sharesCore) {
    int64_t time = 0;
    for (const Layout::Step &step : layout.steps)
      time +=
          step.duration + (step.launches != nobody
                               ? layout.program.calls[step.launches].duration
                               : 0);
    for (const Layout::Call &call : layout.gathers)
      time += call.duration;
    for (const Layout::Call &call : layout.reductions)
      time += call.duration + call.allReduce;
    return time;
  }
  start(layout);
  for (uint32_t place = 0; place <= layout.steps.size(); ++place) {
    waitFor(waits[place].early);
    release(uint64_t(place) * 2);
    waitFor(waits[place].late);
    release(uint64_t(place) * 2 + 1);
    if (place != layout.steps.size())
      compute(layout.steps[place].duration);
  }
  Counts all;
  for (size_t stream = 0; stream != numStreams; ++stream)
    all[stream] = uint32_t(queues[stream].launches.size());
  waitFor(all);
  return now;
}
