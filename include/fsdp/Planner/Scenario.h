//===- Scenario.h - Machines that are not as predicted ----------*- C++ -*-===//

#ifndef FSDP_PLANNER_SCENARIO_H
#define FSDP_PLANNER_SCENARIO_H

#include <optional>
#include <string>
#include <vector>

namespace fsdp::planner {

/// The same step on a machine that is slower or faster than predicted. Memory
/// is that of the prediction: no time decides about it.
struct Scenario {
  std::string name; ///< "a network of 20 % less bandwidth"; none: as predicted.
  double network = 1; ///< Factor of transfers, and not of latencies.
  double compute = 1; ///< Factor of computations.
  /// In place of that of the prediction: 1024 takes so much more beside a
  /// collective (`StepModel::contention`).
  std::optional<int64_t> contention = std::nullopt;
};

/// What a robust search judges by: the prediction, and machines that are
/// slower.
const std::vector<Scenario> &getRobustScenarios();

/// On which nothing that is known should be faster than what a robust search
/// finds: 20 % less and more bandwidth, and a contention of 0.05 and 0.40.
const std::vector<Scenario> &getOtherScenarios();

/// Where what is launched early still pays that is idle as predicted: no answer
/// is trimmed of it.
const Scenario &getHalfNetwork();

} // namespace fsdp::planner

#endif // FSDP_PLANNER_SCENARIO_H
