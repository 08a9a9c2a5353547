//===- RejectionTest.cpp - Plans that must not be loaded ------------------===//
#include "Support/TestPlan.h"
#include "Tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using namespace fsdp::test;
using testing::HasSubstr;

namespace {

std::string rejection(TestPlan plan, unsigned ranks = 2) {
  std::vector<std::uint8_t> bytes = plan.flatbuffer();
  try {
    Session session(*planfile::GetPlan(bytes.data()), ranks);
  } catch (const Error &error) {
    EXPECT_EQ(error.kind(), Failure::Rejected);
    return error.what();
  }
  return "";
}

/// The small plan with one launch more, on its first two buffers.
TestPlan with(const std::string &schema, std::vector<std::int32_t> args,
              TestPlan plan = makeSmallPlan(2),
              std::vector<std::uint32_t> results = {}) {
  plan.on(planfile::Stream::Compute, planfile::Role::Forward)
      .launch(schema, std::move(args), "bad", std::move(results));
  return plan;
}

// covers: Processes
TEST(Rejection, NumberOfRanks) {
  EXPECT_EQ(rejection(makeSmallPlan(2), 3),
            "the plan is for 2 ranks, not for 3");
}

TEST(Rejection, UnknownOperator) {
  std::string text = rejection(with("mine::op(Tensor self) -> ()", {0}));
  EXPECT_THAT(text, HasSubstr("operator mine::op is not known here"));
  EXPECT_THAT(text, HasSubstr("--load"));
}

TEST(Rejection, UnsafeOperator) {
  TestPlan plan = makeSmallPlan(2);
  std::int32_t name = plan.constant(planfile::Value::Text, [](auto &fbb) {
    return planfile::CreateText(fbb, fbb.CreateString("/etc/passwd"));
  });
  std::int32_t nothing = plan.nothing();
  EXPECT_THAT(
      rejection(
          with("aten::from_file(str filename, bool? shared=None, int? "
               "size=0, *, ScalarType? dtype=None, Layout? layout=None, "
               "Device? device=None, bool? pin_memory=None) -> Tensor",
               {name, nothing, nothing, nothing, nothing, nothing, nothing},
               plan, {0})),
      HasSubstr("operator aten::from_file is not known to stay in its tensors' "
                "memory; if you trust the plan, name it with --trust "
                "aten::from_file"));
}

TEST(Rejection, OperatorsOfOtherSpaces) {
  EXPECT_THAT(rejection(with("quantized::relu6(Tensor qX, bool inplace=False) "
                             "-> Tensor",
                             {0})),
              HasSubstr("quantized::relu6"));
}

TEST(Rejection, AnotherSchema) {
  std::string text =
      rejection(with("aten::neg.out(Tensor self) -> Tensor", {0}));
  EXPECT_THAT(text, HasSubstr("the plan says aten::neg.out(Tensor self)"));
  EXPECT_THAT(text, HasSubstr("this LibTorch says aten::neg.out(Tensor self, "
                              "*, Tensor(a!) out)"));
}

// A rank has one generator, which it need not name, and draws from no other.
TEST(Rejection, OtherGenerators) {
  TestPlan plan = makeSmallPlan(2);
  std::int32_t p = plan.number(0.5), nothing = plan.nothing();
  EXPECT_THAT(
      rejection(with("aten::bernoulli_.float(Tensor(a!) self, float "
                     "p=0.5, *, Generator? generator=None) -> Tensor(a!)",
                     {0, p, p}, plan)),
      HasSubstr("argument generator: Float where the schema has Generator"));
  EXPECT_THAT(rejection(with("aten::rand.out(SymInt[] size, *, Tensor(a!) "
                             "out) -> Tensor(a!)",
                             {plan.ints({4}), 0}, plan)),
              HasSubstr("may not be run from a plan"));
  std::int32_t no = plan.boolean(false);
  EXPECT_THAT(
      rejection(with("aten::_scaled_dot_product_flash_attention_for_cpu(Tensor "
                     "query, Tensor key, Tensor value, float dropout_p=0., "
                     "bool is_causal=False, *, Tensor? attn_mask=None, float? "
                     "scale=None) -> (Tensor output, Tensor logsumexp)",
                     {4, 4, 4, p, no, nothing, nothing}, plan, {4, 4})),
      HasSubstr("draws random numbers, but takes no generator"));
}

TEST(Rejection, ConstantsOfAnotherType) {
  TestPlan plan = makeSmallPlan(2);
  std::int32_t wrong = plan.boolean(true), nothing = plan.nothing();
  EXPECT_THAT(rejection(with(
                  "aten::index_select.out(Tensor self, int dim, Tensor index, "
                  "*, Tensor(a!) out) -> Tensor(a!)",
                  {0, wrong, 1, 1}, plan)),
              HasSubstr("argument dim: Bool where the schema has int"));
  EXPECT_THAT(rejection(with("aten::neg.out(Tensor self, *, Tensor(a!) out) -> "
                             "Tensor(a!)",
                             {nothing, 1}, plan)),
              HasSubstr("argument self: None where the schema has Tensor"));
  EXPECT_THAT(rejection(with("aten::neg.out(Tensor self, *, Tensor(a!) out) -> "
                             "Tensor(a!)",
                             {0}, plan)),
              HasSubstr("takes 2 arguments, the plan has 1"));
}

// covers: gradients of another shape or device
TEST(Rejection, CollectivesOfAnotherSize) {
  TestPlan plan = makeSmallPlan(2);
  plan.on(planfile::Stream::Gather, planfile::Role::Forward).allGather(0, 1, 0);
  EXPECT_THAT(rejection(plan),
              HasSubstr("of unit u: 16 elements to 16 over 2"));
}

// covers: flat parameter on the wrong device
// covers: _check_flat_params_on_expected_device
TEST(Rejection, BuffersOutsideTheArena) {
  TestPlan plan = makeSmallPlan(2);
  plan.buffers[0].offset = plan.deviceBytes;
  EXPECT_THAT(rejection(plan), HasSubstr("of an arena of"));
}

TEST(Rejection, ResultsOfAnotherShape) {
  EXPECT_THAT(rejection(with("aten::mm(Tensor self, Tensor mat2) -> Tensor",
                             {4, 4}, makeSmallPlan(2), {0})),
              testing::Not(""));
}

} // namespace
