//===- OperatorFuzzTest.cpp - Operators with odd arguments ----------------===//
//
// Every operator that a plan may run is called through plans with odd sizes,
// strides, types, elements and constants. Each call begins as one that PyTorch
// makes (Inputs/operator_calls.jsonl, see scripts/record_operator_calls.py) and
// is changed in a few places. Kernels are not instrumented, so every buffer
// ends, or begins, at a page that nobody may touch, as does what they allocate.
// An exception is an answer; a signal is a failure, and names its call.
//
// FSDP_FUZZ_SECONDS says for how long (10), FSDP_FUZZ_SEED where to begin (1),
// FSDP_FUZZ_ONLY of which operator, for one that has failed.
//
//===----------------------------------------------------------------------===//
#include "OperatorCalls.h"
#include "Runtime/Device/CPU.h"
#include "Support/TestPlan.h"
#include "fsdp/Operators/OpFacts.h"
#include "fsdp/Runtime/Comm/Comm.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <optional>
#include <random>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace fsdp;
using namespace fsdp::test;
using planfile::BufferRole;
using planfile::DType;

namespace {

constexpr std::size_t page = 4096;

//===----------------------------------------------------------------------===//
// Guarded memory
//===----------------------------------------------------------------------===//

/// What kernels allocate ends at a page that nobody may touch.
class GuardedAllocator : public c10::Allocator {
public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0)
      return {nullptr, nullptr, &release, c10::kCPU};
    TORCH_CHECK(bytes <= std::size_t{1} << 30, "too much for this test");
    std::size_t used = (bytes + 63) / 64 * 64; // vector loads need it
    std::size_t mapped = (used + 64 + page - 1) / page * page;
    void *raw = mmap(nullptr, mapped + page, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(raw != MAP_FAILED, "no memory");
    auto *end = static_cast<std::byte *>(raw) + mapped;
    mprotect(end, page, PROT_NONE);
    std::byte *place = end - used;
    reinterpret_cast<std::size_t *>(place)[-1] = mapped;
    reinterpret_cast<void **>(place)[-2] = raw;
    return {place, place, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void *target, const void *source,
                 std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

private:
  static void release(void *place) {
    if (place)
      munmap(static_cast<void **>(place)[-2],
             static_cast<std::size_t *>(place)[-1] + page);
  }
};

/// The arena of a plan, with pages in it that nobody may touch.
class GuardedDevice : public CPUDevice {
public:
  explicit GuardedDevice(std::vector<std::uint64_t> pages)
      : pages(std::move(pages)) {}
  ~GuardedDevice() override { protect(PROT_READ | PROT_WRITE); }
  std::byte *allocate(planfile::Space space, std::size_t bytes) override {
    std::byte *place = CPUDevice::allocate(space, bytes);
    if (!arena) {
      arena = place;
      protect(PROT_NONE);
    }
    return place;
  }

private:
  void protect(int how) const {
    for (std::uint64_t offset : pages)
      mprotect(arena + offset, page, how);
  }
  std::vector<std::uint64_t> pages;
  std::byte *arena = nullptr;
};

class GuardedBackend : public Backend {
public:
  explicit GuardedBackend(std::vector<std::uint64_t> pages)
      : local(makeLocalBackend(1)), pages(std::move(pages)) {}
  std::unique_ptr<Device> openDevice(const RankContext &) override {
    return std::make_unique<GuardedDevice>(pages);
  }
  std::unique_ptr<Comm> openComm(const RankContext &rank, unsigned communicator,
                                 const Group &group, Device &device) override {
    return local->openComm(rank, communicator, group, device);
  }
  void abort() noexcept override { local->abort(); }

private:
  std::unique_ptr<Backend> local;
  std::vector<std::uint64_t> pages;
};

//===----------------------------------------------------------------------===//
// A call as a plan
//===----------------------------------------------------------------------===//

/// One launch; every buffer alone between two pages.
class OneLaunch {
public:
  OneLaunch() {
    plan.mesh = {{"shard", 1}};
    plan.groups = {{"shard", {0}}};
    plan.programs = {{"step", {}, 0}};
    plan.on(planfile::Stream::Compute, planfile::Role::Forward);
    plan.deviceBytes = page;
    pages.push_back(0);
  }

  /// A view of a place of its own.
  std::uint32_t add(const TensorSpec &spec, bool isWritten) {
    std::uint64_t bytes = spec.bytes();
    if (bytes > 1 << 22)
      throw Error("too large for this test");
    if (spec.aliasesFirst && first &&
        bytes <= plan.buffers[*first].sizes[0] *
                     planfile::getItemSize(plan.buffers[*first].dtype))
      return view(spec, *first, plan.buffers[*first].offset);
    std::uint64_t room = (bytes + page - 1) / page * page;
    std::uint64_t begin = plan.deviceBytes;
    pages.push_back(begin + room);
    plan.deviceBytes += room + page;
    TestPlan::Buffer root;
    root.role = isWritten ? BufferRole::Output : BufferRole::Input;
    root.sizes = {
        static_cast<std::int64_t>(room / planfile::getItemSize(spec.type))};
    root.dtype = spec.type;
    root.offset = begin;
    root.index =
        isWritten ? outputs++ : static_cast<std::uint32_t>(inputs.size());
    if (!isWritten)
      inputs.push_back(spec);
    std::uint32_t index = plan.add(root);
    if (!first)
      first = index;
    return view(spec, index, begin + (spec.atBegin ? 0 : room - bytes));
  }

  /// Throws where the plan is rejected.
  void run(Random &random) {
    std::vector<std::uint8_t> bytes = plan.flatbuffer();
    planfile::Expected<planfile::PlanFile> file =
        planfile::PlanFile::seal("fuzz.plan", bytes.data(), bytes.size());
    if (!file)
      throw Error(file.error().message);
    SessionOptions options;
    options.backend = std::make_unique<GuardedBackend>(pages);
    Session session(file->plan(), 1, std::move(options));
    for (unsigned i = 0; i != inputs.size(); ++i) {
      const TensorSpec &spec = inputs[i];
      at::Tensor elements = makeElements(spec, random);
      at::Tensor whole = at::zeros(session.inputSizes(i), elements.options());
      std::int64_t first = spec.atBegin ? 0 : whole.numel() - elements.numel();
      whole.narrow(0, first, elements.numel()).copy_(elements);
      HostTensor host = toHost(whole);
      session.setInput(0, i, {host.type, host.sizes, host.bytes});
    }
    for (int times = 0; times != 2; ++times)
      session.run();
  }

  TestPlan plan;

private:
  std::uint32_t view(const TensorSpec &spec, std::uint32_t root,
                     std::uint64_t offset) {
    TestPlan::Buffer buffer;
    buffer.role = BufferRole::Transient;
    buffer.sizes = spec.sizes;
    buffer.strides = spec.strides;
    buffer.dtype = spec.type;
    buffer.offset = offset;
    buffer.root = root;
    return plan.add(buffer);
  }

  std::vector<std::uint64_t> pages;
  std::vector<TensorSpec> inputs;
  std::uint32_t outputs = 0;
  std::optional<std::uint32_t> first;
};

/// The call's value for an argument that the schema has.
Spec specFor(const c10::Argument &argument, const Call &call) {
  auto found = call.find(argument.name());
  if (found != call.end())
    return found->second;
  c10::TypePtr type = argument.type();
  if (type->kind() == c10::TypeKind::OptionalType)
    return {};
  if (argument.default_value()) {
    const c10::IValue &value = *argument.default_value();
    if (value.isBool())
      return value.toBool();
    if (value.isInt())
      return value.toInt();
    if (value.isDouble())
      return value.toDouble();
    if (value.isString())
      return value.toStringRef();
    if (value.isIntList())
      return value.toIntVector();
    if (value.isBoolList()) {
      auto list = value.toBoolList();
      return std::vector<bool>(list.begin(), list.end());
    }
    return {};
  }
  switch (type->kind()) {
  case c10::TypeKind::TensorType:
    return TensorSpec{.sizes = {3, 4}, .strides = {4, 1}};
  case c10::TypeKind::IntType:
  case c10::TypeKind::NumberType:
    return std::int64_t{1};
  case c10::TypeKind::FloatType:
    return 1.0;
  case c10::TypeKind::BoolType:
    return false;
  default:
    return {};
  }
}

/// The results' sizes and types that the functional overload computes.
std::vector<TensorSpec> computeResults(const c10::OperatorHandle &op,
                                       const Call &call, Random &random) {
  auto tensor = [&](const TensorSpec &spec) {
    if (spec.bytes() > 1 << 22)
      throw Error("too large for this test");
    return makeElements(spec, random).as_strided(spec.sizes, spec.strides);
  };
  std::vector<c10::IValue> stack;
  for (const c10::Argument &argument : op.schema().arguments()) {
    Spec spec = specFor(argument, call);
    c10::TypePtr type = argument.type();
    if (auto *t = std::get_if<TensorSpec>(&spec)) {
      stack.emplace_back(tensor(*t));
    } else if (auto *list =
                   std::get_if<std::vector<std::optional<TensorSpec>>>(&spec)) {
      c10::List<at::Tensor> required;
      c10::List<std::optional<at::Tensor>> optional;
      for (const auto &item : *list) {
        if (item)
          required.push_back(tensor(*item));
        optional.push_back(item ? std::optional(tensor(*item)) : std::nullopt);
      }
      if (type->str().find('?') == std::string::npos)
        stack.emplace_back(required);
      else
        stack.emplace_back(optional);
    } else if (auto *dtype = std::get_if<DType>(&spec)) {
      stack.emplace_back(static_cast<std::int64_t>(scalarType(*dtype)));
    } else if (auto *booleans = std::get_if<std::vector<bool>>(&spec)) {
      c10::List<bool> values;
      for (bool value : *booleans)
        values.push_back(value);
      stack.emplace_back(values);
    } else {
      std::visit(
          [&](const auto &value) {
            using T = std::decay_t<decltype(value)>;
            if constexpr (std::is_same_v<T, std::monostate>)
              stack.emplace_back();
            else if constexpr (!std::is_same_v<T, TensorSpec> &&
                               !std::is_same_v<T, DType> &&
                               !std::is_same_v<T, std::vector<bool>> &&
                               !std::is_same_v<
                                   T, std::vector<std::optional<TensorSpec>>>)
              stack.emplace_back(value);
          },
          spec);
      if (stack.back().isInt() && type->str().find("float") == 0)
        stack.back() = static_cast<double>(stack.back().toInt());
    }
  }
  op.callBoxed(stack);
  std::vector<TensorSpec> results;
  for (const c10::IValue &value : stack) {
    TensorSpec spec;
    if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor &result = value.toTensor();
      for (auto [name, type] : types)
        if (scalarType(type) == result.scalar_type())
          spec.type = type;
      spec.sizes = result.sizes().vec();
      spec.strides = rowMajor(spec.sizes);
    }
    results.push_back(std::move(spec));
  }
  return results;
}

/// An argument of the launch.
std::int32_t makeArgument(OneLaunch &one, const Spec &spec, bool isWritten,
                          const std::string &type) {
  TestPlan &plan = one.plan;
  using namespace planfile;
  if (const auto *tensor = std::get_if<TensorSpec>(&spec))
    return static_cast<std::int32_t>(one.add(*tensor, isWritten));
  if (const auto *list =
          std::get_if<std::vector<std::optional<TensorSpec>>>(&spec)) {
    std::vector<std::int32_t> refs;
    for (const auto &item : *list)
      refs.push_back(item ? static_cast<std::int32_t>(one.add(*item, isWritten))
                          : -1);
    return plan.refs(std::move(refs));
  }
  if (const auto *boolean = std::get_if<bool>(&spec))
    return plan.boolean(*boolean);
  if (const auto *integer = std::get_if<std::int64_t>(&spec))
    return plan.integer(*integer);
  if (const auto *real = std::get_if<double>(&spec))
    return plan.number(*real);
  if (const auto *text = std::get_if<std::string>(&spec))
    return plan.constant(Value::Text, [text = *text](auto &fbb) {
      return CreateText(fbb, fbb.CreateString(text));
    });
  if (const auto *dtype = std::get_if<DType>(&spec))
    return plan.constant(Value::Type, [dtype = *dtype](auto &fbb) {
      return CreateType(fbb, dtype);
    });
  if (const auto *integers = std::get_if<std::vector<std::int64_t>>(&spec)) {
    if (type.find("Tensor") != std::string::npos)
      return plan.refs({});
    if (type.find("bool") != std::string::npos)
      return plan.constant(Value::Bools, [](auto &fbb) {
        return CreateBools(fbb, fbb.CreateVector(std::vector<bool>()));
      });
    return plan.ints(*integers);
  }
  if (const auto *reals = std::get_if<std::vector<double>>(&spec))
    return plan.constant(Value::Floats, [values = *reals](auto &fbb) {
      return CreateFloats(fbb, fbb.CreateVector(values));
    });
  if (const auto *booleans = std::get_if<std::vector<bool>>(&spec))
    return plan.constant(Value::Bools, [values = *booleans](auto &fbb) {
      return CreateBools(fbb, fbb.CreateVector(values));
    });
  return plan.nothing();
}

struct Operators {
  std::map<std::string, std::vector<std::pair<std::string, Call>>> calls =
      readCalls(FSDP_OPERATOR_CALLS);
  /// Of an out overload: that which returns its results.
  std::map<std::string_view, std::string_view> functional;
  std::vector<const operators::OpFacts *> all;
  bool isLoud = false; ///< Says what it calls.

