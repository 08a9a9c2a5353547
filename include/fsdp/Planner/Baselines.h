//===- Baselines.h - What others decide -------------------------*- C++ -*-===//
//
// Known policies as points of the same variables that a search decides, so that
// an answer can be compared with them, and starts from them.
//
// What all of them leave out: copies into and out of buffers, padding, what an
// allocator loses, and times that differ between ranks. Where a policy does
// not say it, the backward waits for a reduction in front of the next one.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_BASELINES_H
#define FSDP_PLANNER_BASELINES_H

#include "fsdp/Planner/Decisions.h"

namespace fsdp::planner {

/// "Budget" is that of the model. Bytes are those of the policies' own
/// defaults.
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
  /// (_fully_shard/_fsdp_param_group.py, wait_for_unshard).
  Fsdp2,
  /// torchtitan's GraphTrainer: the gather of block i + 1 at the start of block
  /// i in both directions.
  ManualBlock,
  /// Megatron-FSDP with fsdp_double_buffer: two buffers for gathered modules
  /// and two for gradients, in both directions (megatron_fsdp,
  /// param_and_grad_buffer.py). A gather starts when the module before the last
  /// has left its buffer, and a gradient when the reduction before the last has
  /// left its own. Not modelled: that the buffers are as large as the largest
  /// module, and are never freed.
  Megatron,
  /// Inductor's bucketing and overlap scheduling (torch/_inductor/fx_passes,
  /// bucketing.py, overlap_scheduling.py): calls of up to 500 MB of one phase;
  /// a gather at most five products ahead, 2 GB in flight, and 1 GiB more
  /// memory than without overlap. Not modelled: that it undoes a bucket that
  /// would expose a collective, and its order of what is ready at once.
  Inductor,
  /// XLA's latency-hiding scheduler and its combiner (latency_hiding_scheduler,
  /// collective_combiner): calls of up to 30 MiB; one gather in flight; as late
  /// as the computations up to its use still hide it, as a list from the
  /// bottom finds it; within the budget. Not modelled: its own estimates of
  /// times, which are taken to be those of the model.
  XlaLhs,
  /// DeepCompile's prefetch (deepspeed/compile/passes/prefetch.py): gathers as
  /// early as nine tenths of the budget allow, with at most 4 GB waiting for
  /// their use; neighbours are fused if that takes less than 1.2 times the
  /// longer one, up to 1 GB. Reductions in calls of up to 5e8 elements of two
  /// bytes.
  DeepCompileP,
  /// DeepCompile's selective unsharding (selective_gather.py): units in the
  /// order of time saved for each byte stay gathered to the backward, up to
  /// the first that exceeds nine tenths of the budget; no prefetch. Not
  /// modelled: that they stay gathered from step to step.
  DeepCompileS,
  /// Both: units stay gathered in what the prefetch leaves; what is still
  /// gathered is fused and prefetched again.
  DeepCompilePS,
  /// torchtitan's GraphTrainer with a memory policy: what saves most bytes for
  /// each nanosecond is recomputed, what is cheap of a module or all of it, as
  /// little as it takes to fit into the budget; calls as in ManualBlock. Not
  /// modelled: offload, and other parts.
  TorchtitanMemory,
};
constexpr Policy allPolicies[] = {
    Policy::NoOverlap,     Policy::Fsdp1,           Policy::Fsdp2,
    Policy::ManualBlock,   Policy::Megatron,        Policy::Inductor,
    Policy::XlaLhs,        Policy::DeepCompileP,    Policy::DeepCompileS,
    Policy::DeepCompilePS, Policy::TorchtitanMemory};

const char *getName(Policy policy);

/// All modules are recomputed, what is cheap of them, or none, and of units
/// all, a piece or nothing is kept, unless the policy itself decides about
/// that. Where calls are those of modules, units of the root stay gathered.
Decisions makeBaseline(const StepModel &model, Policy policy, Keep keep,
                       Recompute recompute);

struct Baseline {
  /// "fsdp1", "fsdp1, all kept, all recomputed", "fsdp1, cheap recomputed".
  std::string name;
  Policy policy;
  Decisions decisions;
};

/// Each policy with each choice that it leaves open. Some may not fit into the
/// budget.
std::vector<Baseline> makeBaselines(const StepModel &model);

/// Sets the places of launches and waits by a policy, for calls that are
/// decided.
void applyPolicy(const StepModel &model, size_t program, Policy policy,
                 ProgramDecisions &decisions,
                 const std::vector<uint8_t> &resident);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_BASELINES_H
