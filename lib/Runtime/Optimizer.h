//===- Optimizer.h - What is done to a shard --------------------*- C++ -*-===//
//
// The update of one unit, one fused call over the pieces of its intervals that
// lie in this rank's shard, and what such pieces add up to. An interval is in
// elements of the unsharded flat parameter.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_OPTIMIZER_H
#define FSDP_LIB_RUNTIME_OPTIMIZER_H

#include "Memory.h"
#include "fsdp/Archive/PlanFile.h"

namespace fsdp {

class Update {
public:
  Update(const planfile::Plan &plan, const planfile::Update &command,
         unsigned shard, Memory &memory);

  /// By the hyper-parameters that are in the plan's memory now.
  void run();

private:
  double get(planfile::Hyper number) const {
    return hyper[static_cast<std::size_t>(number)];
  }

  planfile::UpdateRule rule;
  std::vector<at::Tensor> parameters, gradients;
  std::vector<std::vector<at::Tensor>> states; ///< By state, then by piece.
  const double *hyper;
  std::optional<at::Tensor> clipFactor, lossScale, foundInf, skipped;
  /// What the kernels divide gradients by, where there is a clip factor.
  at::Tensor divisor;
  at::Tensor found; ///< 1 if `foundInf` is not 0, as the kernels take it.
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

#endif // FSDP_LIB_RUNTIME_OPTIMIZER_H
