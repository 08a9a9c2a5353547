//===- InitialValues.h - Parameters without a file --------------*- C++ -*-===//
//
// What parameters hold before the first update, where no file says it. The
// value of an element depends on the seed, the name of its parameter and its
// place in that tensor alone: not on units, ranks, or what else is drawn.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_CHECKPOINTS_INITIALVALUES_H
#define FSDP_RUNTIME_CHECKPOINTS_INITIALVALUES_H

#include "fsdp/Runtime/Execution/Session.h"

namespace fsdp {

/// Zeros, or a normal distribution around 0.
class InitialValues {
public:
  /// "zeros", or "normal:STD" with a standard deviation. Throws for other
  /// texts.
  static InitialValues parse(std::string_view text);

  /// Gives a parameter its values, rounded to the plan's type; each of the
  /// session's ranks makes those that it holds.
  void set(Session &session, const std::string &parameter,
           std::uint64_t seed) const;

private:
  explicit InitialValues(double deviation) : deviation(deviation) {}

  double deviation;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_CHECKPOINTS_INITIALVALUES_H
