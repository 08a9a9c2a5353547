//===- LaunchTest.cpp - Hooked operators, copies, constants ---------------===//
#include "OneRank.h"
#include "Tensors.h"

#include <ATen/Parallel.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using testing::HasSubstr;
using testing::ThrowsMessage;
using namespace fsdp::test;
using planfile::BufferRole;
using planfile::DType;

namespace {

TEST(Launch, HookedResultsLandInTheirPlaces) {
  OneRank one;
  std::uint32_t x = one.input({4, 64}, 0), y = one.output({4, 64}, 0);
  std::uint32_t mean = one.output({4, 1}, 1), rstd = one.output({4, 1}, 2);
  TestPlan &plan = one.plan;
  plan.launch("aten::native_layer_norm(Tensor input, SymInt[] "
              "normalized_shape, Tensor? weight, Tensor? bias, float eps) -> "
              "(Tensor, Tensor, Tensor)",
              {arg(x), plan.ints({64}), plan.nothing(), plan.nothing(),
               plan.number(1e-5)},
              "norm", {y, mean, rstd});
  // The same with a result that nobody wants.
  std::uint32_t z = one.output({4, 64}, 3);
  plan.launch("aten::native_layer_norm(Tensor input, SymInt[] "
              "normalized_shape, Tensor? weight, Tensor? bias, float eps) -> "
              "(Tensor, Tensor, Tensor)",
              {arg(y), plan.ints({64}), plan.nothing(), plan.nothing(),
               plan.number(1e-5)},
              "again", {z, planfile::none, planfile::none});
  Session &session = one.load();
  EXPECT_THAT(session.report().hookedOperators,
              testing::ElementsAre("aten::native_layer_norm"));
  EXPECT_GT(session.report().scratchBytes, 0u);
  for (int step = 0; step != 3; ++step) {
    at::Tensor value = at::randn({4, 64});
    session.setInput(0, 0, toHost(value));
    session.run();
    auto [a, b, c] = at::native_layer_norm(value, {64}, {}, {}, 1e-5);
    auto [d, e, f] = at::native_layer_norm(a, {64}, {}, {}, 1e-5);
    EXPECT_TRUE(at::equal(toTorch(session.output(0, 0)), a));
    EXPECT_TRUE(at::equal(toTorch(session.output(0, 1)), b));
    EXPECT_TRUE(at::equal(toTorch(session.output(0, 2)), c));
    EXPECT_TRUE(at::equal(toTorch(session.output(0, 3)), d));
    EXPECT_EQ(session.statistics().hookMisses, 0u);
    EXPECT_EQ(session.statistics().allocations.heap, 0u);
  }
}

TEST(Launch, AttentionNeedsNoHeap) {
  at::set_num_threads(1);
  at::Tensor value = at::randn({2, 4, 16, 8});
  auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(value, value,
                                                                value, 0, true);
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t q = one.input({2, 4, 16, 8}, 0);
  std::uint32_t out = one.add(BufferRole::Output, {2, 4, 16, 8}, 0, DType::F32,
                              o.strides().vec());
  std::uint32_t lse =
      one.add(BufferRole::Output, {2, 4, 16}, 1, DType::F32, l.strides().vec());
  plan.launch("aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, "
              "Tensor key, Tensor value, float dropout_p=0., bool "
              "is_causal=False, *, Tensor? attn_mask=None, float? scale=None) "
              "-> (Tensor output, Tensor logsumexp)",
              {arg(q), arg(q), arg(q), plan.number(0), plan.boolean(true),
               plan.nothing(), plan.nothing()},
              "attention", {out, lse});
  Session &session = one.load();
  session.setInput(0, 0, toHost(value));
  session.run();
  EXPECT_TRUE(at::allclose(toTorch(session.output(0, 0)), o));
  EXPECT_TRUE(at::allclose(toTorch(session.output(0, 1)), l));
  EXPECT_EQ(session.statistics().hookMisses, 0u);
  EXPECT_EQ(session.statistics().allocations.heap, 0u);
}

// An operator that writes its argument makes the largest numbers, and more, on
// the way; probing leaves the zeros that a later one takes for indices.
TEST(Launch, OperatorsThatAllocateInsideNeedNoHeap) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({4, 64}, 0),
                z = one.add(BufferRole::Transient, {4});
  std::uint32_t y = one.output({4}, 0);
  plan.launch("aten::logsumexp.out(Tensor self, int[1] dim, bool "
              "keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
              {arg(x), plan.ints({1}), plan.boolean(false), arg(z)}, "sums",
              {});
  plan.launch("aten::neg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
              {arg(z), arg(y)}, "negative", {});
  Session &session = one.load();
  EXPECT_GT(session.report().scratchBytes, 0u);
  for (int step = 0; step != 3; ++step) {
    at::Tensor value = at::randn({4, 64});
    session.setInput(0, 0, toHost(value));
    session.run();
    EXPECT_TRUE(
        at::equal(toTorch(session.output(0, 0)), -at::logsumexp(value, 1)));
    EXPECT_EQ(session.statistics().allocations.heap, 0u);
    EXPECT_GT(session.statistics().allocations.planned, 0u);
  }
}

