//===- Session.h - A loaded plan, ready to step -----------------*- C++ -*-===//
//
// A `Session` holds a plan prepared for all its ranks: rank 0 lives on the
// thread that calls `run`, the others on threads of their own that sleep
// between runs. Parameters, gradients and states go in and out as full tensors
// of host memory, dense and row-major; the session cuts them into the shards
// of the plan's units and puts them together again. Everything throws
// `fsdp::Error`; after a rank has failed, the session only rethrows. Not
// thread-safe: one caller at a time. ATen runs single-threaded on every rank:
// PyTorch's number of threads becomes 1 on the thread that calls.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_SESSION_H
#define FSDP_RUNTIME_SESSION_H

#include "fsdp/Runtime/Comm.h"
#include "fsdp/Runtime/Error.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

/// Dense row-major values somewhere in host memory.
struct TensorView {
  planfile::DType type;
  std::span<const std::int64_t> sizes;
  std::span<const std::byte> bytes;
};

/// The same, with the memory.
struct HostTensor {
  planfile::DType type;
  std::vector<std::int64_t> sizes;
  std::vector<std::byte> bytes;

  operator TensorView() const { return {type, sizes, bytes}; }
};

/// PyTorch's defaults of AdamW; SGD reads lr, weightDecay and momentum.
struct HyperParameters {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weightDecay = 1e-2;
  double momentum = 0;

  /// Throws unless all are finite, at least 0, and the betas below 1.
  void check() const;
};

/// The commands of a run, by role.
struct Roles {
  bool forward = true, backward = true, update = true;
};

struct SessionOptions {
  /// The kind of device; null: CPU, local.
  std::unique_ptr<Backend> backend;
  /// A second thread on every rank for all streams but compute. Only without a
  /// backend of one's own: a GPU's streams overlap anyway.
  bool overlap = false;
  /// Fill transient memory with a pattern, so that `highestByte` can tell.
  bool canary = false;
  /// Other than 0: random delays before commands, NaN in gathered memory before
  /// its gather and in all that ends after its last use. The bits must not
  /// change.
  std::uint64_t chaosSeed = 0;
  /// Keep a `Span` of every command that is run.
  bool timed = false;
  /// Operators that plans may run beside those that `OpFacts::safety` allows,
  /// by full name: what `loadOperators` returned, or the user trusts.
  std::vector<std::string> trustedOperators;
};

/// Loads a library that registers operators, and returns their full names.
std::vector<std::string> loadOperators(const char *library);

/// When a command of the plan was run, in seconds of a clock that all ranks
/// share. What the runtime adds to wait for the readers of a collective's
/// source is a drain, and names that collective.
struct Span {
  unsigned rank, program;
  std::uint32_t command;
  bool isDrain;
  planfile::Stream stream;
  std::uint64_t update; ///< How many updates were before it.
  double begin, end;
};

/// Of the latest run, rank 0 unless said otherwise; seconds and bytes.
struct Statistics {
  double forward = 0, backward = 0, update = 0;
  double collectives = 0;       ///< Of those, inside collectives.
  AllocationCounts allocations; ///< Summed over ranks.
  std::uint64_t hookMisses = 0; ///< Results that had to be copied; all ranks.
};

/// What was found at load, per rank.
struct LoadReport {
  std::uint64_t arenaBytes = 0;   ///< Planned device memory.
  std::uint64_t hostBytes = 0;    ///< Planned host memory.
  std::uint64_t scratchBytes = 0; ///< Probed scratch of hooked operators.
  std::vector<std::string> hookedOperators; ///< Names, each once.
  unsigned launches = 0;                    ///< Of program `step`.
};

class Session {
public:
  /// Loads a verified plan for `ranks` ranks (the product of its mesh) and
  /// runs its `init` program. The plan must outlive the session.
  Session(const planfile::Plan &plan, unsigned ranks,
          SessionOptions options = {});
  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  unsigned ranks() const;
  const LoadReport &report() const;

  /// Primary names, in the plan's order.
  std::vector<std::string> parameterNames() const;
  /// Those that have a reduced gradient.
  std::vector<std::string> gradientNames() const;
  /// Model buffers that the plan expects from the checkpoint.
  std::vector<std::string> bufferNames() const;

  /// `name` may be an alias. Converts to the unit's storage dtype; rejects
  /// other sizes. Padding is 0.
  void setParameter(std::string_view name, const TensorView &value);
  HostTensor parameter(std::string_view name) const;
  HostTensor gradient(std::string_view name) const;
  /// `state`: exp_avg, exp_avg_sq or momentum.
  void setOptimizerState(std::string_view name, std::string_view state,
                         const TensorView &value);
  HostTensor optimizerState(std::string_view name,
                            std::string_view state) const;

  /// Between and after a unit's parameters lies padding, which must stay 0.
  /// A sentence for each unit whose flat parameter has a pad that is not, and,
  /// after a run without update, for each whose reduced gradient has.
  std::vector<std::string> findDirtyPadding(bool withGradients) const;

  /// Model buffers are replicated: every rank gets `value`; rank 0 is read. The
  /// next run starts with `init`, which may read the buffer.
  void setBuffer(std::string_view name, const TensorView &value);
  HostTensor buffer(std::string_view name) const;

  unsigned inputCount() const;
  planfile::DType inputType(unsigned index) const;
  std::vector<std::int64_t> inputSizes(unsigned index) const;
  /// Same dtype and sizes as the plan's input.
  void setInput(unsigned rank, unsigned index, const TensorView &value);

  void setHyperParameters(const HyperParameters &values);
  /// Updates so far: the step of the bias correction.
  std::uint64_t updates() const;
  void setUpdates(std::uint64_t count);

  /// Runs the commands of `program` with these roles on all ranks, and
  /// returns when all are done.
  void run(std::string_view program = "step", Roles roles = {});

  /// Mean over ranks, of the latest run.
  double loss() const;
  HostTensor output(unsigned rank, unsigned index) const;

  const Statistics &statistics() const;
  /// Of all runs and ranks so far, if they are timed; thread by thread, each in
  /// the order in which it ran.
  std::vector<Span> spans() const;
  /// With the canary on: bytes from the start of the device arena to after the
  /// last byte ever written, the most of any rank; more than the plan's if
  /// something wrote after it.
  std::uint64_t highestByte() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_SESSION_H
