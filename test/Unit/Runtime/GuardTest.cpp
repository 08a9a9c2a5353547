//===- GuardTest.cpp - What kernels rely on and do not check --------------===//
#include "Runtime/Execution/Guard.h"
#include "OneRank.h"
#include "fsdp/Operators/OpFacts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using namespace fsdp::test;
using planfile::BufferRole;
using planfile::DType;
using testing::HasSubstr;

namespace {

std::string schemaOf(std::string_view name) {
  return std::string(operators::lookupOpFacts(name)->schema);
}

template <typename Job> std::string errorOf(Job job, Failure kind) {
  try {
    job();
  } catch (const Error &error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "";
}

/// Why a plan is rejected before it runs.
std::string rejection(OneRank &one) {
  return errorOf([&] { one.load(); }, Failure::Rejected);
}

/// What a run says with these elements in input 0.
std::string failure(Session &session, const at::Tensor &value) {
  session.setInput(0, 0, toHost(value));
  return errorOf([&] { session.run(); }, Failure::RankFailed);
}

// A rule that nobody may use, or a fact without its rule, would be a lie.
TEST(Guard, EveryGuardedOperatorHasARule) {
  for (const operators::OpFacts &facts : operators::getAllOpFacts()) {
    std::string base(facts.name.substr(0, facts.name.find('.')));
    if (base.size() > 1 && base.back() == '_' && !base.starts_with("__"))
      base.pop_back();
    if (facts.isSafeInPlan()) {
      EXPECT_EQ(facts.safety == operators::Safety::Guarded,
                Guard::hasRule(base))
          << facts.name;
    }
  }
}

TEST(Guard, IndicesOfMaxPooling) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t indices = one.input({1, 2, 2, 2}, 0, DType::I64);
  std::uint32_t grad = one.input({1, 2, 2, 2}, 1);
  std::uint32_t self = one.input({1, 2, 4, 4}, 2);
  std::uint32_t out = one.output({1, 2, 4, 4}, 0);
  plan.launch(schemaOf("max_pool2d_with_indices_backward.grad_input"),
              {arg(grad), arg(self), plan.ints({2, 2}), plan.ints({2, 2}),
               plan.ints({0, 0}), plan.ints({1, 1}), plan.boolean(false),
               arg(indices), arg(out)});
  Session &session = one.load();
  at::Tensor places = at::full({1, 2, 2, 2}, 15, at::kLong);
  EXPECT_EQ(failure(session, places), "");
  for (std::int64_t bad : {16l, -1l, 1'000'000'000'000l}) {
    OneRank again = {};
    again.plan = plan;
    places.flatten()[5] = bad;
    EXPECT_THAT(failure(again.load(), places),
                HasSubstr("indices: expected elements from 0 to 15, found " +
                          std::to_string(bad)));
  }
}

TEST(Guard, IndicesOfExpandedTensorsAreSeen) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t row = one.input({3}, 0, DType::I64);
  TestPlan::Buffer view{BufferRole::Transient, {2, 3}};
  view.dtype = DType::I64;
  view.strides = TestPlan::Numbers{0, 1};
  view.root = row;
  view.offset = plan.buffers[row].offset;
  std::uint32_t indices = plan.add(view);
  std::uint32_t grad = one.input({2, 3, 4}, 1), out = one.output({8, 4}, 0);
  plan.launch(schemaOf("embedding_dense_backward"),
              {arg(grad), arg(indices), plan.integer(8), plan.integer(-1),
               plan.boolean(true)},
              "embedding", {out});
  Session &session = one.load();
  EXPECT_EQ(failure(session, at::tensor({0, 7, 3}, at::kLong)), "");
  EXPECT_THAT(failure(session, at::tensor({0, 3, 8}, at::kLong)),
              HasSubstr("indices: expected elements from 0 to 7, found 8"));
}

// The least number divided by the divisor -1 that it has in common with others.
TEST(Guard, LeastCommonMultiples) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t self = one.input({2}, 0, DType::I64);
  std::uint32_t other = one.input({2}, 1, DType::I64);
  std::uint32_t out = one.output({2}, 0, DType::I64);
  plan.launch(schemaOf("lcm.out"), {arg(self), arg(other), arg(out)});
  Session &session = one.load();
  session.setInput(0, 1, toHost(at::full({2}, 5, at::kLong)));
  EXPECT_EQ(failure(session, at::tensor({-INT64_MAX, 0l}, at::kLong)), "");
  EXPECT_THAT(failure(session, at::tensor({INT64_MIN, 0l}, at::kLong)),
              HasSubstr("self: expected elements from -9223372036854775807"));
}

