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
    for (Stream &stream : streams)
      stream.work -= done;
  }
  now = time;
}

/// Ends what ends now, and starts what can start now.
void Machine::update() {
  do {
    for (Stream &stream : streams)
      if (stream.isActive && stream.end == now) {
        stream.isActive = false;
        ++stream.done;
        --numActive;
      }
    streams[AllReduce].released = streams[Reduce].done;
    for (Stream &stream : streams)
      if (!stream.isActive && stream.done != stream.released) {
        int64_t duration = stream.durations[stream.done];
        stream.isActive = true;
        stream.end = now + duration;
        stream.work = linkParts * duration;
        ++numActive;
      }
    nextEnd = never;
    for (Stream &stream : streams) {
      if (!stream.isActive)
        continue;
      if (sharesLink) {
        int64_t rate = linkParts / numActive;
        stream.end = now + (stream.work + rate - 1) / rate;
      }
      nextEnd = std::min(nextEnd, stream.end);
    }
  } while (nextEnd == now);
}

inline void Machine::waitFor(const Stream &stream, uint32_t count) {
  while (stream.done < count) {
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

/// Queues all calls and notes who waits for them.
void Machine::start(const Layout &layout) {
  for (Stream &stream : streams) {
    stream.released = stream.done = 0;
    stream.isActive = false;
    stream.work = 0;
    stream.durations.clear();
  }
  now = numActive = 0;
  nextEnd = never;
  sharesLink = layout.model.sharesLink;
  contention = layout.model.contention;

  waits.assign(layout.steps.size() + 1, {0, 0, 0});
  for (const Layout::Call &call : layout.gathers) {
    streams[Gather].durations.push_back(call.duration);
    auto number = uint32_t(streams[Gather].durations.size());
    for (uint32_t i = call.begin; i != call.end; ++i)
      waits[layout.uses[layout.gatherUnits[i]].first[size_t(call.phase)]]
          .gathers = number;
  }
  for (const Layout::Call &call : layout.reductions) {
    streams[Reduce].durations.push_back(call.duration);
    streams[AllReduce].durations.push_back(call.allReduce);
    auto number = uint32_t(streams[Reduce].durations.size());
    Waits &place = waits[call.wait];
    (call.wait > call.launch ? place.early : place.late) = number;
  }
}

int64_t Machine::run(const Layout &layout) {
  if (layout.model.sharesCore) {
    int64_t time = 0;
    for (const Layout::Step &step : layout.steps)
      time += step.duration;
    for (const Layout::Call &call : layout.gathers)
      time += call.duration;
    for (const Layout::Call &call : layout.reductions)
      time += call.duration + call.allReduce;
    return time;
  }
  start(layout);
  Stream &gather = streams[Gather], &reduce = streams[Reduce];
  auto release = [](const std::vector<Layout::Call> &calls, Stream &stream,
                    uint32_t place) {
    uint32_t before = stream.released;
    while (stream.released != calls.size() &&
           calls[stream.released].launch == place)
      ++stream.released;
    return stream.released != before;
  };
  for (uint32_t place = 0; place <= layout.steps.size(); ++place) {
    const Waits &wait = waits[place];
    waitFor(streams[AllReduce], wait.early);
    bool isNew = release(layout.gathers, gather, place);
    isNew |= release(layout.reductions, reduce, place);
    if (isNew)
      update();
    waitFor(gather, wait.gathers);
    waitFor(streams[AllReduce], wait.late);
    if (place != layout.steps.size())
      compute(layout.steps[place].duration);
  }
  waitFor(gather, uint32_t(layout.gathers.size()));
  waitFor(streams[AllReduce], uint32_t(layout.reductions.size()));
  return now;
}
