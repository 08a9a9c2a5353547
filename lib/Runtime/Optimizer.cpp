//===- Optimizer.cpp - The update of one unit -----------------------------===//
#include "Optimizer.h"

#include "Mesh.h"
#include "fsdp/Runtime/Error.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

using namespace fsdp;

/// The pieces of one buffer that the intervals and the shard have in common.
static std::vector<at::Tensor>
cut(const planfile::Plan &plan, std::uint32_t unit, unsigned shard,
    const flatbuffers::Vector<const planfile::Interval *> &intervals,
    Memory &memory, std::uint32_t buffer) {
  const planfile::Unit &layout = *plan.units()->Get(unit);
  std::uint64_t length = layout.numel() / layout.shards();
  if (memory.elements(buffer) != length || !memory.isContiguous(buffer))
    throw Error("the optimizer of unit " +
                std::string(stringOf(plan, layout.name())) +
                " needs dense shards of " + std::to_string(length) +
                " elements; buffer " + std::to_string(buffer) + " is not one");
  std::vector<at::Tensor> pieces;
  for (const planfile::Interval *interval : intervals) {
    ShardPart part =
        intersect(layout, shard, interval->begin(), interval->end());
    if (part.count)
      pieces.push_back(
          memory.slice(buffer, part.inShard, part.inShard + part.count));
  }
  return pieces;
}

AdamW::AdamW(const planfile::Plan &plan, const planfile::AdamW &command,
             unsigned shard, Memory &memory, const at::Tensor &step) {
  auto pieces = [&](std::uint32_t buffer) {
    return cut(plan, command.unit(), shard, *command.intervals(), memory,
               buffer);
  };
  parameters = pieces(command.parameter());
  gradients = pieces(command.gradient());
  averages = pieces(command.exp_avg());
  squares = pieces(command.exp_avg_sq());
  steps.assign(parameters.size(), step);
}

void AdamW::run(const HyperParameters &values) {
  if (parameters.empty())
    return;
  at::_fused_adamw_(parameters, gradients, averages, squares,
                    /*max_exp_avg_sqs=*/{}, steps, values.lr, values.beta1,
                    values.beta2, values.weightDecay, values.eps,
                    /*amsgrad=*/false, /*maximize=*/false);
}

SGD::SGD(const planfile::Plan &plan, const planfile::SGD &command,
         unsigned shard, Memory &memory) {
  auto pieces = [&](std::uint32_t buffer) {
    return cut(plan, command.unit(), shard, *command.intervals(), memory,
               buffer);
  };
  parameters = pieces(command.parameter());
  gradients = pieces(command.gradient());
  if (command.momentum() != none)
    momenta = pieces(command.momentum());
}

void SGD::run(const HyperParameters &values, bool isFirst) {
  if (parameters.empty())
    return;
  // The operator takes no buffers where momentum is 0.
  bool hasMomentum = !momenta.empty() && values.momentum != 0;
  at::_fused_sgd_(
      parameters, gradients, hasMomentum ? momenta : std::vector<at::Tensor>(),
      values.weightDecay, hasMomentum ? values.momentum : 0, values.lr,
      /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, isFirst);
}
