//===- Optimizer.cpp - What is done to a shard ----------------------------===//
#include "Optimizer.h"

#include "../Comm/Mesh.h"
#include "fsdp/Runtime/Support/Error.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/reciprocal.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

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

DeviceHyper::DeviceHyper(const planfile::Plan &plan, Device &device) {
  for (std::uint32_t i = 0; i != plan.buffers()->size(); ++i)
    if (plan.buffers()->Get(i)->role() == planfile::BufferRole::Hyper)
      places[i] = nullptr;
  std::byte *all =
      device.allocate(planfile::Space::Device, places.size() * sizeof(Values));
  for (auto &[buffer, place] : places)
    place = std::exchange(all, all + sizeof(Values));
}

void DeviceHyper::upload(const Memory &memory, Device &device) const {
  if (places.empty())
    return;
  std::vector<Values> values;
  for (const auto &[buffer, place] : places) {
    const auto *numbers = reinterpret_cast<const double *>(memory.data(buffer));
    auto get = [&](planfile::Hyper which) {
      return static_cast<float>(numbers[static_cast<std::size_t>(which)]);
    };
    values.push_back(
        {get(planfile::Hyper::LearningRate), get(planfile::Hyper::Update)});
  }
  device.upload(places.begin()->second, std::as_bytes(std::span(values)));
}

Update::Update(const planfile::Plan &plan, const planfile::Update &command,
               unsigned shard, Memory &memory, const DeviceHyper &numbers)
    : rule(command.rule()),
      hyper(reinterpret_cast<const double *>(memory.data(command.hyper()))) {
  std::ranges::transform(
      getScalars(command), scalars.begin(),
      [&](std::uint32_t buffer) { return getScalar(memory, buffer); });
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
  divisor = at::empty_like(step);
  found = at::empty_like(step);
  auto place = numbers.places.find(command.hyper());
  if (place != numbers.places.end() &&
      memory.range(command.parameter()).space == planfile::Space::Device) {
    auto get = [&](DeviceHyper::Number which) {
      return memory.scalar(place->second + which * sizeof(float),
                           planfile::DType::F32);
    };
    lr = get(DeviceHyper::LearningRate);
    number = get(DeviceHyper::Update);
  }
}

void Update::run() {
  if (parameters.empty())
    return;
  using planfile::UpdateScalar;
  const auto &clipFactor = get(UpdateScalar::ClipFactor),
             &lossScale = get(UpdateScalar::LossScale),
             &foundInf = get(UpdateScalar::FoundInf);
  // What is found stays where it is: nobody waits for the device.
  std::optional<at::Tensor> stop;
  if (foundInf)
    stop = at::ne_out(found, *foundInf, 0);
  // One pass over the gradients: they are divided by the one number.
  std::optional<at::Tensor> scale = lossScale;
  if (clipFactor) {
    if (lossScale)
      at::div_out(divisor, *lossScale, *clipFactor);
    else
      at::reciprocal_out(divisor, *clipFactor);
    scale = divisor;
  }
  lr.defined() ? runOnDevice(scale, stop) : runOnHost(scale, stop);
}

void Update::runOnHost(const std::optional<at::Tensor> &scale,
                       const std::optional<at::Tensor> &stop) {
  using planfile::Hyper;
  switch (rule) {
  case planfile::UpdateRule::AdamW:
    step.fill_(get(Hyper::Update));
    if (const auto &skipped = get(planfile::UpdateScalar::Skipped))
      step.sub_(*skipped);
    at::_fused_adamw_(parameters, gradients, states[0], states[1],
                      /*max_exp_avg_sqs=*/{}, steps, get(Hyper::LearningRate),
                      get(Hyper::Beta1), get(Hyper::Beta2),
                      get(Hyper::WeightDecay), get(Hyper::Epsilon),
                      /*amsgrad=*/false, /*maximize=*/false, scale, stop);
    return;
  case planfile::UpdateRule::SGD:
    at::_fused_sgd_(parameters, gradients,
                    hasMomentum() ? states[0] : std::vector<at::Tensor>(),
                    get(Hyper::WeightDecay),
                    hasMomentum() ? get(Hyper::Momentum) : 0,
                    get(Hyper::LearningRate), /*dampening=*/0,
                    /*nesterov=*/false, /*maximize=*/false,
                    // The buffer is 0 until the first: then it makes no
                    // difference.
                    /*is_first_step=*/get(Hyper::Update) == 1, scale, stop);
    return;
  }
}

