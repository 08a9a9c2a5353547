//===- StepModel.h - What of a step is not decided --------------*- C++ -*-===//
//
// A training step before any decision about it: the computations in their
// order, the units whose weights they read and whose gradients they make, the
// modules that may be recomputed, and what all of it costs. Plain integers:
// times of computations in nanoseconds, of collectives in picoseconds (so that
// sums of parts round once), memory in bytes.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_STEPMODEL_H
#define FSDP_PLANNER_STEPMODEL_H

#include "fsdp/Planner/CollectiveCost.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::planner {

constexpr uint32_t nobody = std::numeric_limits<uint32_t>::max();

enum class Phase : uint8_t { Forward, Backward };
constexpr size_t numPhases = 2;

/// What of a module the backward computes again: all of it, or what is cheap,
/// such as elementwise operators of which the operands are kept.
enum class Recompute : uint8_t { None, All, Cheap };
constexpr size_t numRecomputes = 3;
/// Its bit in a set of them.
constexpr uint8_t getBit(Recompute recompute) {
  return uint8_t(1u << size_t(recompute));
}

/// Weights that are gathered, and gradients that are reduced, at once.
struct Unit {
  std::string name;
  uint32_t module = nobody;   ///< That it is a part of; `nobody`: the root.
  bool staysGathered = false; ///< To the backward, whatever is decided.
  /// What it takes in all programs if it stays gathered from the first
  /// micro-batch of a step to the last; 0: it may not.
  int64_t residentBytes = 0;
};

/// Three of collectives, and that of copies between host and device.
enum class Stream : uint8_t { Gather, Reduce, AllReduce, Copy };
constexpr size_t numStreams = 4;
constexpr size_t numCollectiveStreams = 3;

/// A piece of a unit that each rank of a small group may keep after the
/// forward.
struct Piece {
  int64_t bytes = 0; ///< 0: none may be kept.
  /// Nanoseconds on the compute stream, where the forward is done with the
  /// unit.
  int64_t copy = 0;
  CollectiveCost gather; ///< Of the backward then.
  uint32_t group = 0;    ///< Of ranks.
};

/// What a program gathers and reduces of a unit. Bytes, and what each call for
/// it adds.
struct Traffic {
  int64_t gatheredBytes = 0;
  int64_t sentBytes = 0; ///< What a gather sends, if cast: until its wait.
  /// Flat, from the first part of it to the wait for its reduction; to the
  /// launch, if that casts or copies it.
  int64_t gradientBytes = 0;
  /// What its reduction holds beside it, from the launch on: by the stream on
  /// which something has to be done before it ends.
  std::array<int64_t, numStreams> heldBytes = {};
  bool isCast = false;
  int64_t reducedBytes = 0; ///< From the reduction to the end of the program.
  int64_t resultBytes = 0;  ///< From the reduction to the last that reads it.
  Piece piece;
  CollectiveCost gather, reduction;
  CollectiveCost allReduce; ///< Of what is reduced, over replicas.
  bool isReduced = true;    ///< False: there is only the all-reduce.
  bool isAllReduced = false;
  /// Of what lies in host memory, nanoseconds: the copy of the shard that a
  /// gather takes, and that of what is reduced. None: it lies on the device.
  std::optional<int64_t> copyIn, copyOut;
  /// The groups of ranks of these, as numbers (see `StepModel::overlaps`).
  uint32_t gatherGroup = 0, reduceGroup = 0, allReduceGroup = 0;

  int64_t getHeldBytes() const {
    return std::accumulate(heldBytes.begin(), heldBytes.end(), int64_t());
  }
};

/// A collective or copy about which nothing is decided, such as that of the
/// loss.
struct FixedCall {
  Stream stream = Stream::AllReduce;
  int64_t duration = 0;
  uint32_t group = 0; ///< Of a collective.
};

