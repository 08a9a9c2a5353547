//===- Streams.h - Streams that run beside computations ---------*- C++ -*-===//
//
// The machine of a step: one compute stream, which somebody drives, and beside
// it streams whose launches start by themselves, one after the other.
//
// Time moves from one event to the next, in whole nanoseconds. Work is counted
// exactly, in parts. A computation of d ns has d (1024 + x) parts; the compute
// stream does 1024 of them in each nanosecond in which a collective runs, and
// all 1024 + x in any other: it takes d (1 + x / 1024) under communication and
// exactly d without. It ends in the nanosecond in which nothing is left, and
// the rest of that nanosecond is the next computation's, if the stream does not
// stand still between them: so one computation takes as long as its parts. A
// collective of d ns has 3072 d parts. Those that run at once may take more of
// a link than there is: k / 1024 of it. Then each that goes over this link does
// 3072 * 1024 / k parts, rounded down, or fewer if another link is fuller.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANNER_STREAMS_H
#define FSDP_LIB_PLANNER_STREAMS_H

#include "fsdp/Planner/CollectiveCost.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace fsdp::planner {

/// `count` streams beside computations. All but those from the fourth on have
/// collectives.
template <size_t count> class Streams {
public:
  using Counts = std::array<uint32_t, count>; ///< By stream.
  struct Launch {
    int64_t duration;
    uint64_t place; ///< It starts once this is released.
    Counts needs;   ///< How many of each stream must be done before it starts.
    LinkUse links = {};
    int64_t start = 0, end = 0; ///< Once it has run.
  };

  /// Forgets all launches and begins at 0.
  void reset(int64_t newContention) {
    for (Queue &queue : queues) {
      queue.released = queue.done = 0;
      queue.isActive = false;
      queue.launches.clear();
    }
    contention = newContention;
    now = spare = 0;
    numSending = 0;
    loads = {};
    nextEnd = never;
  }

  /// Queues a launch, after those that the stream has; returns how many it has
  /// then.
  uint32_t issue(size_t stream, const Launch &launch) {
    queues[stream].launches.push_back(launch);
    return uint32_t(queues[stream].launches.size());
  }

  /// Hands over what is issued at this place or before.
  void release(uint64_t place) {
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

  /// The compute stream stands still until so many launches are done.
  void waitFor(const Counts &counts) {
    for (size_t stream = 0; stream != count; ++stream)
      while (queues[stream].done < counts[stream]) {
        spare = 0;
        now = nextEnd;
        update();
      }
  }
  void waitForAll() {
    Counts all;
    for (size_t stream = 0; stream != count; ++stream)
      all[stream] = uint32_t(queues[stream].launches.size());
    waitFor(all);
  }

  void compute(int64_t duration) {
    if (!numSending && !spare && nextEnd == never) {
      now += duration;
      return;
    }
    int64_t rate = busyParts + contention, work = duration * rate;
    int64_t used = std::min(work, spare);
    spare -= used;
    work -= used;
    while (work > 0) {
      int64_t speed = numSending ? busyParts : rate;
      int64_t end = now + (work + speed - 1) / speed;
      bool isLast = end < nextEnd;
      if (!isLast)
        end = nextEnd;
      work -= (end - now) * speed;
      now = end;
      if (!isLast)
        update();
    }
    spare = work < 0 ? -work : spare;
  }

  /// For who has several compute streams: moves on, until the next end at most.
  void moveOn(int64_t time) {
    now = time;
    update();
  }
  /// When the next launch ends, if no other starts before; else the largest
  /// number.
  int64_t getNextEnd() const { return nextEnd; }
  bool isSending() const { return numSending; }
  uint32_t getNumDone(size_t stream) const { return queues[stream].done; }
  /// The parts of a computation of a nanosecond, and those that are done in
  /// one.
  int64_t getParts() const { return busyParts + contention; }
  int64_t getSpeed() const { return numSending ? busyParts : getParts(); }

  int64_t getTime() const { return now; }
  const std::vector<Launch> &getLaunches(size_t stream) const {
    return queues[stream].launches;
  }

private:
  static constexpr int64_t never = std::numeric_limits<int64_t>::max();
  static constexpr int64_t linkParts = 3 * 1024; // divides by 1, 2 and 3
  static constexpr int64_t busyParts = 1024;
  static constexpr size_t numSenders = 3;

  struct Queue {
    uint32_t released = 0, done = 0;
    bool isActive = false;
    /// Of the active one: when it ends, unless others start or end; what was
    /// left of it at a time, and the parts that it does in a nanosecond.
    int64_t end = 0, work = 0, since = 0, speed = 0;
    std::vector<Launch> launches;

    Launch &getNext() { return launches[done]; }
    void setSpeed(int64_t newSpeed, int64_t now) {
      work -= (now - since) * speed;
      since = now;
      speed = newSpeed;
      end = now + (work + speed - 1) / speed;
    }
  };

  bool mayStart(const Queue &queue) const {
    if (queue.isActive || queue.done == queue.released)
      return false;
    const Counts &needs = queue.launches[queue.done].needs;
    for (size_t stream = 0; stream != count; ++stream)
      if (queues[stream].done < needs[stream])
        return false;
    return true;
  }

  void addLoad(const LinkUse &links, int64_t factor) {
    for (size_t link = 0; link != numLinks; ++link)
      loads[link] += factor * links[link];
  }
  int64_t findSpeed(const LinkUse &links) const {
    int64_t load = wholeLink;
    for (size_t link = 0; link != numLinks; ++link)
      if (links[link])
        load = std::max(load, loads[link]);
    return load == wholeLink ? linkParts : linkParts * wholeLink / load;
  }

  /// Ends what ends now, and starts what can start now.
  void update() {
    do {
      for (size_t i = 0; i != count; ++i)
        if (Queue &queue = queues[i]; queue.isActive && queue.end == now) {
          queue.getNext().end = now;
          addLoad(queue.getNext().links, -1);
          ++queue.done;
          queue.isActive = false;
          numSending -= i < numSenders;
        }
      for (size_t i = 0; i != count; ++i)
        if (Queue &queue = queues[i]; mayStart(queue)) {
          Launch &launch = queue.getNext();
          launch.start = queue.since = now;
          addLoad(launch.links, 1);
          queue.isActive = true;
          queue.work = linkParts * launch.duration;
          queue.setSpeed(linkParts, now);
          numSending += i < numSenders;
        }
      nextEnd = never;
      for (Queue &queue : queues) {
        if (!queue.isActive)
          continue;
        if (int64_t speed = findSpeed(queue.getNext().links);
            speed != queue.speed)
          queue.setSpeed(speed, now);
        nextEnd = std::min(nextEnd, queue.end);
      }
    } while (nextEnd == now);
  }

  std::array<Queue, count> queues;
  int64_t numSending = 0;                   ///< Collectives that run.
  std::array<int64_t, numLinks> loads = {}; ///< What these take of each link.
  int64_t contention = 0, now = 0, nextEnd = never;
  int64_t spare = 0; ///< Parts that are left of the latest nanosecond.
};

} // namespace fsdp::planner

#endif // FSDP_LIB_PLANNER_STREAMS_H
