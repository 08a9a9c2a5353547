//===- LaunchOverhead.cpp - What a launch costs over the bare operator ----===//
//
// One plan with nothing but many small `add.out`, against the same call through
// the dispatcher with its stack filled by hand. The difference per launch is
// what the runtime adds, and is to stay below 0.1 us.
//
//===----------------------------------------------------------------------===//
#include "Support/TestPlan.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>
#include <c10/core/InferenceMode.h>

using namespace fsdp;
using planfile::BufferRole;

static constexpr int launches = 1000;
static const char *const addOut =
    "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) "
    "out) -> Tensor(a!)";
static const char *const add =
    "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";

static std::vector<std::uint8_t> makePlan(unsigned ranks, bool hooked) {
  test::TestPlan plan;
  plan.mesh = {{"shard", ranks}};
  plan.groups = {{"shard", {0}}};
  plan.programs = {{"step", {}, 0}};
  plan.deviceBytes = 128;
  std::uint32_t x = plan.add({BufferRole::Input, {8}, 0});
  std::uint32_t y = plan.add({BufferRole::Transient, {8}, 64});
  auto arg = [](std::uint32_t buffer) {
    return static_cast<std::int32_t>(buffer);
  };
  std::int32_t one = plan.integer(1);
  plan.on(planfile::Stream::Compute, planfile::Role::Forward);
  for (int i = 0; i != launches; ++i)
    if (hooked)
      plan.launch(add, {arg(x), arg(x), one}, "add", {y});
    else
      plan.launch(addOut, {arg(x), arg(x), one, arg(y)}, "add");
  return plan.flatbuffer();
}

static void perLaunch(benchmark::State &state) {
  state.counters["per_launch"] = benchmark::Counter(
      launches, benchmark::Counter::kIsIterationInvariantRate |
                    benchmark::Counter::kInvert);
}

/// Arguments: ranks, hooked.
static void planned(benchmark::State &state) {
  auto bytes = makePlan(static_cast<unsigned>(state.range(0)), state.range(1));
  Session session(*planfile::GetPlan(bytes.data()),
                  static_cast<unsigned>(state.range(0)));
  for (auto _ : state)
    session.run();
  perLaunch(state);
}
BENCHMARK(planned)->Args({1, 0})->Args({1, 1})->Args({2, 0});

static void boxed(benchmark::State &state) {
  c10::InferenceMode guard;
  at::set_num_threads(1);
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "out");
  at::Tensor x = at::ones({8}), y = at::empty({8});
  std::vector<c10::IValue> stack;
  for (auto _ : state)
    for (int i = 0; i != launches; ++i) {
      stack.emplace_back(x);
      stack.emplace_back(x);
      stack.emplace_back(1);
      stack.emplace_back(y);
      op.callBoxed(stack);
      stack.clear();
    }
  perLaunch(state);
}
BENCHMARK(boxed);

static void functional(benchmark::State &state) {
  c10::InferenceMode guard;
  at::set_num_threads(1);
  at::Tensor x = at::ones({8});
  for (auto _ : state)
    for (int i = 0; i != launches; ++i)
      benchmark::DoNotOptimize(at::add(x, x));
  perLaunch(state);
}
BENCHMARK(functional);

BENCHMARK_MAIN();
