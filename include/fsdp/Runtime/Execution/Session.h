//===- Session.h - A loaded plan, ready to step -----------------*- C++ -*-===//
//
// A `Session` holds a plan prepared for the ranks of its process, all of the
// plan's or some: the first lives on the thread that calls `run`, the others on
// threads of their own that sleep between runs. Sessions of one run load and
// run the same programs in the same order. Tensors are of host memory, dense
// and row-major. Parameters, gradients and states go in and out as full tensors
// or as the boxes that a rank holds; the session cuts them into the shards of
// the plan's units and puts them together again. Everything throws
// `fsdp::Error`; after a rank of the run has failed, all sessions only rethrow
// its failure. Not thread-safe: one caller at a time. ATen runs single-threaded
// on every rank: PyTorch's number of threads becomes 1 on the thread that
// calls.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_EXECUTION_SESSION_H
#define FSDP_RUNTIME_EXECUTION_SESSION_H

#include "fsdp/Archive/Box.h"
#include "fsdp/Runtime/Comm/Comm.h"
#include "fsdp/Runtime/Processes/Lifeline.h"
#include "fsdp/Runtime/Support/Error.h"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace at {
class Tensor;
} // namespace at

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

using archive::Box;

/// A box of a tensor, and its elements: `value` has the box's sizes.
struct BoxedTensor {
  Box box;
  HostTensor value;
};

/// A box of a tensor, and where its elements are.
struct BoxView {
  Box box;
  planfile::DType type;
  std::byte *data;                   ///< Of the first element.
  std::vector<std::int64_t> strides; ///< In elements.
  c10::Device device;                ///< Whose memory it is.
};

/// A tensor that outlives a step.
struct TensorName {
  enum class Kind : std::uint8_t {
    Parameter,
    Gradient,       ///< The reduced one.
    OptimizerState, ///< `state` of a parameter.
    Buffer          ///< A model buffer, which every rank has.
  };
  Kind kind = Kind::Parameter;
  std::string_view name = {};  ///< Of a parameter also an alias.
  std::string_view state = {}; ///< exp_avg, exp_avg_sq or momentum.

  static TensorName parameter(std::string_view name) {
    return {Kind::Parameter, name};
  }
  static TensorName gradient(std::string_view name) {
    return {Kind::Gradient, name};
  }
  static TensorName optimizerState(std::string_view name,
                                   std::string_view state) {
    return {Kind::OptimizerState, name, state};
  }
  static TensorName buffer(std::string_view name) {
    return {Kind::Buffer, name};
  }
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

/// What the generators of the ranks begin with, as after `torch.manual_seed`:
/// that of rank r with `first` + r, or all with `first`.
struct Seeds {
  std::uint64_t first = 0;
  bool areShared = false;

