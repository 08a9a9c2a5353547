//===- PlanSession.h - One rank of a training, for Python -------*- C++ -*-===//
//
// A plan that is loaded for the rank of this process, with tensors of PyTorch
// going in and out. Calls hold no GIL and wait for one another; they leave the
// caller's thread as it was: its number of threads, its grad mode, its
// inference mode, its GPU and its stream. On a GPU, what a call does has its
// place in that stream, as the operators of the caller have. Everything throws
// `fsdp::Error`.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PYTHON_RUNTIME_PLANSESSION_H
#define FSDP_PYTHON_RUNTIME_PLANSESSION_H

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Data/Data.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <map>
#include <mutex>

namespace fsdp {

/// A parameter of a plan.
struct ParameterFacts {
  std::string name;                 ///< The primary one.
  std::vector<std::string> aliases; ///< Others of a tied parameter.
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype; ///< In which it is kept.
  bool trains;
  std::vector<std::string> states;    ///< Of the optimizer: exp_avg, ...
  std::optional<unsigned> decayGroup; ///< That updates it.
};

/// A tensor that is part of a whole one, at these offsets.
using Piece = std::pair<std::vector<std::int64_t>, at::Tensor>;

/// Steps of a rank: means over them, in seconds, and what one of them has run.
struct Measurement {
  double seconds = 0;
  double exposed =
      0; ///< See `Statistics`; of a single step if it must be timed.
  std::size_t operators = 0, collectives = 0;
};

class PlanSession {
public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Batch = std::vector<at::Tensor>;

  explicit PlanSession(const std::string &planPath);
  ~PlanSession();

  /// What the plan is for: "cpu" or "cuda".
  std::string device();

  struct Start {
    /// Of the ranks; nothing: this process alone is all of them, one. For a
    /// plan for the CPU, one for tensors of the CPU.
    std::optional<Group> group;
    double timeout; ///< In seconds.
    bool overlap;
    std::vector<std::string> trustedOperators;
    /// The folder of libfsdp_cuda.so and libfsdp_nccl.so.
    std::string libraries;
    /// Nothing: the number of the rank among those of its machine.
    std::optional<unsigned> gpu;
  };
  /// Once, before all that follows. All processes of a group do so at once.
  void start(const Start &start);

  /// In place of it: runs steps from values and on batches that are made up,
  /// with one half of their work or with all of it, in a session of its own. A
  /// plan for the CPU needs no group: then all ranks are threads.
  Measurement measure(const Start &start, bool computes, bool communicates,
                      unsigned steps);
  /// What was predicted of a step.
  std::optional<planfile::StepPrediction> prediction();

  /// Later calls throw. Memory that tensors refer to stays as long as they.
  void close();

  // Facts of the plan.
  unsigned rank() const { return ownRank; }
  unsigned worldSize();
  std::vector<std::string> stepPrograms();
  std::vector<InputSpec> inputs(const std::string &program);
  std::vector<ParameterFacts> parameters();
  /// The names of the decay groups, by their numbers.
  std::map<unsigned, std::string> decayGroups();
  /// The model buffers that the plan does not bring along.
  std::vector<std::string> buffers();
  bool hasBuffer(const std::string &name);
  std::string updateRule(); ///< "adamw" or "sgd"; empty: no update.

  // Training.
  void setHyperParameters(unsigned decayGroup, const HyperParameters &values);
  void setSeed(std::uint64_t seed);
  /// Of this rank, as `torch.Generator.get_state` has it.
  at::Tensor generatorState();
  /// A batch for each program of a step. Returns the mean loss over them and
  /// all ranks: one number of the type of the plan's loss, on its device.
  at::Tensor step(const std::vector<Batch> &batches);
  /// The same in two parts. Forward and backward of micro-batch `part` of a
  /// step, in their order from 0: its loss, the mean over all ranks.
  at::Tensor backward(const Batch &batch, std::size_t part);
  /// Calls a function with each node of the graph, and what an operator that
  /// was launched for it has written, until it is given None.
  void observe(const pybind11::object &observer);
  /// The update, after the last of them and before anything else runs.
  void update();
  /// The forward alone of a program: its loss.
  at::Tensor evaluate(const Batch &batch, const std::string &program);
  long long steps(); ///< Done so far.
  /// See `Session::gradientNorm`.
  std::optional<double> gradientNorm();
  /// Updates so far, without those that a grad scaler has skipped.
  std::uint64_t updates();
  void setUpdates(std::uint64_t count); ///< The same.

  // Tensors. `kind`: "parameter", "gradient", "buffer", or an optimizer state's
  // name, of the parameter `name`.

  /// All of it; all ranks at once. `toFirst`: rank 0 alone, others get nothing.
  std::optional<at::Tensor> read(const std::string &kind,
                                 const std::string &name, bool toFirst);
  /// The part that this rank holds of it.
  void write(const std::string &kind, const std::string &name,
             const at::Tensor &value);
  /// What this rank holds of it, in place. Not of buffers.
  std::vector<Piece> views(const std::string &kind, const std::string &name);
  /// Parameters and buffers out of a file or folder, as fsdp-run --weights.
  void loadWeights(const std::string &path);

  // Checkpoints of the runtime; all ranks at once.

  /// Returns the path of the new folder in `folder`.
  std::string save(const std::string &folder, const HyperParameters &values);
  /// Of a checkpoint, or of the newest in a folder.
  void load(const std::string &folder);

private:
  struct Loaded;
  /// Runs a function of the loaded plan as the header says.
  template <typename Function> auto call(const Function &function);
  /// The same for what reads or writes memory of the plan.
  template <typename Function> auto callInOrder(const Function &function);
  /// The processes of the group, or this one alone.
  World join() const;
  void setTimeout(double seconds);
  void connect(Loaded &loaded, const Start &start);
  SessionOptions open(Loaded &loaded, const Start &start);
  void setInputs(Loaded &loaded, const Batch &batch,
                 const std::string &program);
  /// One batch for each program; returns the mean of their losses.
  at::Tensor run(Loaded &loaded, const std::vector<Batch> &batches,
                 const std::vector<std::string> &names, Roles roles);

  std::string path;
  std::optional<Group> group; ///< Of several processes.
  std::chrono::milliseconds timeout{};
  unsigned ownRank = 0;
  std::mutex mutex; ///< Of all below.
  std::shared_ptr<Loaded> loaded;
  std::map<std::string, std::vector<InputSpec>> inputsOf;
  std::vector<std::string> programs; ///< Of a step.
  long long stepsDone = 0;
  std::string resumed; ///< The checkpoint that the training goes on from.
};

} // namespace fsdp

#endif // FSDP_PYTHON_RUNTIME_PLANSESSION_H
