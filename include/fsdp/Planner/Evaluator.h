//===- Evaluator.h - What decisions come to ---------------------*- C++ -*-===//
//
// Time and memory of a step under decisions, without touching a program.
//
// Time is that of the machine of Scheduling.h: streams run in the order of
// issue, a launch starts when the computations before its place are done, and
// the compute stream waits where it reads. Beside that, here computations may
// be slower while collectives run, and collectives may share a link.
//
// Memory is a function of places alone. At each place between two computations,
// in this order: gathered units end after their last use, the compute stream
// waits for reductions (what they read ends), launches take memory, the compute
// stream waits for gathers (what they sent ends).
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_EVALUATOR_H
#define FSDP_PLANNER_EVALUATOR_H

#include "fsdp/Planner/Decisions.h"
#include "fsdp/Planner/Scenario.h"

#include <limits>
#include <memory>

namespace fsdp::planner {

struct Outcome {
  int64_t time = 0;      ///< Nanoseconds; in the first scenario.
  int64_t peakBytes = 0; ///< With what is persistent.
  /// Of all scenarios, if it keeps to the budget and to the most time that was
  /// given; else the same as the time.
  int64_t meanTime = 0;
};

/// Evaluates one program again and again; allocates while it warms up.
class Evaluator {
public:
  /// Both must outlive it; `check` accepts the model. At least one scenario.
  Evaluator(const StepModel &model, size_t program,
            const std::vector<Scenario> &scenarios = {Scenario()});
  ~Evaluator();

  Outcome evaluate(const ProgramDecisions &decisions,
                   const std::vector<uint8_t> &resident);

  /// Nanoseconds in each scenario; none if it exceeds the budget, or the most
  /// that is given for a scenario.
  std::vector<int64_t> findTimes(const ProgramDecisions &decisions,
                                 const std::vector<uint8_t> &resident,
                                 const std::vector<int64_t> &most = {});

  /// Takes `ahead` and `wait` as upper limits and lowers them to what fits into
  /// the model's budget, waits first, each in the order of issue. Where even
  /// zeros do not fit, the peak is that of these, and there is no time.
  Outcome fit(ProgramDecisions &decisions, const std::vector<uint8_t> &resident,
              int64_t mostTime = std::numeric_limits<int64_t>::max());

  /// Computations and collectives of the last evaluation.
  size_t getNumEvents() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// The sum of the times of all programs, and the largest of their peaks.
Outcome evaluate(const StepModel &model, const Decisions &decisions,
                 const std::vector<Scenario> &scenarios = {Scenario()});

} // namespace fsdp::planner

#endif // FSDP_PLANNER_EVALUATOR_H
