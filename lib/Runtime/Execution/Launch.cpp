//===- Launch.cpp - One prepared operator call ----------------------------===//
#include "Launch.h"

#include "../Comm/Mesh.h"
#include "fsdp/Runtime/Support/Error.h"

using namespace fsdp;

/// Scratch is aligned as the planned memory of any device is.
static std::size_t roundUp(std::size_t bytes) {
  constexpr std::size_t alignment = 512;
  return (bytes + alignment - 1) / alignment * alignment;
}

namespace {
/// The thread's allocations follow a script, until something is thrown or done.
class ScriptScope {
public:
  ScriptScope(Device &device, AllocationScript &script) : device(device) {
    device.follow(&script);
  }
  ~ScriptScope() { device.follow(nullptr); }
  ScriptScope(const ScriptScope &) = delete;
  ScriptScope &operator=(const ScriptScope &) = delete;

private:
  Device &device;
};
} // namespace

/// Calls `function` with each tensor among `arguments`, alone or in a list.
template <typename Function>
static void forEachTensor(const Launch::Stack &arguments, Function function) {
  for (const c10::IValue &argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined())
      function(argument.toTensor());
    else if (argument.isTensorList())
      for (const at::Tensor &tensor : argument.toTensorList())
        if (tensor.defined())
          function(tensor);
}

/// The keys of the backend that has the tensors among `arguments`.
static c10::DispatchKeySet keysOf(const Launch::Stack &arguments) {
  c10::DispatchKeySet keys;
  forEachTensor(arguments, [&](const at::Tensor &tensor) {
    keys = keys | tensor.key_set();
  });
  if (keys.empty())
    return {};
  return c10::DispatchKeySet(c10::toRuntimePerBackendFunctionalityKey(
      c10::DispatchKey::Dense, keys.highestBackendKey()));
}

static std::string nameOf(const planfile::Plan &plan, std::uint32_t op) {
  return std::string(stringOf(plan, plan.operators()->Get(op)->name()));
}

static Guard guardOf(const c10::OperatorHandle &op,
                     const Launch::Stack &arguments) {
  try {
    return {op.schema(), arguments};
  } catch (const Error &error) {
    throw Error(c10::toString(op.operator_name()) + ": " + error.what());
  }
}

Launch::Launch(const planfile::Plan &plan, const planfile::Launch &launch,
               std::span<const std::string> trusted, Memory &memory,
               Device &device, const at::Generator &generator)
    : op(resolveOperator(
          nameOf(plan, launch.op()),
          stringOf(plan, plan.operators()->Get(launch.op())->schema()),
          trusted)),
      arguments(makeArguments(op, plan, launch, memory, device, generator)),
      guard(guardOf(op, arguments)), keys(keysOf(arguments)),
      touched(accessesOf(op.schema(), plan, launch)) {
  // Else PyTorch would say so, over several pages.
  bool isOnGPU = keys.has(c10::DispatchKey::CUDA);
  if (!keys.empty() &&
      !op.hasComputedKernelForDispatchKey(isOnGPU ? c10::DispatchKey::CUDA
                                                  : c10::DispatchKey::CPU))
    reject(std::string("has no kernel for ") + (isOnGPU ? "cuda" : "cpu") +
           "; capture the model for that device");
  findFunction();
  if (!launch.results())
    return;
  for (unsigned i = 0; i != launch.results()->size(); ++i)
    if (std::uint32_t buffer = launch.results()->Get(i); buffer != none)
      results.push_back({i, memory.tensor(buffer), memory.data(buffer)});
  if (results.empty() && touched.writes.empty())
    reject("neither writes an argument nor has a result that is used");
}

void Launch::findFunction() {
  // Of others we know no signature in C++.
  if (!op.operator_name().name.starts_with("aten::") || keys.empty())
    return;
  std::string kinds;
  for (const c10::Argument &argument : op.schema().arguments()) {
    const c10::AliasInfo *alias = argument.alias_info();
    c10::TypeKind kind = argument.type()->kind();
    kinds += kind == c10::TypeKind::NumberType   ? 's'
             : kind != c10::TypeKind::TensorType ? '?'
             : alias && alias->isWrite()         ? 'w'
                                                 : 'r';
  }
  if (kinds == "rw")
    function = op.typed<Unary>();
  else if (kinds == "rrw")
    function = op.typed<Binary>();
  else if (kinds == "rrsw")
    function = op.typed<Scaled>();
}

std::vector<at::Tensor> Launch::written() const {
  std::vector<at::Tensor> tensors;
  for (const Result &result : results) {
    tensors.resize(result.index + 1);
    tensors.back() = result.place;
  }
  for (std::size_t i = 0; results.empty() && i != arguments.size(); ++i) {
    const c10::AliasInfo *alias = op.schema().arguments()[i].alias_info();
    if (alias && alias->isWrite() && arguments[i].isTensor())
      tensors.push_back(arguments[i].toTensor());
  }
  return tensors;
}