/// One computation, or several with nothing between them.
struct ComputeOp {
  int64_t duration = 0;
  /// Positive: bytes that stay, from here on. Negative: bytes that end with it.
  int64_t change = 0;
  int64_t transient = 0; ///< Bytes beside these, while it runs.
  Phase phase = Phase::Forward;
  /// It computes again what the backward reads of this module, and is there
  /// only if so much of that is recomputed.
  uint32_t onlyIf = nobody;
  Recompute recompute = Recompute::All;
  uint32_t weights = nobody;  ///< The unit that it reads.
  uint32_t gradient = nobody; ///< The unit of whose gradient it makes a part.
  uint32_t update = nobody;   ///< The unit whose reduced gradient it reads.
  uint32_t launches = nobody; ///< The fixed call that is launched here.
  uint32_t awaits = nobody;   ///< The fixed call that is waited for here.
};

/// The same computation again, in the backward, if so much of a module is
/// recomputed.
inline ComputeOp repeat(ComputeOp op, uint32_t module, Recompute recompute) {
  op.phase = Phase::Backward;
  op.onlyIf = module;
  op.recompute = recompute;
  return op;
}

/// Whether a computation is there if so much of each module is recomputed.
inline bool isThere(const ComputeOp &op,
                    const std::vector<Recompute> &recompute) {
  return op.onlyIf == nobody || recompute[op.onlyIf] == op.recompute;
}

/// Memory whose end depends on what is recomputed. There is none of it if what
/// makes it is not there.
struct Life {
  /// A computation that reads it only if some of a module is recomputed.
  struct Read {
    uint32_t module;
    uint8_t ifs; ///< A bit for each Recompute with which it does.
    uint32_t op;

    bool isWith(Recompute recompute) const { return ifs & getBit(recompute); }
  };

  int64_t bytes = 0;
  uint32_t begin = 0; ///< The computation that makes it.
  uint32_t end = 0;   ///< The last one that reads it in any case.
  std::vector<Read> reads;
};

/// One program of a step. Units may stay gathered between micro-batches: the
/// first gathers them, and no other does.
struct Program {
  enum class Role : uint8_t { Whole, First, Middle, Last };

  std::string name;
  Role role = Role::Whole;
  int64_t count = 1; ///< How often a step runs it.
  std::vector<ComputeOp> ops;
  std::vector<Life> lives;
  std::vector<Traffic> traffic; ///< By unit.
  std::vector<FixedCall> calls; ///< In the order of their launches.
  /// The modules that may be recomputed, in the order of their forwards; and
  /// those of them of which what is cheap may be, alone.
  std::vector<uint32_t> recomputable, cheap;
};

struct StepModel {
  std::vector<Unit> units;
  std::vector<std::string> modules;
  std::vector<Program> programs;
  int64_t persistentBytes = 0;
  int64_t budget = std::numeric_limits<int64_t>::max(); ///< With these.
  /// While a collective runs, what takes 1024 takes 1024 + contention.
  int64_t contention = 0;
  bool sharesCore = false; ///< All streams take turns on one core.
  /// By group of ranks and stream: what its collectives take of links. Empty:
  /// none share any.
  std::vector<std::array<LinkUse, numCollectiveStreams>> links;
  /// By two groups of ranks: true if they have several ranks in common, but are
  /// not the same. Their collectives take turns. Empty: none do.
  std::vector<std::vector<uint8_t>> overlaps;

  LinkUse getLinks(Stream stream, uint32_t group) const {
    return links.empty() ? LinkUse() : links[group][size_t(stream)];
  }
};

/// Joins computations between which nothing can be decided; no decisions come
/// to anything else then. `sizes`: how many of something each of them stands
/// for; they are added up.
void compact(Program &program, std::vector<uint32_t> &sizes);

/// True if pieces may be kept of some unit.
bool mayKeepPieces(const StepModel &model);

/// What is wrong with a model, in one sentence; empty if nothing is.
std::string check(const StepModel &model);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_STEPMODEL_H
