//===- Launch.h - One prepared operator call --------------------*- C++ -*-===//
//
// Everything that a call needs is made at load: the operator's handle, whose
// kernel it is, and its arguments, tensors over the arena. A call then is that
// of a function, for the commonest signatures; for all others it copies the
// arguments to a stack and lets the kernel take them off again. An operator
// that returns new tensors is *hooked*: a probe at load notes its allocations,
// and each call is then given the planned places for its results, and scratch
// for the rest.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_LIB_RUNTIME_EXECUTION_LAUNCH_H
#define FSDP_LIB_RUNTIME_EXECUTION_LAUNCH_H

#include "Guard.h"
#include "Operators.h"

#include <variant>

namespace fsdp {

class Launch {
public:
  using Stack = std::vector<c10::IValue>;

  Launch(const planfile::Plan &plan, const planfile::Launch &launch,
         std::span<const std::string> trusted, Memory &memory, Device &device,
         const at::Generator &generator);

  /// Concurrent streams must not share scratch.
  planfile::Stream stream = planfile::Stream::Compute;

  bool isHooked() const { return !results.empty(); }
  /// Its allocations follow a script. Operators that write their arguments may
  /// allocate, too: sums of a GPU, say.
  bool followsScript() const { return isHooked() || !script.entries.empty(); }
  std::string name() const { return c10::toString(op.operator_name()); }
  const Accesses &accesses() const { return touched; }

  /// Places of results by their index, undefined where there is none; or else
  /// the arguments that it writes.
  std::vector<at::Tensor> written() const;

  /// Runs the operator once and notes its allocations. Results go elsewhere,
  /// and arguments are written to. Returns the bytes of scratch that it needs.
  /// Where it can't run on what is in its buffers now, the first call of a
  /// hooked one does this, without scratch.
  std::size_t probe(Device &device);
  void placeScratch(std::byte *scratch);

  /// The call of an operator that writes its arguments.
  void call(Stack &stack) {
    guard.check();
    auto tensor = [&](std::size_t i) -> at::Tensor & {
      return arguments[i].toTensor();
    };
    if (auto *unary = std::get_if<Handle<Unary>>(&function)) {
      unary->redispatch(keys, tensor(0), tensor(1));
    } else if (auto *binary = std::get_if<Handle<Binary>>(&function)) {
      binary->redispatch(keys, tensor(0), tensor(1), tensor(2));
    } else if (auto *scaled = std::get_if<Handle<Scaled>>(&function)) {
      scaled->redispatch(keys, tensor(0), tensor(1), arguments[2].toScalar(),
                         tensor(3));
    } else {
      stack.assign(arguments.begin(), arguments.end());
      run(stack);
      stack.clear();
    }
  }

  /// The call of an operator that follows a script; returns how many results
  /// had to be copied because they were not where they were planned.
  unsigned callScripted(Stack &stack, Device &device);

private:
  struct Result {
    std::size_t index; ///< Among the returned tensors.
    at::Tensor place;
    std::byte *data;
  };
  /// The signatures that most operators have which write their result.
  using Unary = at::Tensor &(const at::Tensor &, at::Tensor &);
  using Binary = at::Tensor &(const at::Tensor &, const at::Tensor &,
                              at::Tensor &);
  using Scaled = at::Tensor &(const at::Tensor &, const at::Tensor &,
                              const at::Scalar &, at::Tensor &);
  template <typename Signature>
  using Handle = c10::TypedOperatorHandle<Signature>;

  void findFunction();
  /// What one allocation of a call may have: 64 times its tensors, for a
  /// convolution has as many copies of its input as its filter has elements,
  /// and 256 MiB, for what libraries keep.
  std::size_t mostBytes() const;
  /// Runs it and notes its allocations; `keep`: the results, too.
  std::size_t record(Stack &stack, Device &device, bool keep);
  [[noreturn]] void reject(const std::string &what) const;

  void run(Stack &stack) const {
    if (keys.empty())
      op.callBoxed(stack);
    else
      op.redispatchBoxed(keys, &stack);
  }

  c10::OperatorHandle op;
  Stack arguments;
  Guard guard;
  /// What the dispatcher would find in the arguments, and in a rank's thread:
  /// their backend. Empty if there are no tensors, and others decide.
  c10::DispatchKeySet keys;
  /// The operator as a function, if it has one of those signatures: arguments
  /// of a function are not copied.
  std::variant<std::monostate, Handle<Unary>, Handle<Binary>, Handle<Scaled>>
      function;
  Accesses touched;
  std::vector<Result> results;
  AllocationScript script;
  bool isRecorded = false;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_EXECUTION_LAUNCH_H
