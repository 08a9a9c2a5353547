//===- FakeCuda.h - A GPU made of ordinary memory ---------------*- C++ -*-===//
//
// Stands in for CUDA in tests of the device and its communicators. Work is
// queued on streams and done as late as possible, the streams taking turns at
// random, so that a missing event shows as a wrong value. Every call is noted
// in the log of the thread that makes it, with streams, events and addresses
// by name: "a.compute" is a stream of rank a, "a.e0" its first event, "a.m1+64"
// a byte of its second block.
//
// There are no clocks but its own: whatever is queued begins when the stream is
// free and its rank's host has been there, and takes a microsecond or what the
// test says. The host takes none, and waits until what it waits for has ended.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_TEST_UNIT_RUNTIME_FAKECUDA_H
#define FSDP_TEST_UNIT_RUNTIME_FAKECUDA_H

#include "Runtime/Device/CUDA/Device.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace fsdp {

class FakeCuda {
public:
  using Log = std::vector<std::string>;

  /// Eager: work is done when it is queued, as kernels on the CPU are.
  explicit FakeCuda(unsigned seed = 0, bool isEager = false)
      : random(seed), isEager(isEager) {
    fillTable();
  }

  /// Whose calls this thread makes from now on.
  void enter(char rank) { self = rank; }

  /// What the rank has called since the last time.
  Log takeLog(char rank) {
    std::lock_guard lock(mutex);
    return std::exchange(logs[rank], {});
  }

  /// Queues a kernel.
  void launch(cudaStream_t stream, std::function<void()> kernel,
              double microseconds = 1) {
    std::lock_guard lock(mutex);
    queue(stream, toTask(std::move(kernel))).microseconds = microseconds;
  }

  /// Queues a kernel that waits for something outside of this GPU: it is called
  /// until it returns true.
  void launchPolled(cudaStream_t stream, std::function<bool()> kernel,
                    double microseconds) {
    std::lock_guard lock(mutex);
    Task &task = queue(stream, std::move(kernel));
    task.isOutside = true;
    task.microseconds = microseconds;
  }

  bool isDoneAtOnce() const { return isEager; }

  /// What has held up the rank's thread since the last time: calls that wait
  /// for work, allocate or free.
  Log takeBlocking(char rank) {
    std::lock_guard lock(mutex);
    return std::exchange(blocking[rank], {});
  }

  bool isEmpty() const {
    return streams.empty() && events.empty() && blocks.empty() &&
           pinned.empty();
  }

  CudaApi api;
  /// Calls that shall fail, by name.
  std::map<std::string, cudaError_t> failures;
  unsigned warmUps = 0;
  std::size_t freeBytes = std::size_t{79} << 30; ///< Of 80 GiB.

private:
  struct Event {
    Event(std::string name, unsigned flags)
        : name(std::move(name)), measures(!(flags & cudaEventDisableTiming)) {}
    std::string name;
    bool measures;
    std::uint64_t recorded = 0, completed = 0;
    double time = 0; ///< When it completed.
  };
  struct Task {
    std::function<bool()> run; ///< False: not yet.
    double queued;             ///< By a host whose time that was.
    bool isOutside = false;
    double microseconds = 1;
  };
  struct Stream {
    std::string name;
    std::minstd_rand::result_type priority;
    std::deque<Task> queue = {};
    double time = 0; ///< Until then, it is busy.
  };
  struct Block {
    std::string name;
    std::size_t bytes;
  };

  /// Null: that of callers.
  Stream &at(cudaStream_t stream) {
    return stream ? *reinterpret_cast<Stream *>(stream) : callers;
  }
  static Event &at(cudaEvent_t event) {
    return *reinterpret_cast<Event *>(event);
  }

  std::string own(const char *kind, unsigned number) const {
    return std::string(1, self) + "." + kind + std::to_string(number);
  }

  std::string nameOf(const void *address) const {
    auto *place = static_cast<const std::byte *>(address);
    auto after = blocks.upper_bound(place);
    if (after == blocks.begin())
      return "host";
    auto &[begin, block] = *std::prev(after);
    if (place >= begin + block.bytes)
      return "host";
    // The device aligns what it is given.
    auto aligned = (reinterpret_cast<std::uintptr_t>(begin) + 4095) & ~4095ull;
    return block.name + "+" +
           std::to_string(reinterpret_cast<std::uintptr_t>(address) - aligned);
  }