  /// "7" or "7:shared"; throws for other texts and from 2^63 on.
  static Seeds parse(std::string_view text);
};

/// The commands of a run, by role.
struct Roles {
  bool forward = true, backward = true, update = true;
};

struct SessionOptions {
  /// The kind of device; null: CPU, local.
  std::shared_ptr<Backend> backend;
  /// Where sessions of one run meet. Null, for one that has all ranks: in
  /// memory.
  std::shared_ptr<Store> store;
  /// Who hears first that the run has failed; null: the session looks itself.
  std::shared_ptr<Lifeline> lifeline;
  /// The index of the device on this machine.
  unsigned device = 0;
  /// The longest wait for another rank: at least 1 ms.
  std::chrono::milliseconds timeout = defaultTimeout;
  /// Processes of the run on this machine: they share its cores and memory.
  unsigned processes = 1;
  /// A second thread on every rank for all streams but compute; where streams
  /// overlap without, as a GPU's do, there is none.
  bool overlap = false;
  /// Fill transient memory with a pattern, so that `highestByte` can tell.
  bool canary = false;
  /// Other than 0: random delays before commands, NaN in gathered memory before
  /// its gather and in all that ends after its last use. The bits must not
  /// change.
  std::uint64_t chaosSeed = 0;
  /// Keep a `Span` of every command that is run.
  bool timed = false;
  /// Without one of them, runs leave out all on the compute stream but
  /// collectives, or all else, and what they compute is garbage: for whoever
  /// measures what is left.
  bool computes = true, communicates = true;
  /// Operators that plans may run beside those that `OpFacts::safety` allows,
  /// by full name: what `loadOperators` returned, or the user trusts.
  std::vector<std::string> trustedOperators;
};

/// Loads a library that registers operators, and returns their full names.
std::vector<std::string> loadOperators(const char *library);

/// Hears what an operator has written that was launched for a node of the
/// graph, on the thread of its rank: views, which the next launch may
/// overwrite.
using Observer = std::function<void(unsigned rank, std::string_view node,
                                    std::span<const at::Tensor> values)>;

/// When the device ran a command of the plan, in seconds of a clock that all
/// ranks share. What the runtime adds to wait for the readers of a collective's
/// source is a drain, and names that collective.
struct Span {
  unsigned rank, program;
  std::uint32_t command;
  bool isDrain;
  planfile::Stream stream;
  std::uint64_t run;    ///< Which of its program, from 1.
  std::uint64_t update; ///< How many updates were before it.
  double begin, end;
};

/// Of the latest run, the session's first rank unless said otherwise; seconds
/// and bytes. "All ranks" are the session's. Times are the device's if the run
/// is timed; otherwise the host's, which may run ahead.
struct Statistics {
  double forward = 0, backward = 0, update = 0;
  /// Inside collectives: of those, or beside them on other streams.
  double collectives = 0;
  /// How long nothing was computed, as what is sent or copied was waited for.
  /// Nothing if streams of the device overlap, and the run is not timed.
  std::optional<double> exposed;
  AllocationCounts allocations; ///< Summed over ranks.
  std::uint64_t hookMisses = 0; ///< Results that had to be copied; all ranks.
};

/// What was found at load, per rank.
struct LoadReport {
  std::uint64_t arenaBytes = 0;     ///< Planned device memory.
  std::uint64_t hostBytes = 0;      ///< Planned host memory.
  std::uint64_t scratchBytes = 0;   ///< Probed scratch of hooked operators.
  std::uint64_t workspaceBytes = 0; ///< Of communicators.
  /// Of a GPU: what libraries of communicators are expected to allocate there,
  /// and what was taken before the plan was loaded, by CUDA's context, cuBLAS
  /// and other processes.
  std::uint64_t libraryBytes = 0, takenBytes = 0;
  std::vector<std::string> hookedOperators; ///< Names, each once.
};

class Session {
public:
  /// Loads a verified plan for these of its ranks (as many as the product of
  /// its mesh) and runs its `init` program. The sessions of all other ranks
  /// must do so, too: this returns, or throws, when all have. The plan must
  /// outlive the session.
  Session(const planfile::Plan &plan, RankRange ranks,
          SessionOptions options = {});
  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  RankRange ranks() const;
  const LoadReport &report() const;

  /// All tensors of a kind by their primary names, in the plan's order; of
  /// model buffers, those that the plan expects from the checkpoint, sorted.
  std::vector<TensorName> tensors(TensorName::Kind kind) const;

  std::vector<std::int64_t> sizes(const TensorName &tensor) const;
  /// What `rank`, one of the session's, holds of a tensor: at most 2 n - 1
  /// boxes of n axes, in storage order; none if it holds nothing.
  std::vector<BoxedTensor> boxes(const TensorName &tensor, unsigned rank) const;
  /// The same without the elements.
  std::vector<Box> heldBoxes(const TensorName &tensor, unsigned rank) const;
  /// Their elements alone, of the tensor's dtype, box after box, each dense and
  /// row-major: into memory, which has as many bytes, and out of it.
  void readHeld(const TensorName &tensor, unsigned rank,
                std::span<std::byte> to) const;
  void writeHeld(const TensorName &tensor, unsigned rank,
                 std::span<const std::byte> from);
  /// The same as it lies in the session's memory, as long as that lives, to
  /// read and write between two runs. Throws for model buffers, of which a
  /// session must know when they change.
  std::vector<BoxView> views(const TensorName &tensor, unsigned rank);
  /// Makes `readHeld` into this memory fast, until the session ends; it
  /// outlives the session.
  void pin(std::span<std::byte> memory);
  /// Writes what the session's ranks hold of a box of a tensor, whoever holds
  /// the rest. Converts to the tensor's dtype.
  void writeBox(const TensorName &tensor, const Box &box,
                const TensorView &value);

  // The same for a whole tensor. Reading puts together what all ranks of the
  // run hold: all of its sessions read the same tensors in the same order.

  /// Rejects other sizes. Padding is 0. Of a model buffer, every rank gets
  /// `value`, and the next run starts with `init`, which may read it.
  void write(const TensorName &tensor, const TensorView &value);
  /// Of a model buffer, the first one.
  HostTensor read(const TensorName &tensor) const;
  /// The same for the session of rank 0 alone: the others get no bytes.
  HostTensor gather(const TensorName &tensor) const;

