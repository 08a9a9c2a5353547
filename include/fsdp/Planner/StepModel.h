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

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace fsdp::planner {

constexpr uint32_t nobody = std::numeric_limits<uint32_t>::max();

enum class Phase : uint8_t { Forward, Backward };
constexpr size_t numPhases = 2;

/// A call for several units takes the largest latency of theirs and the sum of
/// their transfers. Picoseconds.
struct CollectiveCost {
  int64_t latency = 0;
  int64_t transfer = 0;
};

/// Weights that are gathered, and gradients that are reduced, at once.
struct Unit {
  std::string name;
  uint32_t module = nobody; ///< That it is a part of; `nobody`: the root.
  int64_t gatheredBytes = 0;
  int64_t sentBytes = 0;     ///< What a gather sends, if cast: until its wait.
  int64_t gradientBytes = 0; ///< Flat, from the first part of it to the wait.
  int64_t reducedBytes = 0;  ///< From the reduction to the end of the program.
  CollectiveCost gather, reduction;
  CollectiveCost allReduce; ///< Of what is reduced, over replicas.
};

/// One computation, or several with nothing between them.
struct ComputeOp {
  int64_t duration = 0;
  /// Positive: bytes that stay for the backward, from here on. Negative: bytes
  /// that end with it.
  int64_t change = 0;
  int64_t transient = 0; ///< Bytes beside these, while it runs.
  Phase phase = Phase::Forward;
  uint32_t weights = nobody;  ///< The unit that it reads.
  uint32_t gradient = nobody; ///< The unit of whose gradient it makes a part.
  uint32_t update = nobody;   ///< The unit whose reduced gradient it reads.
};

/// A module in one program. If it is recomputed, what its forward computations
/// leave for the backward ends with each of them, but for `keptBytes`, from the
/// last of them to the last of its backward; and `replayed`, at least all that
/// leave something, run again in front of its backward.
struct RecomputeGroup {
  uint32_t module = 0;
  uint32_t forwardBegin = 0, forwardEnd = 0;   ///< Operations, [begin, end).
  uint32_t backwardBegin = 0, backwardEnd = 0; ///< Likewise.
  std::vector<uint32_t> replayed;              ///< Of the forward, ascending.
  int64_t keptBytes = 0;
};

/// One program of a step. Units may stay gathered between micro-batches: from
/// the first to the last of them.
struct Program {
  enum class Role : uint8_t { Whole, First, Middle, Last };

  std::string name;
  Role role = Role::Whole;
  int64_t count = 1; ///< How often a step runs it.
  std::vector<ComputeOp> ops;
  std::vector<RecomputeGroup> groups; ///< By the begin of their backward.
};

struct StepModel {
  std::vector<Unit> units;
  std::vector<std::string> modules;
  std::vector<Program> programs;
  int64_t persistentBytes = 0;
  int64_t budget = std::numeric_limits<int64_t>::max(); ///< With these.
  /// While a collective runs, what takes 1024 takes 1024 + contention.
  int64_t contention = 0;
  bool sharesLink = false; ///< Collectives that run at once share a link.
  bool sharesCore = false; ///< All streams take turns on one core.
};

/// What is wrong with a model, in one sentence; empty if nothing is.
std::string check(const StepModel &model);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_STEPMODEL_H
