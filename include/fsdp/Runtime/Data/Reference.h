//===- Reference.h - What PyTorch says about a plan -------------*- C++ -*-===//
//
// A safetensors file with inputs, by their names or as `in_0, in_1, ...`, and
// what PyTorch makes of them: either `loss`, `grad.NAME` and `output.K` of one
// forward and backward, or `losses` (one per step) and `param.NAME` of a
// training of that many steps. An input with one axis more than the plan's
// holds a batch for each rank, in a training for each rank of each step; an
// output, what each rank returns. Values are compared per tensor and by their
// size: max|d| <= tolerance * max|reference| + 1e-7; NaN fails; infinities and
// integers must be equal.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_RUNTIME_DATA_REFERENCE_H
#define FSDP_RUNTIME_DATA_REFERENCE_H

#include "fsdp/Archive/Safetensors.h"
#include "fsdp/Runtime/Data/Data.h"

#include <cmath>

namespace fsdp {

/// The outcome of comparing tensors.
class Comparison {
public:
  explicit Comparison(double tolerance) : tolerance(tolerance) {}

  void compare(const std::string &name, const TensorView &expected,
               const TensorView &found);
  /// Notes a name that only one side has.
  void fail(std::string sentence) { fail(std::move(sentence), INFINITY); }

  bool passed() const { return failures.empty() && !tensors.empty(); }
  /// What is wrong, the worst first: a sentence for each tensor.
  std::vector<std::string> problems() const;
  /// "compared 22 tensors, worst grad.wte: off by 2e-08 where 5e-06 is allowed"
  std::string summary() const;

  /// How far a tensor is from the reference; infinity if it has NaN, another
  /// shape or other integers.
  struct Tensor {
    std::string name;
    double difference = INFINITY, allowed = 1;
  };
  /// Those compared, in the order in which they were.
  std::span<const Tensor> compared() const { return tensors; }
  /// The tensor that is farthest from the reference, by what it is allowed.
  const Tensor &worstTensor() const;

private:
  double tolerance;
  std::vector<Tensor> tensors;
  struct Problem {
    double severity; ///< The difference by what is allowed.
    std::string sentence;
  };
  void fail(std::string sentence, double severity) {
    failures.push_back({severity, std::move(sentence)});
  }
  std::vector<Problem> failures;
};

class Reference {
public:
  /// Opens a file whose inputs fit a program of `plan`.
  static Reference open(const std::string &path, const planfile::PlanFile &plan,
                        std::string_view program = "step");

  /// 0 for a reference of one forward and backward.
  std::size_t trainingSteps() const { return steps; }

  /// Out of the file's metadata, or the defaults.
  Seeds seeds() const;
  /// Those of the training, out of the file's metadata.
  HyperParameters hyperParameters() const;

  HostTensor input(std::size_t microBatch, unsigned rank,
                   std::size_t index) const;

  /// Runs the session (with its weights set) on the inputs and compares.
  Comparison run(Session &session, double tolerance) const;

private:
  Reference(archive::Safetensors file, const planfile::PlanFile &plan,
            std::string_view program)
      : file(std::move(file)), programs(getStepPrograms(plan, program)),
        inputs(getInputs(plan, program)) {}
  void checkInputs(const planfile::PlanFile &plan);
  void compareOutputs(const Session &session, Comparison &result) const;
  const archive::TensorInfo &get(const std::string &name) const;
  HostTensor read(const archive::TensorInfo &tensor) const;

  archive::Safetensors file;
  std::vector<std::string> programs; ///< Of a step.
  std::vector<InputSpec> inputs;
  std::vector<const archive::TensorInfo *> inputTensors;
  unsigned ranks = 1;
  std::size_t steps = 0;
  // Those that the plan keeps, beside the loss.
  std::vector<std::uint32_t> outputs;
  // All names of each parameter, its primary one first.
  std::vector<std::vector<std::string>> parameters;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_DATA_REFERENCE_H
