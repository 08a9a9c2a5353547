//===- Baselines.h - What others decide -------------------------*- C++ -*-===//
//
// Known policies as points of the same variables that a search decides, so that
// an answer can be compared with them, and starts from them.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_BASELINES_H
#define FSDP_PLANNER_BASELINES_H

#include "fsdp/Planner/Decisions.h"

namespace fsdp::planner {

enum class Policy {
  /// Each collective is waited for where it is launched. FSDP without prefetch
  /// and without a second stream.
  NoOverlap,
  /// FSDP1: BACKWARD_PRE and limit_all_gathers. A gather starts when all but
  /// one unit are resharded (torch/distributed/fsdp/_runtime_utils.py,
  /// _unshard; _limiter_utils.py, two in flight).
  Fsdp1,
  /// FSDP2: in the forward the host runs ahead, and a gather waits for the
  /// copy-out of the one but last; in the backward, of the last
  /// (_fully_shard/_fsdp_param_group.py, wait_for_unshard). Without its copies.
  Fsdp2,
  /// torchtitan's GraphTrainer: the gather of block i + 1 at the start of block
  /// i in both directions.
  ManualBlock,
};
constexpr Policy allPolicies[] = {Policy::NoOverlap, Policy::Fsdp1,
                                  Policy::Fsdp2, Policy::ManualBlock};

const char *getName(Policy policy);

/// One call for all units of a module; units of the root stay gathered. The
/// backward waits for a reduction in front of the next one. Modules are all
/// recomputed or none, and so kept.
Decisions makeBaseline(const StepModel &model, Policy policy, bool keep,
                       bool recompute);

/// Sets the places of launches and waits by a policy, for calls that are
/// decided.
void applyPolicy(const StepModel &model, size_t program, Policy policy,
                 ProgramDecisions &decisions,
                 const std::vector<uint8_t> &resident);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_BASELINES_H
