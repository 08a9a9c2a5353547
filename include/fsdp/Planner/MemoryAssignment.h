//===- MemoryAssignment.h - Offsets for intervals of time -------*- C++ -*-===//
//
// Packs buffers with known lifetimes into one arena: the offline problem of
// dynamic storage allocation. Plain integers in, plain integers out. Times are
// positions in a list of commands, sizes and offsets are bytes.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_PLANNER_MEMORYASSIGNMENT_H
#define FSDP_PLANNER_MEMORYASSIGNMENT_H

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fsdp::planner {

/// A buffer of `bytes` that is alive at every time of [begin, end].
struct Lifetime {
  int64_t bytes;
  int64_t begin;
  int64_t end;
};

/// What a command does for others: it is work, records an event after the work
/// of its stream before it, or lets its stream wait for an event.
enum class CommandKind { Work, Record, Wait };

/// A command of a program, in the order of issue. Stream 0 computes.
struct Command {
  uint32_t stream = 0;
  /// Programs also run without the commands of the higher roles.
  uint32_t role = 0;
  CommandKind kind = CommandKind::Work;
  uint32_t event = 0; ///< Of what records or waits.
  /// Neighbours of one group start together, and are done together; 0: none.
  uint64_t group = 0;
  std::vector<uint32_t> buffers; ///< That it touches.
};

/// For each buffer the places [begin, end] in the list of commands between
/// which it is touched, whatever the timing of streams: by the compute stream,
/// at the place of the command; by another one, from where the last command of
/// the compute stream is done that it waits for, to where the compute stream
/// knows that it is done. So what begins after another has ended comes after
/// it, by events that are there. {0, -1} where nothing touches a buffer.
std::vector<Lifetime> findLives(const std::vector<Command> &commands,
                                std::size_t numBuffers, uint32_t numStreams);

struct MemoryPlan {
  std::vector<int64_t>
      offsets;      ///< One per lifetime, multiples of the alignment.
  int64_t peak = 0; ///< Bytes of the arena.
  int64_t lowerBound =
      0; ///< Most bytes alive at once, sizes rounded up to the alignment.
  int64_t peakTime = 0; ///< First time at which the lower bound is attained.
};

/// The lower bound alone: the bytes, and the first time that they are alive.
std::pair<int64_t, int64_t>
mostBytesAlive(const std::vector<Lifetime> &lifetimes, int64_t alignment);

/// Buffers that are alive at a common time never share a byte. Largest first,
/// each into the gap that it fills best, the lowest of equals; where that is
/// more than a thousandth above the bound, large ones from one end and others
/// from the other (lib/Planner/BothEnds.h), and of few buffers other orders.
/// The answer is deterministic. Times should be dense: memory is used per unit
/// of time.
MemoryPlan assignMemory(const std::vector<Lifetime> &lifetimes,
                        int64_t alignment);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_MEMORYASSIGNMENT_H
