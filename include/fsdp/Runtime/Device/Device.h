//===- Device.h - What the executor needs of a device -----------*- C++ -*-===//
//
// A `Device` is one rank's share of a device: its memory, streams and events.
// It is used by the rank's threads: one, or on the CPU two. Sizes and offsets
// are in bytes. All work is ordered by streams: a call returns when the work is
// enqueued, which on the CPU (one stream, inline) means done. Failures are
// thrown as `fsdp::Error`. The header needs no symbol of the runtime's
// library, so that an implementation can live in a library of its own.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_DEVICE_DEVICE_H
#define FSDP_RUNTIME_DEVICE_DEVICE_H

#include "fsdp/Schema/plan_generated.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fsdp {

/// The allocations of one operator call. Operators without an `out=` kernel
/// allocate their results; a script recorded at load tells which allocation
/// becomes which result, and hands out the planned place when it is replayed.
struct AllocationScript {
  struct Entry {
    std::size_t bytes = 0;
    /// Recorded address; then the planned one, or null: from the heap.
    void *place = nullptr;
    bool released = false; ///< Recorded: freed again before the call's end.
    bool isResult = false;
  };
  std::vector<Entry> entries;
  std::size_t next = 0;
  bool recording = false;
  /// Recording: the bytes of the largest allocation. Some kernels take as much
  /// as a number of the plan says, and a plan is untrusted.
  std::size_t most = SIZE_MAX;

  /// Recording: an allocation is about to be made. Throws what PyTorch throws
  /// where there is no memory, which some kernels catch to try with less.
  void ask(std::size_t bytes) const {
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= most, "asks for ", bytes,
                     " bytes while it runs; with such arguments and results it "
                     "may have ",
                     most);
  }

  /// The place of the next allocation of this size, or null: from the heap.
  /// What was allocated once, for a cache, is passed over.
  void *take(std::size_t bytes) {
    for (std::size_t e = next; e != entries.size(); ++e)
      if (entries[e].bytes == bytes) {
        next = e + 1;
        return entries[e].place;
      }
    return nullptr;
  }

  /// Recording: the latest allocation at this address is freed. Addresses come
  /// back within a call.
  void noteRelease(const void *place) {
    for (std::size_t e = entries.size(); e-- > 0;)
      if (entries[e].place == place && !entries[e].released) {
        entries[e].released = true;
        return;
      }
  }
};

/// What the allocator of a device saw on the rank's thread.
struct AllocationCounts {
  std::uint64_t planned = 0; ///< Handed out by a script.
  std::uint64_t heap = 0;    ///< Everything else.
  std::uint64_t heapBytes = 0;
};

class Device {
public:
  virtual ~Device() = default;

  /// The device of the tensors in Space::Device.
  virtual c10::Device torchDevice() const = 0;

  /// Makes the calling thread the rank's for the calls that follow, with the
  /// compute stream selected, and the way back.
  virtual void enter() = 0;
  virtual void leave() = 0;

  /// On a thread that has entered, which had a stream of its own before: the
  /// compute stream goes on after that one, and that one after the compute
  /// stream. The host does not wait.
  virtual void awaitCaller() {}
  virtual void letCallerAwait() {}

  /// Bytes of the device; nothing if they are those of this process's machine.
  struct Room {
    std::uint64_t free, total;
  };
  virtual std::optional<Room> room() const { return std::nullopt; }

  /// A zero-filled block aligned to at least 4096 bytes, freed with the device.
  virtual std::byte *allocate(planfile::Space space, std::size_t bytes) = 0;

  /// Copies between the device and this memory of the host do not go through
  /// other memory, as long as the device lives. The memory outlives it.
  virtual void pin(std::span<std::byte> memory) = 0;

  /// Operators launched from now on go to `stream`.
  virtual void select(planfile::Stream stream) = 0;

  /// Either end may be host memory. Blocking where one end is unpinned.
  virtual void copy(planfile::Stream stream, void *target, const void *source,
                    std::size_t bytes) = 0;
  virtual void fill(planfile::Stream stream, void *target, unsigned char value,
                    std::size_t bytes) = 0;

  /// Events are numbered per program; `programEvents` announces how many.
  virtual void programEvents(unsigned program, unsigned count) = 0;
  virtual void record(planfile::Stream stream, unsigned program,
                      unsigned event) = 0;
  virtual void wait(planfile::Stream stream, unsigned program,
                    unsigned event) = 0;

  /// Returns when all work of this rank is done.
  virtual void synchronize() = 0;

  /// `endRun` returns before the run is done: nobody but the rank reads its
  /// memory, and what it has computed is waited for when it is read.
  virtual bool runsAhead() const { return false; }
  /// Around each run, whose streams begin where the compute stream is; after it
  /// the compute stream goes on when all of them have ended.
  virtual void beginRun() {}
  virtual void endRun() { synchronize(); }

  /// Marks a place in the stream's work: after what it has been given, before
  /// what comes next. The first mark of a run may wait for the device.
  virtual std::uint64_t mark(planfile::Stream) { return hostMark(); }
  /// When the stream passed a mark, in seconds of the steady clock; up to the
  /// next `beginRun`, and when all work is done.
  virtual double timeOf(std::uint64_t mark) const { return hostTime(mark); }

  /// The same of the host, which passes a mark when it sets it.
  static std::uint64_t hostMark() {
    return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  }
  static double hostTime(std::uint64_t mark) {
    return std::chrono::duration<double>(
               Clock::duration(static_cast<Clock::rep>(mark)))
        .count();
  }

  /// Copies bytes that may be changed at once to memory of the device, on the
  /// compute stream. One that runs ahead waits only for the last upload but one
  /// to this target; the first one allocates.
  virtual void upload(void *target, std::span<const std::byte> bytes) {
    copy(planfile::Stream::Compute, target, bytes.data(), bytes.size());
  }

  /// The thread's allocations on the device follow `script` (null: none).
  virtual void follow(AllocationScript *script) = 0;
  virtual AllocationCounts allocationCounts() const = 0;

private:
  using Clock = std::chrono::steady_clock;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_DEVICE_DEVICE_H