  /// Notes a call that holds up the thread.
  cudaError_t noteBlocking(const std::string &call, const std::string &what) {
    cudaError_t error = note(call, what);
    if (!error)
      blocking[self].push_back(call + " " + what);
    return error;
  }

  /// The GPU reaches it by itself.
  bool isReachable(const void *address) const {
    if (nameOf(address) != "host")
      return true;
    auto *place = static_cast<const std::byte *>(address);
    auto after = pinned.upper_bound(place);
    return after != pinned.begin() &&
           place < std::prev(after)->first + std::prev(after)->second;
  }

  /// Notes a call; false if it shall fail.
  cudaError_t note(const std::string &call, const std::string &what) {
    if (auto failure = failures.find(call); failure != failures.end())
      return failure->second;
    logs[self].push_back(call + " " + what);
    return cudaSuccess;
  }

  static std::function<bool()> toTask(std::function<void()> work) {
    return [work = std::move(work)] {
      work();
      return true;
    };
  }

  Task &queue(cudaStream_t stream, std::function<bool()> run) {
    return at(stream).queue.emplace_back(Task{std::move(run), hosts[self]});
  }

  /// The host has waited until then.
  void reach(double time) { hosts[self] = std::max(hosts[self], time); }

  void push(cudaStream_t stream, std::function<void()> work) {
    queue(stream, toTask(std::move(work)));
    if (isEager)
      finish(at(stream));
  }

  /// Runs the first task of one stream. Some streams run far ahead and others
  /// stay behind, until the priorities change. False if all have to wait.
  bool step() {
    std::vector<Stream *> busy;
    if (!callers.queue.empty())
      busy.push_back(&callers);
    for (Stream &stream : streams)
      if (!stream.queue.empty())
        busy.push_back(&stream);
    std::ranges::sort(busy, std::greater(), &Stream::priority);
    for (Stream *stream : busy) {
      Task &task = stream->queue.front();
      stream->time = std::max(stream->time, task.queued);
      if (!task.run())
        continue;
      stream->time += task.microseconds;
      stream->queue.pop_front();
      if (random() % 8 == 0)
        stream->priority = random();
      return true;
    }
    return false;
  }

  /// Runs tasks until this stream has none.
  void finish(Stream &wanted) {
    while (!wanted.queue.empty()) {
      if (step())
        continue;
      if (std::ranges::none_of(streams, [](const Stream &stream) {
            return !stream.queue.empty() && stream.queue.front().isOutside;
          }))
        throw std::logic_error("the streams wait for one another");
      mutex.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      mutex.lock();
    }
  }

  void *newBlock(std::size_t bytes) {
    auto *place = static_cast<std::byte *>(std::malloc(bytes));
    std::memset(place, 0xcd, bytes);
    blocks[place] = {own("m", made[self].blocks++), bytes};
    return place;
  }

