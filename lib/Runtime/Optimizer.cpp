//===- Optimizer.cpp - What is done to a shard ----------------------------===//
#include "Optimizer.h"

#include "Mesh.h"
#include "fsdp/Runtime/Error.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>

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

static std::optional<at::Tensor> getScalar(Memory &memory,
                                           std::uint32_t buffer) {
  if (buffer == none)
    return std::nullopt;
  return memory.tensor(buffer).view(at::IntArrayRef());
}

Update::Update(const planfile::Plan &plan, const planfile::Update &command,
               unsigned shard, Memory &memory)
    : rule(command.rule()),
      hyper(reinterpret_cast<const double *>(memory.data(command.hyper()))),
      clipFactor(getScalar(memory, command.clip_factor())),
      lossScale(getScalar(memory, command.loss_scale())),
      foundInf(getScalar(memory, command.found_inf())) {
  auto pieces = [&](std::uint32_t buffer) {
    return cut(plan, command.unit(), shard, *command.intervals(), memory,
               buffer);
  };
  parameters = pieces(command.parameter());
  gradients = pieces(command.gradient());
  for (std::uint32_t state : *command.states())
    states.push_back(pieces(state));
  step = at::empty(
      {}, memory.tensor(command.parameter()).options().dtype(at::kFloat));
  steps.assign(parameters.size(), step);
}

void Update::run() {
  using planfile::Hyper;
  // The kernels take no other number than 1 for one that is found.
  skipped = foundInf && foundInf->item<float>() != 0;
  if (skipped || parameters.empty())
    return;
  if (clipFactor)
    at::_foreach_mul_(gradients, *clipFactor);
  switch (rule) {
  case planfile::UpdateRule::AdamW:
    step.fill_(get(Hyper::Update));
    at::_fused_adamw_(parameters, gradients, states[0], states[1],
                      /*max_exp_avg_sqs=*/{}, steps, get(Hyper::LearningRate),
                      get(Hyper::Beta1), get(Hyper::Beta2),
                      get(Hyper::WeightDecay), get(Hyper::Epsilon),
                      /*amsgrad=*/false, /*maximize=*/false, lossScale);
    return;
  case planfile::UpdateRule::SGD:
    // The operator takes no buffers where momentum is 0.
    bool hasMomentum = !states.empty() && get(Hyper::Momentum) != 0;
    at::_fused_sgd_(parameters, gradients,
                    hasMomentum ? states[0] : std::vector<at::Tensor>(),
                    get(Hyper::WeightDecay),
                    hasMomentum ? get(Hyper::Momentum) : 0,
                    get(Hyper::LearningRate), /*dampening=*/0,
                    /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/get(Hyper::Update) == 1, lossScale);
    return;
  }
}

Measure::Measure(const planfile::Plan &plan, const planfile::Measure &command,
                 unsigned shard, Memory &memory)
    : kind(command.kind()),
      pieces(cut(plan, command.unit(), shard, *command.intervals(), memory,
                 command.source())),
      target(memory.tensor(command.target()).view(at::IntArrayRef())) {
  all = at::zeros({static_cast<std::int64_t>(pieces.size())},
                  target.options().dtype(at::kFloat));
  parts = all.unbind();
}

/// The norm of a piece has its sum of squares, and is finite only if all of its
/// elements are; that of infinite order does not overflow.
void Measure::run() {
  bool isNorm = kind == planfile::MeasureKind::SquaredNorm;
  for (std::size_t i = 0; i != pieces.size(); ++i)
    at::linalg_vector_norm_out(parts[i], pieces[i], isNorm ? 2 : INFINITY,
                               /*dim=*/at::OptionalIntArrayRef(),
                               /*keepdim=*/false, at::kFloat);
  if (isNorm)
    at::dot_out(target, all, all);
  else
    target.fill_(at::isfinite(all).all().item<bool>() ? 0 : 1);
}