// Integer division traps, which no handler can answer.
TEST(Guard, QuotientsOfIntegers) {
  for (const char *name : {"floor_divide.out", "remainder.Tensor_out",
                           "fmod.Tensor_out", "div.out_mode"}) {
    for (std::int64_t bad : {0, -1}) {
      OneRank one;
      TestPlan &plan = one.plan;
      std::uint32_t divisor = one.input({2}, 0, DType::I64);
      std::uint32_t self = one.input({2}, 1, DType::I64);
      std::uint32_t out = one.output({2}, 0, DType::I64);
      std::vector<std::int32_t> args = {arg(self), arg(divisor)};
      if (std::string_view(name) == "div.out_mode")
        args.push_back(plan.constant(planfile::Value::Text, [](auto &fbb) {
          return planfile::CreateText(fbb, fbb.CreateString("floor"));
        }));
      args.push_back(arg(out));
      plan.launch(schemaOf(name), args);
      Session &session = one.load();
      session.setInput(0, 1, toHost(at::full({2}, INT64_MIN, at::kLong)));
      EXPECT_EQ(failure(session, at::tensor({1, 7}, at::kLong)), "") << name;
      EXPECT_THAT(failure(session, at::tensor({1l, bad}, at::kLong)),
                  HasSubstr(bad ? "integers that -1 divides"
                                : "expected integers to divide by, found 0"))
          << name;
    }
  }
}

TEST(Guard, SizesThatBelongTogether) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({4, 8}, 0), grad = one.input({4, 9}, 1);
  std::uint32_t mean = one.input({4, 1}, 2), out = one.output({4, 8}, 0);
  plan.launch(schemaOf("native_layer_norm_backward"),
              {arg(grad), arg(x), plan.ints({8}), arg(mean), arg(mean),
               plan.nothing(), plan.nothing(),
               plan.constant(planfile::Value::Bools,
                             [](auto &fbb) {
                               return planfile::CreateBools(
                                   fbb, fbb.CreateVector(std::vector<bool>{
                                            true, false, false}));
                             })},
              "norm", {out, planfile::none, planfile::none});
  EXPECT_THAT(rejection(one),
              HasSubstr("aten::native_layer_norm_backward: "
                        "grad_out: expected sizes [4, 8], found "
                        "[4, 9]"));
}

TEST(Guard, WrittenElementsAreApart) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({2, 3}, 0), y = one.output({8}, 0);
  TestPlan::Buffer view{BufferRole::Transient, {2, 3}};
  view.strides = TestPlan::Numbers{2, 1};
  view.root = y;
  view.offset = plan.buffers[y].offset;
  std::uint32_t overlapping = plan.add(view);
  plan.launch(schemaOf("neg.out"), {arg(x), arg(overlapping)});
  EXPECT_THAT(rejection(one),
              HasSubstr("out: expected elements apart from each "
                        "other, found strides [2, 1] of sizes "
                        "[2, 3]"));
}

// It is a divisor, also where one element is all there is.
TEST(Guard, StrideAlongWhichTensorsAreJoined) {
  for (const char *name : {"cat.out", "stack.out"}) {
    OneRank one;
    bool isStack = std::string_view(name) == "stack.out";
    TestPlan::Numbers sizes =
        isStack ? TestPlan::Numbers{1} : TestPlan::Numbers{1, 1};
    std::uint32_t x = one.input(sizes, 0);
    std::uint32_t y = one.add(BufferRole::Output, {1, 1}, 0, DType::F32,
                              TestPlan::Numbers{0, 1});
    one.plan.launch(schemaOf(name),
                    {one.plan.refs({arg(x)}), one.plan.integer(0), arg(y)});
    EXPECT_THAT(rejection(one),
                HasSubstr("out: expected a stride of at least 1, found 0"))
        << name;
  }
}

