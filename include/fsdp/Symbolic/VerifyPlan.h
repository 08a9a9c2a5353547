//===- VerifyPlan.h - Does a plan do what its model means? ------*- C++ -*-===//
//
// Translation validation: the programs of a plan are run over numbers instead
// of tensors, and what they leave is compared with what the plan says that its
// model means. It stands on the plan file alone, so the compiler runs it on
// what it writes and the runtime on what it loads.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_SYMBOLIC_VERIFYPLAN_H
#define FSDP_SYMBOLIC_VERIFYPLAN_H

#include "fsdp/PlanFile/PlanFile.h"

#include <string>
#include <utility>
#include <vector>

namespace fsdp::symbolic {

/// Whether a plan does what its model means.
struct Proof {
  enum Verdict {
    Proved,
    Refuted,     // it does something else
    CannotProve, // numbers can not follow what it does
  } verdict = Proved;
  /// `<where>: expected <x>, found <y>`; of what can not be proved, also who
  /// would need what. Empty if it is proved.
  std::string message = {};

  explicit operator bool() const { return verdict == Proved; }
};

/// Runs each program, from what `init` has left, with the roles Forward,
/// Forward and Backward, Update after these, and all:
///
/// * every read finds what was written last to its own buffer, all of it;
/// * what is written is ordered, by its stream or by events, after all that
///   touch the same bytes before it, and so is what is read;
/// * no command writes what it still reads, or a place twice;
/// * the loss, the reduced gradients, the updated parameters and states, and
///   the outputs have the numbers in `Program.meaning`, and the mesh, the
///   micro-batches of a step and the table of parameters those in
///   `Plan.meaning`.
///
/// What a plan does that has a program without a meaning can not be proved.
/// The plan must be checked. Takes time n log n in its commands.
Proof verifyPlan(const planfile::Plan &plan);

/// The number of "mesh" in `Plan.meaning`: what a mean over ranks is depends on
/// how many there are. Axes by name and size, outermost first.
uint64_t
getMeshNumber(const std::vector<std::pair<std::string, uint64_t>> &axes);

/// The number of "micro-batches" in `Plan.meaning`, of plans whose step has
/// several: a mean over them depends on how many there are.
uint64_t getMicroBatchesNumber(uint64_t count);

/// What the outside knows of a parameter: how its elements lie in a flat
/// parameter, in whose order they are loaded, and whether it is trained.
struct ParameterFacts {
  std::string name;
  std::vector<std::string> aliases;
  std::vector<int64_t> sizes, strides;
  bool isTrainable;
};
/// The number of "parameters" in `Plan.meaning`, in whatever order they are.
uint64_t getParametersNumber(std::vector<ParameterFacts> parameters);

} // namespace fsdp::symbolic

#endif // FSDP_SYMBOLIC_VERIFYPLAN_H
