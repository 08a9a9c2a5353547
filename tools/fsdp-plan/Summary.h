//===- Summary.h - What there is to know about a plan -----------*- C++ -*-===//
//
// What people want to know before they run a plan: its units, what each rank
// sends per step, where the memory goes and what is alive at the peak. Made
// from the plan file alone, so that it says what will run.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_TOOLS_FSDP_PLAN_SUMMARY_H
#define FSDP_TOOLS_FSDP_PLAN_SUMMARY_H

#include "fsdp/Planner/Explanation.h"
#include "fsdp/Planner/Scheduling.h"
#include "fsdp/Schema/plan_generated.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

/// Bytes and counts are per rank and per step.
struct PlanSummary {
  struct Unit {
    std::string name;
    uint64_t parameters = 0, frozen = 0;
    uint64_t elements = 0, shardBytes = 0;
    unsigned gathers = 0, reductions = 0;
  };
  struct Traffic {
    std::string kind, communicator;
    unsigned calls = 0;
    uint64_t bytes = 0; ///< Received by one rank over a ring or from its peers.
  };
  struct Alive {
    std::string what;
    uint64_t bytes = 0;
    unsigned buffers = 0;
    /// Of transient memory: "activations", and the module, the unit, or the
    /// operator outside of modules.
    std::string kind, place;
  };

  /// What is done by a program, or by all of a step.
  struct Work {
    std::vector<Traffic> traffic;
    /// Copies from host to device, and from device to host.
    std::array<Traffic, 2> hostCopies = {
        {{"copy", "to device", 0, 0}, {"copy", "to host", 0, 0}}};
    unsigned launches = 0, copies = 0;

    void add(const Work &other, unsigned times);
  };
  /// A call of a collective, or a copy between host and device.
  struct Transfer {
    std::string kind;               ///< "all_gather", ..., "copy".
    std::vector<std::string> units; ///< Of a bucket several.
    std::string phase;              ///< "forward", ..., "update".
    int64_t nanoseconds = 0;
    int64_t exposed = 0; ///< How long the compute stream stands still for it.
  };
  /// What a program takes, by the costs of its schedule.
  struct Prediction {
    int64_t nanoseconds = 0; ///< 0: there are no costs.
    int64_t exposed = 0;     ///< How long the compute stream stands still.
    int64_t slowed = 0; ///< How much longer computations take beside others.
    /// Multiplications and additions of products, convolutions and attention,
    /// without what is computed again; and how long they take at the peak of
    /// the machine, in nanoseconds, infinite if nobody knows that.
    double flops = 0, atPeak = 0;
    std::vector<Transfer> transfers; ///< In the order of issue.
    /// What was simulated, in program order.
    std::shared_ptr<const planner::scheduling::Problem> problem;
  };
  struct Program {
    std::string name;
    unsigned runs = 0; ///< In a step; 0 if it is of none.
    Work work;
    uint64_t lowerBound = 0; ///< As that of the summary.
    Prediction predicted;    ///< Not from the plan.
  };

  /// What a short search comes to with each value of an option that it decides,
  /// too. With one that does not fit, a time of 0 and the least memory that is
  /// known; with one that was not searched, only the bound that says that
  /// another is faster.
  struct Tried {
    struct Point {
      std::string name;
      planner::Outcome outcome;
      int64_t bound = 0; ///< Nanoseconds; 0 where it was searched.
    };
    std::vector<Point> points;
    std::string taken; ///< The name of a point.
  };

  /// What the step takes if its computations vary from rank to rank, each by up
  /// to this part of it.
  struct Jitter {
    double spread = 0;
    uint32_t ranks = 0; ///< That were simulated.
    int64_t nanoseconds = 0;
  };

  /// Options that were decided by trying them.
  struct Choices {
    Tried meshes, axes, reshards, offloads, chunks;
    std::string unit; ///< The rules of --unit, if these axes were decided.
  };

  /// Decisions that were searched or read, and what they stand beside.
  struct Search {
    planner::SearchAnswer answer;
    planner::Explanation explanation;
    int64_t budget; ///< That they keep to: of values, in bytes.
    std::vector<std::string>
        resident; ///< Units, from the first micro-batch on.
    Choices choices;
    std::vector<Jitter> jitter;
  };

  std::string device, strategy;
  uint64_t ranks = 1;
  std::vector<std::pair<std::string, uint64_t>> mesh;
  std::vector<Unit> units;
  /// All but init. A step runs some, in their order.
  std::vector<Program> programs;
  /// The sum of these, with the most of their memory. It has no transfers.
  Program getStep() const;
  std::vector<Alive> persistent; ///< By role.
  std::vector<Alive> offloaded;  ///< In host memory, by role.
  uint64_t persistentBytes = 0, arenaBytes = 0;
  uint64_t hostBytes = 0, pinnedBytes = 0; ///< All, and those that are pinned.
  /// Persistent region plus most transient bytes alive at once in a program.
  uint64_t lowerBound = 0;
  /// The same without alignment.
  uint64_t valueBytes = 0;
  /// What is alive at the peak of the scheduled level: values alone. Not from
  /// the plan; 0 if nobody knows.
  uint64_t scheduledBytes = 0;
  /// Memory that a rank of the machine has. Not from the plan; 0 if that is not
  /// known.
  uint64_t capacity = 0;
  std::string hardware; ///< A file that nobody named. Not from the plan.
  uint64_t budget = 0; ///< Of the arena. Not from the plan; 0 if there is none.
  std::optional<Search> search; ///< Not from the plan.
  std::string peakAt;           ///< Node and role of the command at the peak.
  std::vector<Alive> alive;  ///< Transient memory at the peak, largest first.
  unsigned initLaunches = 0; ///< Once, when the plan is loaded.
  /// Operators of the schedule; 0 if unknown.
  unsigned recomputed = 0;
  std::vector<std::pair<std::string, unsigned>> hooked, foreign,
      untrusted; ///< Operator names and calls, in all programs.
  std::vector<std::string> notes;
  std::string unproved; // why; empty if the plan was proved
};

/// `plan` has passed the checks of the plan file.
PlanSummary summarize(const planfile::Plan &plan);

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_PLAN_SUMMARY_H