// A matrix of zeros has no inverse: the probe learns nothing, the step must.
TEST(Launch, OperatorsThatDislikeZeros) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({3, 3}, 0), y = one.output({3, 3}, 0);
  std::uint32_t info = one.output({}, 1, DType::I32);
  plan.launch("aten::linalg_inv_ex(Tensor A, *, bool check_errors=False) -> "
              "(Tensor inverse, Tensor info)",
              {arg(x), plan.boolean(true)}, "inverse", {y, info});
  Session &session = one.load();
  for (int step = 0; step != 3; ++step) {
    at::Tensor value = at::randn({3, 3}) + 4 * at::eye(3);
    session.setInput(0, 0, toHost(value));
    session.run();
    EXPECT_TRUE(at::allclose(toTorch(session.output(0, 0)), value.inverse()));
  }
}

// What a failed call has made lies in planned memory, which nobody may free.
TEST(Launch, HookedCallThatFails) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({3, 4}, 0), i = one.input({2}, 1, DType::I64);
  std::uint32_t y = one.output({3, 2}, 0);
  plan.launch("aten::index_select(Tensor self, int dim, Tensor index) -> "
              "Tensor",
              {arg(x), plan.integer(1), arg(i)}, "select", {y});
  Session &session = one.load();
  session.setInput(0, 0, toHost(at::randn({3, 4})));
  session.setInput(0, 1, toHost(at::tensor({1, 9}, at::kLong)));
  EXPECT_THAT([&] { session.run(); },
              ThrowsMessage<Error>(HasSubstr(
                  "node select: INDICES element is out of DATA bounds, id=9")));
}

TEST(Launch, AnotherLayoutIsCopiedAndCounted) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({3, 5}, 0), y = one.output({5, 3}, 0);
  TestPlan::Buffer view{BufferRole::Transient, {5, 3}};
  view.strides = TestPlan::Numbers{1, 5};
  view.root = x;
  view.offset = plan.buffers[x].offset;
  std::uint32_t t = plan.add(view);
  // ATen makes the negative of a transposed tensor transposed.
  plan.launch("aten::neg(Tensor self) -> Tensor", {arg(t)}, "neg", {y});
  Session &session = one.load();
  at::Tensor value = at::randn({3, 5});
  session.setInput(0, 0, toHost(value));
  session.run();
  EXPECT_TRUE(at::equal(toTorch(session.output(0, 0)), -value.t()));
  EXPECT_EQ(session.statistics().hookMisses, 1u);
}

TEST(Launch, NumbersForTensorsDoNotAllocate) {
  OneRank one;
  TestPlan &plan = one.plan;
  const char *mul = "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) "
                    "out) -> Tensor(a!)";
  const char *add = "aten::add.out(Tensor self, Tensor other, *, Scalar "
                    "alpha=1, Tensor(a!) out) -> Tensor(a!)";
  std::uint32_t x = one.input({100}, 0), i = one.input({7}, 1, DType::I64);
  std::uint32_t y = one.output({100}, 0);
  std::uint32_t j = one.output({7}, 1, DType::I64);
  std::uint32_t k = one.output({7}, 2, DType::F32);
  plan.launch(mul, {arg(x), plan.number(0.1), arg(y)});
  plan.launch(add, {arg(y), plan.integer(2), plan.number(0.3), arg(y)});
  plan.launch(add, {arg(i), plan.integer(2), plan.integer(1), arg(j)});
  plan.launch(mul, {arg(i), plan.number(0.5), arg(k)});
  Session &session = one.load();
  at::Tensor value = at::randn({100}), index = at::arange(7, at::kLong);
  session.setInput(0, 0, toHost(value));
  session.setInput(0, 1, toHost(index));
  session.run();
  EXPECT_TRUE(at::equal(toTorch(session.output(0, 0)),
                        at::add(at::mul(value, 0.1), 2, 0.3)));
  EXPECT_TRUE(at::equal(toTorch(session.output(0, 1)), index + 2));
  EXPECT_TRUE(at::equal(toTorch(session.output(0, 2)), index * 0.5));
  // The last has an i64 input: its number stays f64, and both are cast each
  // time.
  EXPECT_LE(session.statistics().allocations.heap, 2u);
}