void Launch::reject(const std::string &what) const {
  throw Error(name() + ": " + what);
}

namespace {
/// Results must not outlive the call: on another thread the allocator would
/// take planned memory for its own.
struct Cleared {
  Launch::Stack &stack;
  ~Cleared() { stack.clear(); }
};
} // namespace

std::size_t Launch::mostBytes() const {
  std::size_t bytes = 0;
  forEachTensor(arguments,
                [&](const at::Tensor &tensor) { bytes += tensor.nbytes(); });
  for (const Result &result : results)
    bytes += result.place.nbytes();
  return (std::size_t{256} << 20) + 64 * bytes;
}

std::size_t Launch::probe(Device &device) {
  Stack stack;
  try {
    guard.check();
    return record(stack, device, /*keep=*/false);
  } catch (const c10::LinAlgError &) {
  } catch (const c10::IndexError &) {
  } catch (const Error &) {
    if (isHooked() && !guard.looksAtElements())
      throw;
  } catch (const c10::OutOfMemoryError &error) {
    reject(error.what_without_backtrace()); // no step will have it, either
  } catch (...) {
    if (isHooked())
      throw;
  }
  // It dislikes the zeros that are there now, or anything else: the first call
  // tells.
  script = {};
  isRecorded = false;
  return 0;
}

std::size_t Launch::record(Stack &stack, Device &device, bool keep) {
  script = {};
  script.recording = true;
  script.most = mostBytes();
  std::vector<std::pair<std::size_t, std::size_t>> placed; // entry, result
  {
    ScriptScope scope(device, script);
    Cleared cleared{stack};
    stack.assign(arguments.begin(), arguments.end());
    run(stack);
    for (std::size_t r = 0; r != results.size(); ++r) {
      const Result &result = results[r];
      std::string what = "result " + std::to_string(result.index);
      if (result.index >= stack.size() || !stack[result.index].isTensor() ||
          !stack[result.index].toTensor().defined())
        reject(what + " is not a tensor");
      const at::Tensor &tensor = stack[result.index].toTensor();
      if (tensor.sizes() != result.place.sizes() ||
          tensor.scalar_type() != result.place.scalar_type())
        reject(what + " has other sizes or another type than its buffer");
      if (tensor.device() != result.place.device())
        reject(what + " comes back on " + tensor.device().str() +
               ", and its buffer is on " + result.place.device().str() +
               ": each step would wait for a copy");
      if (keep)
        result.place.copy_(tensor);
      // Where the layout differs the values are copied, at every call.
      bool fits = tensor.storage_offset() == 0 && tensor.numel() != 0;
      for (std::int64_t d = 0; d != tensor.dim(); ++d)
        fits &=
            tensor.size(d) == 1 || tensor.stride(d) == result.place.stride(d);
      if (!fits)
        continue;
      // The latest one: an address that was freed within the call can return.
      for (std::size_t e = script.entries.size(); e-- > 0;)
        if (script.entries[e].place == tensor.storage().data()) {
          if (script.entries[e].bytes <= result.place.storage().nbytes())
            placed.emplace_back(e, r);
          break;
        }
    }
    // Dropping the results is part of the recording: what outlives the call
    // (a library's cache) must never be given memory of ours.
    stack.clear();
    device.synchronize();
  }
  script.recording = false;
  isRecorded = true;

  for (auto [entry, result] : placed) {
    script.entries[entry].place = results[result].data;
    script.entries[entry].isResult = true;
  }
  std::size_t scratch = 0;
  for (AllocationScript::Entry &entry : script.entries) {
    if (entry.isResult)
      continue;
    entry.place = nullptr; // until placeScratch; for ever if not released
    if (entry.released)
      scratch += roundUp(entry.bytes);
  }
  return scratch;
}

void Launch::placeScratch(std::byte *scratch) {
  for (AllocationScript::Entry &entry : script.entries)
    if (entry.released && !entry.isResult) {
      entry.place = scratch;
      scratch += roundUp(entry.bytes);
    }
}

unsigned Launch::callScripted(Stack &stack, Device &device) {
  guard.check();
  if (!isRecorded) {
    record(stack, device, /*keep=*/true);
    return static_cast<unsigned>(results.size());
  }
  Cleared cleared{stack};
  stack.assign(arguments.begin(), arguments.end());
  {
    script.next = 0;
    ScriptScope scope(device, script);
    run(stack);
  }
  unsigned misses = 0;
  for (Result &result : results) {
    const at::Tensor &returned = stack[result.index].toTensor();
    if (returned.const_data_ptr() == result.data || returned.numel() == 0)
      continue;
    if (returned.sizes() != result.place.sizes())
      reject("result " + std::to_string(result.index) +
             " has other sizes than its buffer");
    result.place.copy_(returned);
    ++misses;
  }
  return misses;
}