TEST(Guard, ElementsOfAGroupNormAreWhereItsKernelReads) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t grad = one.add(BufferRole::Input, {2, 4, 3}, 0, DType::F32,
                               TestPlan::Numbers{12, 0, 1});
  std::uint32_t x = one.input({2, 4, 3}, 1), y = one.output({2, 4, 3}, 0);
  std::uint32_t mean = one.input({2, 2}, 2);
  plan.launch(
      schemaOf("native_group_norm_backward"),
      {arg(grad), arg(x), arg(mean), arg(mean), plan.nothing(), plan.integer(2),
       plan.integer(4), plan.integer(3), plan.integer(2),
       plan.constant(planfile::Value::Bools,
                     [](auto &fbb) {
                       return planfile::CreateBools(
                           fbb, fbb.CreateVector(
                                    std::vector<bool>{true, false, false}));
                     })},
      "norm", {y, planfile::none, planfile::none});
  EXPECT_THAT(rejection(one),
              HasSubstr("grad_out: expected contiguous elements, of one memory "
                        "format, found strides [12, 0, 1]"));
}

TEST(Guard, AttentionOfNothing) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t query = one.input({2, 2, 0, 8}, 0);
  std::uint32_t key = one.input({2, 2, 4, 8}, 1);
  std::uint32_t out = one.output({2, 2, 0, 8}, 0);
  plan.launch(schemaOf("_scaled_dot_product_flash_attention_for_cpu"),
              {arg(query), arg(key), arg(key), plan.number(0),
               plan.boolean(false), plan.nothing(), plan.nothing()},
              "attention", {out, planfile::none});
  EXPECT_THAT(rejection(one), HasSubstr("query, key: expected elements, found "
                                        "none"));
}

// A stride as large as the padding makes small tensors of it; the kernel's own
// memory is not small.
TEST(Guard, PaddingThatIsAllThereIs) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({1, 1, 4, 4}, 0), w = one.input({1, 1, 2, 2}, 1);
  std::uint32_t y = one.output({1, 1, 3, 1}, 0);
  std::int64_t large = 1 << 24;
  plan.launch(schemaOf("convolution"),
              {arg(x), arg(w), plan.nothing(), plan.ints({large, large}),
               plan.ints({large, 0}), plan.ints({1, 1}), plan.boolean(false),
               plan.ints({0, 0}), plan.integer(1)},
              "convolution", {y});
  EXPECT_THAT(rejection(one),
              HasSubstr("padding: expected one that makes at most 67109120 "
                        "elements, found [16777216, 0]"));
}

TEST(Guard, ScaleThatDoesNotFit) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({1, 1, 4}, 0), y = one.output({1, 1, 8}, 0);
  plan.launch(schemaOf("upsample_nearest1d.out"),
              {arg(x), plan.ints({8}), plan.number(1e-30), arg(y)});
  EXPECT_THAT(rejection(one),
              HasSubstr("scales: expected the scale from 4 to 8"));
}

// The kernel would look for the next number for ever.
TEST(Guard, RandomNumbersFromTheLast) {
  for (std::int64_t below : {0, 1}) {
    OneRank one;
    TestPlan &plan = one.plan;
    std::uint32_t out = one.output({4}, 0);
    plan.launch(schemaOf("random_.from"),
                {arg(out), plan.integer(INT64_MAX - below), plan.nothing(),
                 plan.nothing()});
    if (below)
      EXPECT_EQ(rejection(one), "");
    else
      EXPECT_THAT(rejection(one),
                  HasSubstr("from: expected a number below 2^63 - 1"));
  }
}

TEST(Guard, OthersRunOnlyByName) {
  OneRank one;
  TestPlan &plan = one.plan;
  std::uint32_t x = one.input({2}, 0, DType::I64);
  std::uint32_t y = one.output({2}, 0, DType::I64);
  // One of PyTorch's own tests: it will never be on a list.
  plan.launch(schemaOf("_test_warn_in_autograd.out"), {arg(x), arg(y)});
  EXPECT_THAT(
      rejection(one),
      HasSubstr("name it with --trust aten::_test_warn_in_autograd.out"));
  SessionOptions options;
  options.trustedOperators = {"aten::_test_warn_in_autograd.out"};
  Session &session = one.load(std::move(options));
  EXPECT_EQ(failure(session, at::tensor({4, 6}, at::kLong)), "");
  EXPECT_TRUE(
      at::equal(toTorch(session.output(0, 0)), at::tensor({4, 6}, at::kLong)));
}

} // namespace