TEST(Launch, Copies) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({3, 4}, 0), flat = one.output({12}, 0);
  std::uint32_t half = one.output({3, 4}, 1, DType::BF16);
  std::uint32_t turned = one.output({4, 3}, 2);
  TestPlan::Buffer view{BufferRole::Transient, {4, 3}};
  view.strides = TestPlan::Numbers{1, 4};
  view.root = x;
  view.offset = plan.buffers[x].offset;
  std::uint32_t t = plan.add(view);
  plan.copy(x, flat);
  plan.copy(x, half);
  plan.copy(t, turned);
  Session &session = one.load();
  at::Tensor value = at::randn({3, 4});
  session.setInput(0, 0, toHost(value));
  session.run();
  EXPECT_TRUE(at::equal(toTorch(session.output(0, 0)), value.view({12})));
  EXPECT_TRUE(
      at::equal(toTorch(session.output(0, 1)), value.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(toTorch(session.output(0, 2)), value.t()));
}

TEST(Launch, ListsOfTensors) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t a = one.input({2, 3}, 0), b = one.input({2, 3}, 1);
  std::uint32_t y = one.output({4, 3}, 0);
  plan.launch("aten::cat.out(Tensor[] tensors, int dim=0, *, Tensor(a!) out) "
              "-> Tensor(a!)",
              {plan.refs({arg(a), arg(b)}), plan.integer(0), arg(y)});
  std::uint32_t i = one.input({2}, 2, DType::I64);
  std::uint32_t z = one.output({2, 2}, 1);
  plan.launch("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor",
              {arg(a), plan.refs({-1, arg(i)})}, "index", {z});
  Session &session = one.load();
  at::Tensor left = at::randn({2, 3}), right = at::randn({2, 3});
  at::Tensor index = at::tensor({2, 0}, at::kLong);
  session.setInput(0, 0, toHost(left));
  session.setInput(0, 1, toHost(right));
  session.setInput(0, 2, toHost(index));
  session.run();
  EXPECT_TRUE(at::equal(toTorch(session.output(0, 0)), at::cat({left, right})));
  EXPECT_TRUE(
      at::equal(toTorch(session.output(0, 1)), left.index_select(1, index)));
}

// The kernel makes as many rows as the plan says, and only then are they seen
// to be others than those of the result.
TEST(Launch, AKernelThatAsksForTooMuchMemoryIsRejected) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t grad = one.input({2, 16}, 0);
  std::uint32_t index =
      one.add(BufferRole::Input, {2}, 1, DType::I64); // zeros at load
  std::uint32_t out = one.output({8, 16}, 0);
  plan.launch("aten::embedding_dense_backward(Tensor grad_output, Tensor "
              "indices, SymInt num_weights, SymInt padding_idx, bool "
              "scale_grad_by_freq) -> Tensor",
              {arg(grad), arg(index), plan.integer(1 << 23), plan.integer(-1),
               plan.boolean(false)},
              "rows", {out});
  EXPECT_THAT(
      [&] { one.load(); },
      ThrowsMessage<Error>(HasSubstr(
          "aten::embedding_dense_backward: asks for 536870912 bytes while "
          "it runs; with such arguments and results it may have "
          "268477440")));
}

TEST(Launch, AKernelThatResizesIsRejected) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({3, 4}, 0), y = one.output({3, 5}, 0);
  plan.launch("aten::neg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
              {arg(x), arg(y)});
  EXPECT_THAT([&] { one.load(); },
              ThrowsMessage<Error>(HasSubstr("a kernel has resized buffer 1")));
}

} // namespace