  Operators() {
    for (const operators::OpFacts &facts : operators::getAllOpFacts()) {
      if (!facts.outOverload.empty())
        functional[facts.outOverload] = facts.name;
      if (facts.isSafeInPlan() && facts.numReturns != 0 && !facts.returnsList &&
          calls.count(std::string(baseOf(facts.name))))
        all.push_back(&facts);
    }
  }

  static c10::OperatorHandle find(std::string_view name) {
    std::string text(name);
    std::size_t dot = text.find('.');
    return c10::Dispatcher::singleton().findSchemaOrThrow(
        ("aten::" + text.substr(0, dot)).c_str(),
        dot == std::string::npos ? "" : text.substr(dot + 1).c_str());
  }

  /// Case number `n` of an operator; throws where it is rejected.
  void run(const operators::OpFacts &facts, std::uint64_t n) const {
    std::seed_seq seed(facts.name.begin(), facts.name.end());
    Random random(seed);
    random.seed(random() + n);
    const auto &recorded = calls.at(std::string(baseOf(facts.name)));
    c10::OperatorHandle op = find(facts.name);
    auto functionalName = functional.find(facts.name);
    // Calls of this overload, or else what another one calls alike.
    std::vector<const Call *> own, any;
    for (const auto &[name, call] : recorded) {
      any.push_back(&call);
      if (name == facts.name || (functionalName != functional.end() &&
                                 name == functionalName->second))
        own.push_back(&call);
    }
    Call call =
        *(own.empty() ? any
                      : own)[pick(random, (own.empty() ? any : own).size())];

    std::vector<TensorSpec> results;
    bool hasOut = functionalName != functional.end();
    if (hasOut || !facts.isMutating())
      results = computeResults(hasOut ? find(functionalName->second) : op, call,
                               random);
    const auto &arguments = op.schema().arguments();
    std::vector<Spec> specs;
    std::size_t next = 0;
    for (const c10::Argument &argument : arguments) {
      bool isWritten =
          argument.alias_info() && argument.alias_info()->isWrite();
      if (hasOut && isWritten && next != results.size())
        specs.emplace_back(results[next++]);
      else
        specs.push_back(specFor(argument, call));
    }
    for (std::size_t times = pick(random, 4); times != 0; --times) {
      std::size_t i = pick(random, specs.size() + results.size());
      if (i < specs.size())
        change(specs[i], random);
      else if (!hasOut)
        change(results[i - specs.size()], random);
    }

    if (isLoud) {
      std::ostringstream text;
      text << facts.name << ", case " << n << ":";
      for (std::size_t i = 0; i != specs.size(); ++i)
        text << "\n  " << arguments[i].name() << " = " << specs[i];
      for (const TensorSpec &result : results)
        text << "\n  result " << result;
      std::puts(text.str().c_str());
      std::fflush(stdout);
    }
    OneLaunch one;
    std::vector<std::int32_t> args;
    for (std::size_t i = 0; i != specs.size(); ++i)
      args.push_back(makeArgument(one, specs[i],
                                  arguments[i].alias_info() &&
                                      arguments[i].alias_info()->isWrite(),
                                  arguments[i].type()->str()));
    std::vector<std::uint32_t> places;
    if (!facts.isMutating())
      for (const TensorSpec &result : results)
        places.push_back(one.add(result, true));
    one.plan.launch(std::string(facts.schema), args, "", places);
    one.run(random);
  }
};

/// What the parent learns of a child that has died.
struct Progress {
  std::size_t op;
  std::uint64_t n, runs, answers;
};

std::uint64_t fromEnvironment(const char *name, std::uint64_t otherwise) {
  const char *text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(OperatorFuzz, StaysInItsTensorsMemory) {
  const std::uint64_t seconds = fromEnvironment("FSDP_FUZZ_SECONDS", 10);
  const std::uint64_t rounds = 4; // cases of an operator in a row
  Operators operators;
  const char *only = std::getenv("FSDP_FUZZ_ONLY");
  operators.isLoud = only != nullptr;
  if (only)
    std::erase_if(operators.all, [&](const operators::OpFacts *facts) {
      return facts->name != only;
    });
  ASSERT_FALSE(operators.all.empty())
      << "expected the name of an overload with a call in operator_calls.jsonl "
         "that a plan may run, found "
      << only;
  auto *progress = static_cast<Progress *>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *progress = {0, rounds * fromEnvironment("FSDP_FUZZ_SEED", 1), 0, 0};
  std::uint64_t base = progress->n, tooLong = 0;
  std::map<std::string, std::string> broken;
  auto begin = std::chrono::steady_clock::now();
  auto isOver = [&] {
    return std::chrono::steady_clock::now() - begin >
           std::chrono::seconds(seconds);
  };
  while (!isOver()) {
    // One operator by itself is for a debugger.
    pid_t child = only ? 0 : fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (!only) // warnings of PyTorch's
        std::freopen("/dev/null", "w", stderr);
      for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGALRM})
        std::signal(signal, SIG_DFL); // no report of a sanitizer's
      at::set_num_threads(1);
      static GuardedAllocator allocator;
      c10::SetCPUAllocator(&allocator, /*priority=*/50);
      c10::InferenceMode guard;
      for (; !isOver(); progress->op = 0, base += rounds, progress->n = base)
        for (; progress->op != operators.all.size();
             ++progress->op, progress->n = base)
          for (; progress->n != base + rounds && !isOver(); ++progress->n) {
            alarm(10);
            ++progress->runs;
            try {
              operators.run(*operators.all[progress->op], progress->n);
              ++progress->answers;
            } catch (const std::exception &error) {
              // The call is rejected, which is what is asked for.
              if (only)
                std::printf("case %llu: %.300s\n",
                            (unsigned long long)progress->n, error.what());
            }
            alarm(0);
          }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
      break;
    std::string name(operators.all[progress->op]->name);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
      ++tooLong;
    else
      broken.emplace(name, "case " + std::to_string(progress->n) + ": status " +
                               std::to_string(status));
    base = progress->n / rounds * rounds;
    ++progress->n;
  }
  for (const auto &[name, how] : broken)
    ADD_FAILURE() << name << " " << how;
  std::printf(
      "%zu operators, %llu calls, %llu of them accepted, %llu too long\n",
      operators.all.size(), (unsigned long long)progress->runs,
      (unsigned long long)progress->answers, (unsigned long long)tooLong);
  munmap(progress, sizeof(Progress));
}

} // namespace
