//===- LearningRates.h - The learning rate of each step ---------*- C++ -*-===//
//
// constant, linear and cosine as the schedulers of that name of `transformers`
// (`get_scheduler`), or a rate for each step out of a file.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TOOLS_FSDP_RUN_LEARNINGRATES_H
#define FSDP_TOOLS_FSDP_RUN_LEARNINGRATES_H

#include "Options.h"

namespace fsdp {

class LearningRates {
public:
  /// Those of a training with these options. Throws `fsdp::Error` where a file
  /// of rates is not one, or has fewer than there are steps.
  explicit LearningRates(const Options &options);

  /// Of step `step`, counted from 1.
  double at(long long step) const;

  /// True of a schedule that is no file.
  static bool isNamed(const std::string &schedule) {
    return schedule == "constant" || schedule == "linear" ||
           schedule == "cosine";
  }

private:
  const Options &options;
  std::vector<double> rates; ///< Out of a file; empty: by name.
};

} // namespace fsdp

#endif // FSDP_TOOLS_FSDP_RUN_LEARNINGRATES_H
