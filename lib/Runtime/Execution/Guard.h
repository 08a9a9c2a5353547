//===- Guard.h - What kernels rely on and do not check ----------*- C++ -*-===//
//
// Some kernels trust that sizes belong together, as they do where autograd
// calls them, or that indices are in range. An operator whose facts say
// `Guarded` has a rule for that here. Sizes are compared when a launch is
// prepared; what only a run knows, indices and divisors, is looked at before
// each call.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_GUARD_H
#define FSDP_LIB_RUNTIME_EXECUTION_GUARD_H

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class Guard {
public:
  Guard() = default;
  /// Of a call of an operator. Throws `Error` if the sizes do not fit.
  Guard(const c10::FunctionSchema &schema,
        const std::vector<c10::IValue> &arguments);

  /// True if there is a rule for the operator of this base name: "floor_divide"
  /// is that of "aten::floor_divide_.Scalar".
  static bool hasRule(std::string_view base);

  bool looksAtElements() const { return !ranges.empty() || divides; }
  /// Throws `Error` if an element is out of range, or a quotient is none.
  void check() const {
    if (looksAtElements())
      checkElements();
  }

private:
  friend class GuardedCall;
  struct Range {
    std::string name; ///< Of the argument.
    at::Tensor tensor;
    std::int64_t low, high; ///< Inclusive.
    /// May stand there, too: what a loss ignores.
    std::optional<std::int64_t> except = {};
  };
  void checkElements() const;

  std::vector<Range> ranges;
  /// Integers, whose quotient traps for some.
  bool divides = false;
  at::Tensor dividend, divisor;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_GUARD_H
