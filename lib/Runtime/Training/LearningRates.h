//===- LearningRates.h - The learning rate of each step ---------*- C++ -*-===//
//
// constant, linear and cosine as the schedulers of that name of `transformers`
// (`get_scheduler`), or a rate for each step out of a file.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_LEARNINGRATES_H
#define FSDP_LIB_RUNTIME_TRAINING_LEARNINGRATES_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Training/TrainingOptions.h"

namespace fsdp {

class LearningRates {
public:
  /// Those of a training with these options. Throws `fsdp::Error` where a file
  /// of rates is not one, or has fewer than there are steps; and where the plan
  /// lacks a group that has a factor.
  LearningRates(const planfile::PlanFile &plan, const TrainingOptions &options);

  /// Of step `step`, counted from 1.
  double at(long long step) const;
  /// The factors of decay groups whose rate is another one.
  const std::map<unsigned, double> &groups() const { return scales; }

private:
  const TrainingOptions &options;
  std::map<unsigned, double> scales;
  std::vector<double> rates; ///< Out of a file; empty: by name.
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_LEARNINGRATES_H