/// The same, where what changes from step to step is in memory.
void Update::runOnDevice(const std::optional<at::Tensor> &scale,
                         const std::optional<at::Tensor> &stop) {
  using planfile::Hyper;
  switch (rule) {
  case planfile::UpdateRule::AdamW:
    step.copy_(number);
    if (const auto &skipped = get(planfile::UpdateScalar::Skipped))
      step.sub_(*skipped);
    at::_fused_adamw_(parameters, gradients, states[0], states[1],
                      /*max_exp_avg_sqs=*/{}, steps, lr, get(Hyper::Beta1),
                      get(Hyper::Beta2), get(Hyper::WeightDecay),
                      get(Hyper::Epsilon), /*amsgrad=*/false,
                      /*maximize=*/false, scale, stop);
    return;
  case planfile::UpdateRule::SGD:
    at::_fused_sgd_(parameters, gradients,
                    hasMomentum() ? states[0] : std::vector<at::Tensor>(),
                    get(Hyper::WeightDecay),
                    hasMomentum() ? get(Hyper::Momentum) : 0, lr,
                    /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false, scale, stop);
    return;
  }
}

//===----------------------------------------------------------------------===//
// Measures
//===----------------------------------------------------------------------===//

Measure::Measure(const planfile::Plan &plan, const planfile::Measure &command,
                 unsigned shard, Memory &memory)
    : kind(command.kind()),
      pieces(cut(plan, command.unit(), shard, *command.intervals(), memory,
                 command.source())),
      initial(getScalar(memory, command.initial())),
      target(memory.tensor(command.target()).view(at::IntArrayRef())) {}

/// In f64, as many sums as a vector unit has room for, then these in order: the
/// bits depend on the elements alone.
template <typename T, typename Map>
static double sum(const T *data, std::int64_t count, Map map) {
  constexpr std::int64_t numLanes = 16;
  double lanes[numLanes] = {};
  std::int64_t i = 0;
  for (; i + numLanes <= count; i += numLanes)
    for (std::int64_t lane = 0; lane != numLanes; ++lane)
      lanes[lane] += map(static_cast<double>(data[i + lane]));
  for (std::int64_t lane = 0; i + lane < count; ++lane)
    lanes[lane] += map(static_cast<double>(data[i + lane]));
  return std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
}

/// The largest absolute value. Its bits are those of the largest integer: those
/// of NaN are above those of infinity.
template <typename T> static double largest(const T *data, std::int64_t count) {
  using Bits = std::conditional_t<
      sizeof(T) == 8, std::uint64_t,
      std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  Bits most = 0;
  for (std::int64_t i = 0; i != count; ++i)
    most = std::max<Bits>(most, std::bit_cast<Bits>(data[i]) &
                                    std::numeric_limits<Bits>::max() >> 1);
  return static_cast<double>(std::bit_cast<T>(most));
}

/// The number of a piece that the host can read.
static double measureHost(planfile::MeasureKind kind, const at::Tensor &piece) {
  using planfile::MeasureKind;
  double result = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, piece.scalar_type(), "measure", [&] {
        // Compilers do not agree on the name of const_data_ptr<scalar_t>.
        const auto *data =
            static_cast<const scalar_t *>(piece.const_data_ptr());
        std::int64_t count = piece.numel();
        switch (kind) {
        case MeasureKind::SquaredNorm:
          result = sum(data, count, [](double x) { return x * x; });
          return;
        case MeasureKind::AbsSum:
          result = sum(data, count, [](double x) { return std::abs(x); });
          return;
        case MeasureKind::FoundInf:
        case MeasureKind::AbsMax:
          result = largest(data, count);
          return;
        }
      });
  return result;
}

static double largerOf(double left, double right) {
  return left > right || std::isnan(left) ? left : right;
}

void Measure::runOnHost() {
  double own = 0;
  for (const at::Tensor &piece : pieces) {
    double next = measureHost(kind, piece);
    own = isMaximum() ? largerOf(own, next) : own + next;
  }
  if (kind == planfile::MeasureKind::FoundInf)
    own = std::isfinite(own) ? 0 : 1;
  if (initial) {
    double before = *static_cast<const double *>(initial->const_data_ptr());
    own = isMaximum() ? largerOf(before, own) : before + own;
  }
  *target.mutable_data_ptr<double>() = own;
}

void Measure::runOnDevice() {
  using planfile::MeasureKind;
  target.zero_();
  for (const at::Tensor &piece : pieces) {
    double order = isMaximum() ? INFINITY : kind == MeasureKind::AbsSum ? 1 : 2;
    at::Tensor next =
        at::linalg_vector_norm(piece, order, /*dim=*/at::OptionalIntArrayRef(),
                               /*keepdim=*/false, at::kDouble);
    if (kind == MeasureKind::SquaredNorm)
      next.square_();
    isMaximum() ? at::maximum_out(target, target, next) : target.add_(next);
  }
  if (kind == MeasureKind::FoundInf)
    target.copy_(at::isfinite(target).logical_not());
  if (initial && isMaximum())
    at::maximum_out(target, target, *initial);
  else if (initial)
    target.add_(*initial);
}

void Measure::run() { target.is_cpu() ? runOnHost() : runOnDevice(); }
