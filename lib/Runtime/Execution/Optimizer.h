//===- Optimizer.h - What is done to a shard --------------------*- C++ -*-===//
//
// The update of one unit, one fused call over the pieces of its intervals that
// lie in this rank's shard, and what such pieces add up to. An interval is in
// elements of the unsharded flat parameter.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_OPTIMIZER_H
#define FSDP_LIB_RUNTIME_EXECUTION_OPTIMIZER_H

#include "Memory.h"
#include "fsdp/PlanFile/Steps.h"

#include <map>

namespace fsdp {

/// The numbers of decay groups that change from step to step, in f32, in memory
/// of a device that runs ahead: its kernels read them there.
struct DeviceHyper {
  enum Number : std::uint8_t { LearningRate, Update, Count };
  using Values = std::array<float, Count>;

  DeviceHyper() = default;
  DeviceHyper(const planfile::Plan &plan, Device &device);
  /// What the host has written to the plan's memory, uploaded in one copy.
  void upload(const Memory &memory, Device &device) const;

  std::map<std::uint32_t, std::byte *> places; ///< By buffer; of `Values`.
};

class Update {
public:
  /// An update of what is on the host takes nothing of `numbers`.
  Update(const planfile::Plan &plan, const planfile::Update &command,
         unsigned shard, Memory &memory, const DeviceHyper &numbers);

  /// By the hyper-parameters that are in the plan's memory now.
  void run();

private:
  double get(planfile::Hyper number) const {
    return hyper[static_cast<std::size_t>(number)];
  }
  void runOnHost(const std::optional<at::Tensor> &scale,
                 const std::optional<at::Tensor> &stop);
  void runOnDevice(const std::optional<at::Tensor> &scale,
                   const std::optional<at::Tensor> &stop);
  const std::optional<at::Tensor> &get(planfile::UpdateScalar scalar) const {
    return scalars[static_cast<std::size_t>(scalar)];
  }
  /// The operator takes no buffers where momentum is 0.
  bool hasMomentum() const {
    return !states.empty() && get(planfile::Hyper::Momentum) != 0;
  }

  planfile::UpdateRule rule;
  std::vector<at::Tensor> parameters, gradients;
  std::vector<std::vector<at::Tensor>> states; ///< By state, then by piece.
  const double *hyper;
  at::Tensor lr, number; ///< On a device that runs ahead: of `DeviceHyper`.
  std::array<std::optional<at::Tensor>, planfile::numUpdateScalars> scalars;
  /// What the kernels divide gradients by, where there is a clip factor.
  at::Tensor divisor;
  at::Tensor found; ///< 1 if `FoundInf` is not 0, as the kernels take it.
  at::Tensor step;  ///< The number of the update, as AdamW takes it.
  std::vector<at::Tensor> steps; ///< That, for each piece.
};

class Measure {
public:
  Measure(const planfile::Plan &plan, const planfile::Measure &command,
          unsigned shard, Memory &memory);
  void run();

private:
  void runOnHost();
  void runOnDevice();
  bool isMaximum() const {
    return kind == planfile::MeasureKind::AbsMax ||
           kind == planfile::MeasureKind::FoundInf;
  }

  planfile::MeasureKind kind;
  std::vector<at::Tensor> pieces;
  std::optional<at::Tensor> initial;
  at::Tensor target;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_OPTIMIZER_H