  void fillTable() {
    api.getDevice = [](int *device) {
      *device = gpu;
      return cudaSuccess;
    };
    api.setDevice = [this](int device) {
      std::lock_guard lock(mutex);
      cudaError_t error = note("setDevice", std::to_string(device));
      if (!error)
        gpu = device;
      return error;
    };
    api.restoreDevice = [](int device) { gpu = device; };
    api.memGetInfo = [this](std::size_t *free, std::size_t *total) {
      *free = freeBytes;
      *total = std::size_t{80} << 30;
      return cudaSuccess;
    };
    api.malloc = [this](void **place, std::size_t bytes) {
      std::lock_guard lock(mutex);
      if (cudaError_t error = noteBlocking("malloc", std::to_string(bytes)))
        return error;
      *place = newBlock(bytes);
      return cudaSuccess;
    };
    api.hostAlloc = [this](void **place, std::size_t bytes, unsigned flags) {
      std::lock_guard lock(mutex);
      if (cudaError_t error =
              noteBlocking("hostAlloc", std::to_string(bytes) + " flags " +
                                            std::to_string(flags)))
        return error;
      *place = newBlock(bytes);
      return cudaSuccess;
    };
    auto release = [this](const char *call) {
      return [this, call](void *place) {
        std::lock_guard lock(mutex);
        auto block = blocks.find(static_cast<std::byte *>(place));
        if (block == blocks.end())
          return cudaErrorInvalidValue;
        noteBlocking(call, block->second.name);
        blocks.erase(block);
        std::free(place);
        return cudaSuccess;
      };
    };
    api.free = release("free");
    api.freeHost = release("freeHost");
    api.hostRegister = [this](void *place, std::size_t bytes, unsigned flags) {
      std::lock_guard lock(mutex);
      if (!pinned.emplace(static_cast<std::byte *>(place), bytes).second)
        return cudaErrorHostMemoryAlreadyRegistered;
      return noteBlocking("hostRegister", std::to_string(bytes) + " flags " +
                                              std::to_string(flags));
    };
    api.hostUnregister = [this](void *place) {
      std::lock_guard lock(mutex);
      return pinned.erase(static_cast<std::byte *>(place))
                 ? noteBlocking("hostUnregister", "")
                 : cudaErrorHostMemoryNotRegistered;
    };
    api.memsetAsync = [this](void *target, int value, std::size_t bytes,
                             cudaStream_t stream) {
      std::lock_guard lock(mutex);
      push(stream, [=] { std::memset(target, value, bytes); });
      return note("memsetAsync",
                  nameOf(target) + " = " + std::to_string(value) + " x " +
                      std::to_string(bytes) + " on " + at(stream).name);
    };
    api.memcpyAsync = [this](void *target, const void *source,
                             std::size_t bytes, cudaMemcpyKind kind,
                             cudaStream_t stream) {
      std::lock_guard lock(mutex);
      if (kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
      push(stream, [=] { std::memcpy(target, source, bytes); });
      std::string what = nameOf(target) + " = " + nameOf(source) + " x " +
                         std::to_string(bytes) + " on " + at(stream).name;
      if (isReachable(target) && isReachable(source))
        return note("memcpyAsync", what);
      // As with memory that may be paged out.
      finish(at(stream));
      reach(at(stream).time);
      return noteBlocking("memcpyAsync", what);
    };
    api.deviceGetStreamPriorityRange = [](int *least, int *greatest) {
      *least = 0;
      *greatest = -5;
      return cudaSuccess;
    };
    api.streamCreateWithPriority = [this](cudaStream_t *stream, unsigned flags,
                                          int priority) {
      static const char *const kinds[] = {"compute", "gather", "reduce",
                                          "all_reduce", "copy"};
      std::lock_guard lock(mutex);
      streams.push_back({std::string(1, self) + "." +
                             kinds[made[self].streams++ % std::size(kinds)],
                         random()});
      *stream = reinterpret_cast<cudaStream_t>(&streams.back());
      return note("streamCreate", streams.back().name + " flags " +
                                      std::to_string(flags) + " priority " +
                                      std::to_string(priority));
    };
    api.streamDestroy = [this](cudaStream_t stream) {
      std::lock_guard lock(mutex);
      if (!at(stream).queue.empty())
        std::abort();
      streams.remove_if(
          [&](const Stream &each) { return &each == &at(stream); });
      return cudaSuccess;
    };
    api.streamSynchronize = [this](cudaStream_t stream) {
      std::lock_guard lock(mutex);
      finish(at(stream));
      reach(at(stream).time);
      return noteBlocking("streamSynchronize", at(stream).name);
    };
    api.streamQuery = [this](cudaStream_t stream) {
      std::lock_guard lock(mutex);
      while (!at(stream).queue.empty())
        if (!step())
          return cudaErrorNotReady;
      reach(at(stream).time);
      return note("streamQuery", at(stream).name);
    };
    api.streamWaitEvent = [this](cudaStream_t stream, cudaEvent_t event,
                                 unsigned) {
      std::lock_guard lock(mutex);
      queue(stream, [waited = events.at(event), goal = at(event).recorded,
                     &waiting = at(stream)] {
        if (waited->completed < goal)
          return false;
        waiting.time = std::max(waiting.time, waited->time);
        return true;
      });
      return note("streamWaitEvent", at(event).name + " by " + at(stream).name);
    };
    api.eventCreateWithFlags = [this](cudaEvent_t *event, unsigned flags) {
      std::lock_guard lock(mutex);
      auto one = std::make_shared<Event>(own("e", made[self].events++), flags);
      *event = reinterpret_cast<cudaEvent_t>(one.get());
      events[*event] = one;
      return note("eventCreate", one->name + " flags " + std::to_string(flags));
    };
    api.eventDestroy = [this](cudaEvent_t event) {
      std::lock_guard lock(mutex);
      events.erase(event);
      return cudaSuccess;
    };
    api.eventRecord = [this](cudaEvent_t event, cudaStream_t stream) {
      std::lock_guard lock(mutex);
      // Whoever destroys it need not wait for the stream.
      std::shared_ptr<Event> recorded = events.at(event);
      push(stream, [recorded, number = ++recorded->recorded, &on = at(stream)] {
        recorded->completed = number;
        recorded->time = on.time;
      });
      return note("eventRecord", recorded->name + " on " + at(stream).name);
    };
    api.eventQuery = [this](cudaEvent_t event) {
      std::lock_guard lock(mutex);
      std::shared_ptr<Event> asked = events.at(event);
      while (asked->completed < asked->recorded)
        if (!step())
          return cudaErrorNotReady;
      reach(asked->time);
      return note("eventQuery", asked->name);
    };
    api.eventSynchronize = [this](cudaEvent_t event) {
      std::lock_guard lock(mutex);
      std::shared_ptr<Event> asked = events.at(event);
      while (asked->completed < asked->recorded)
        if (!step())
          throw std::logic_error("the event never comes");
      reach(asked->time);
      return noteBlocking("eventSynchronize", asked->name);
    };
    api.eventElapsedTime = [this](float *milliseconds, cudaEvent_t begin,
                                  cudaEvent_t end) {
      std::lock_guard lock(mutex);
      for (const Event *event : {&at(begin), &at(end)}) {
        if (!event->measures || event->recorded == 0)
          return cudaErrorInvalidResourceHandle;
        if (event->completed < event->recorded)
          return cudaErrorNotReady;
      }
      *milliseconds = static_cast<float>((at(end).time - at(begin).time) / 1e3);
      return note("eventElapsedTime",
                  at(end).name + " since " + at(begin).name);
    };
    api.getErrorString = [](cudaError_t error) {
      return error == cudaErrorMemoryAllocation ? "out of memory"
                                                : "it is broken";
    };
    api.currentStream = [] { return current; };
    api.restoreStream = [this](CudaApi::CurrentStream before) {
      std::lock_guard lock(mutex);
      current = before;
      note("useStream", at(before.stream).name);
    };
    api.useStream = [this](cudaStream_t stream) {
      std::lock_guard lock(mutex);
      current = {stream, -1};
      note("useStream", at(stream).name);
    };
    api.warmUp = [this] { ++warmUps; };
    api.sum = [this](const Sum &sum, cudaStream_t stream) {
      std::lock_guard lock(mutex);
      std::vector<const std::byte *> sources(sum.sources.begin(),
                                             sum.sources.end());
      push(stream, [sum, sources] {
        reduce(sum.reduction, sources, sum.begin, sum.target, sum.count);
      });
      note("sum", nameOf(sum.target) + " x " + std::to_string(sum.count) +
                      " of " + std::to_string(sources.size()) + " from " +
                      std::to_string(sum.begin) + " on " + at(stream).name);
    };
  }

  struct Made {
    unsigned streams = 0, events = 0, blocks = 0;
  };

  static inline thread_local char self = '?';
  static inline thread_local int gpu = 0;
  static inline thread_local CudaApi::CurrentStream current;
  mutable std::mutex mutex;
  std::minstd_rand random;
  bool isEager;
  std::list<Stream> streams;
  Stream callers{"default", 0};
  std::map<cudaEvent_t, std::shared_ptr<Event>> events;
  std::map<const std::byte *, Block> blocks;
  std::map<const std::byte *, std::size_t> pinned;
  std::map<char, Log> logs, blocking;
  std::map<char, Made> made;
  std::map<char, double> hosts; ///< Their clocks.
};

} // namespace fsdp

#endif // FSDP_TEST_UNIT_RUNTIME_FAKECUDA_H