  /// All bits of all parameters in one number, which does not depend on who
  /// holds what: the sum of one for each element. All sessions of the run ask
  /// at once.
  std::uint64_t digestParameters() const;

  /// Between and after a unit's parameters lies padding, which must stay 0.
  /// A sentence for each unit whose flat parameter has a pad that is not, and,
  /// after a run without update, for each whose reduced gradient has. Of all
  /// ranks of the run: all of its sessions ask at once.
  std::vector<std::string> findDirtyPadding(bool withGradients) const;

  // What draws random numbers does so from the generator of its rank, in the
  // order of the runs and of their commands; all programs share it.

  /// At first they are those of `Seeds{}`.
  void setSeeds(Seeds seeds);
  /// Where the generator of a rank is, as `torch.Generator.get_state` has it:
  /// a device's own bytes, the same number each time.
  std::vector<std::byte> generatorState(unsigned rank) const;
  /// Throws for what is no such state.
  void setGeneratorState(unsigned rank, std::span<const std::byte> state);

  // Inputs, outputs and the loss are a program's own. The bytes of an input may
  // be others' while another program runs: set it before each run.

  unsigned inputCount(std::string_view program = "step") const;
  planfile::DType inputType(unsigned index,
                            std::string_view program = "step") const;
  std::vector<std::int64_t> inputSizes(unsigned index,
                                       std::string_view program = "step") const;
  /// Same dtype and sizes as the plan's input.
  void setInput(unsigned rank, unsigned index, const TensorView &value,
                std::string_view program = "step");

  /// The same out of a tensor of PyTorch, of any layout: in host memory, which
  /// may be changed at once, or in that of the rank's device.
  void setInput(unsigned rank, unsigned index, const at::Tensor &value,
                std::string_view program = "step");

  /// For callers with tensors on the device of the session's first rank: what
  /// that is given from now on comes after the work that the thread has given
  /// its current stream; and that stream goes on after all that the device has
  /// been given. The host does not wait.
  void awaitCaller();
  void letCallerAwait();
  /// Of the session's first rank.
  c10::Device device() const;

  /// Of all decay groups, or of one that the plan has; for all later runs. The
  /// weight decay of a group that the plan calls no_decay stays 0.
  void setHyperParameters(const HyperParameters &values);
  void setHyperParameters(unsigned decayGroup, const HyperParameters &values);
  /// Updates so far, of which the plan may have skipped some: it counts these
  /// itself, for the bias correction.
  std::uint64_t updates() const;
  void setUpdates(std::uint64_t count);

  /// Runs the commands of `program` with these roles on all ranks, and
  /// returns when all are done; with devices that run ahead, when these have
  /// been given all, and who reads what they compute waits. What goes wrong in
  /// between is thrown by that call, or by a later run. The update may be a run
  /// of its own after that of forward and backward, with no run in between.
  void run(std::string_view program = "step", Roles roles = {});

  /// Of all later runs; see `SessionOptions::timed`.
  void setTimed(bool isTimed);

  /// Of all later runs, for whoever compares values; nothing: of none, which
  /// costs nothing. A device that runs ahead is waited for.
  void observe(Observer observer);

  /// Mean over ranks, of the latest run, which must have been of this program.
  double loss(std::string_view program = "step") const;
  /// The same into a tensor of one number, which may be on the device of the
  /// session's first rank: then the host does not wait.
  void copyLoss(at::Tensor target, std::string_view program = "step") const;
  /// That of all gradients of the latest update, before they were clipped by
  /// it; with a grad scaler, that of the scaled ones. Nothing where the plan
  /// does not clip.
  std::optional<double> gradientNorm() const;
  /// Of any rank of the run: all of its sessions read the same outputs in the
  /// same order.
  HostTensor output(unsigned rank, unsigned index,
                    std::string_view program = "step") const;

  /// The largest of the numbers that all sessions of the run give, who all call
  /// this: a small collective.
  std::uint64_t largest(std::uint64_t number);

  const Statistics &statistics() const;
  /// Of all runs and ranks so far, if they are timed; thread by thread, each in
  /// the order in which it ran.
  std::vector<Span> spans() const;
  /// The latest collectives of each rank here, at most 64, in the order in
  /// which they began. One that ends at 0 is under way. May be called from any
  /// thread at any time.
  std::vector<Span> latestCollectives() const;
  /// With the canary on: bytes from the start of the device arena to after the
  /// last byte ever written, the most of any of the session's ranks; more than
  /// the plan's if something wrote after it.
  std::uint64_t highestByte() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_EXECUTION_SESSION_H
