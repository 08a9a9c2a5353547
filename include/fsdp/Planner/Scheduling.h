//===- Scheduling.h - When each operation of a step runs --------*- C++ -*-===//
//
// The order in which the operations of a step are issued, and the time at which
// each of them runs. Plain integers in, plain integers out: times in
// nanoseconds, memory in bytes, operations by their place in program order.
//
// The machine: the operations of a stream run one after the other, in the order
// of issue, and each of them when what it depends on has ended. The host issues
// them far ahead of time. An operation that is queued (not of the compute
// stream) also waits for the computations that are issued before it, unless it
// runs ahead of them. Where all streams share a core, each operation runs on
// the spot, whatever its stream.
//
// While a collective runs, computations may be slower; and where collectives
// that run at once take more of a link than there is, each of them that goes
// over it is slower by that. What an operation takes is then at least its
// duration, in whole nanoseconds: one that ends within a nanosecond leaves the
// rest of it to the computation that follows at once.
//
// Memory is a function of the order alone, not of times: a buffer is taken at
// one place of the order and given back at another.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_SCHEDULING_H
#define FSDP_PLANNER_SCHEDULING_H

#include "fsdp/Planner/CollectiveCost.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace fsdp::planner::scheduling {

constexpr uint32_t computeStream = 0;
/// From here to `copyStream`, which is between host and device and slows
/// nothing, are collectives.
constexpr uint32_t firstCollectiveStream = 1;
constexpr uint32_t copyStream = 4;
constexpr uint32_t none = std::numeric_limits<uint32_t>::max();
constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

struct Operation {
  int64_t duration = 0; ///< Nanoseconds.
  uint32_t stream = computeStream;
  /// Operations of one sequence are issued in program order: collectives on
  /// whose order all ranks must agree, or computations that are not to move.
  uint32_t sequence = none;
  /// What must have ended before this starts; earlier in program order.
  std::vector<uint32_t> after;
  /// Of what is queued: it does not wait for the computations before it.
  bool runsAhead = false;
  LinkUse links = {}; ///< Of a collective.
};

/// Memory from one place in the order, that of an operation, to another (or the
/// same): both operations have it.
struct Buffer {
  int64_t bytes;
  uint32_t from;
  uint32_t until;
};

struct Problem {
  std::vector<Operation> operations; ///< In program order.
  uint32_t numStreams = 1;
  bool sharesCore = false; ///< All streams take turns on one core.
  /// While a collective runs, a computation that takes 1024 takes 1024 +
  /// contention.
  int64_t contention = 0;
  std::vector<Buffer> buffers;
  int64_t memoryLimit = unlimited;
};

struct Schedule {
  std::vector<uint32_t> order;     ///< Operations, as they are issued.
  std::vector<int64_t> start, end; ///< By operation.
};

/// The most memory that is alive at once, where, and what it consists of.
struct Peak {
  int64_t bytes = 0;
  uint32_t operation = none;     ///< At whose issue it is reached first.
  std::vector<uint32_t> buffers; ///< Alive then, largest first.
};

enum class Algorithm {
  Program, ///< Program order.
  List,    ///< List scheduling by critical path; never slower than `Program`.
};

struct Answer {
  bool isFeasible = false;
  Schedule schedule; ///< If feasible.
  /// Of the schedule. If there is none: of the order that needs least, so that
  /// its bytes are the smallest limit that the algorithm can meet.
  Peak peak;
};

/// What a schedule comes to.
struct Timeline {
  int64_t makespan = 0;  ///< The end of the last operation.
  int64_t peakBytes = 0; ///< See `findPeak`.
  struct Stream {
    int64_t busy = 0;
    int64_t idle = 0; ///< Rest of the makespan.
  };
  std::vector<Stream> streams;
  /// By operation: how long the compute stream stood still for it. Of what
  /// computations and the end of the step wait for, the last is to blame; on a
  /// core that is shared, all that is not a computation.
  std::vector<int64_t> exposed;
  int64_t exposedTotal = 0; ///< Of all: what the compute stream is idle.
  int64_t slowed = 0; ///< How much longer computations take for contention.
};

/// What is wrong with a problem, in one sentence; empty if nothing is.
std::string check(const Problem &problem);

/// What is wrong with a schedule of a problem that is right; empty if nothing
/// is: dependences, sequences, one operation per stream at a time and in the
/// order of issue, and memory.
std::string verify(const Problem &problem, const Schedule &schedule);

/// Solves a problem that `check` accepts. n log n in operations, dependences
/// and buffers.
Answer solve(const Problem &problem, Algorithm algorithm);

/// The memory of an order (see `Answer::peak`); a limit is not looked at.
Peak findPeak(const Problem &problem, const std::vector<uint32_t> &order);

/// The times of an order that keeps all dependences and sequences: everything
/// as early as the machine can.
Schedule simulate(const Problem &problem, const std::vector<uint32_t> &order);

/// What a schedule that `verify` accepts comes to.
Timeline measure(const Problem &problem, const Schedule &schedule);

} // namespace fsdp::planner::scheduling

#endif // FSDP_PLANNER_SCHEDULING_H
