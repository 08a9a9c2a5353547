//===- StepsTest.cpp - What the steps of a plan have in common ------------===//

#include "PlanRejection.h"

#include "fsdp/PlanFile/Steps.h"

#include <gtest/gtest.h>

using namespace fsdp::planfile;
using fsdp::test::makeSmallPlan;
using fsdp::test::TestPlan;
using namespace fsdp::test::small;

namespace {

/// One command of the small plan, which nobody checks: its unit and
/// communicator, and its buffers, with a star if they are written.
std::string spell(const std::function<void(TestPlan &)> &add) {
  TestPlan test = makeSmallPlan();
  add(test.on(Stream::Compute, Role::Update));
  std::vector<uint8_t> bytes = test.flatbuffer();
  const Plan &plan = *GetPlan(bytes.data());
  const auto &commands = *plan.programs()->Get(1)->commands();
  const Command &command = *commands.Get(commands.size() - 1);
  std::string text = toSnakeCase(EnumNameStep(command.step_type()));
  if (uint32_t unit = getUnit(command); unit != none)
    text += " of " + std::to_string(unit);
  if (uint32_t communicator = getCommunicator(command); communicator != none)
    text += " over " + std::to_string(communicator);
  forEachBuffer(plan, command, [&](uint32_t buffer, bool isWritten) {
    text += " " + std::to_string(buffer) + (isWritten ? "*" : "");
  });
  return text;
}

// Communicator 0 is that of another stream.
TEST(Steps, NameTheirBuffersUnitsAndCommunicators) {
  EXPECT_EQ(spell([](TestPlan &plan) { plan.allGather(3, 4, 0); }),
            "all_gather of 0 over 1 3 4*");
  EXPECT_EQ(spell([](TestPlan &plan) { plan.reduceScatter(3, 4, 0, 1, 1); }),
            "reduce_scatter of 0 over 1 3 4*");
  EXPECT_EQ(spell([](TestPlan &plan) { plan.allReduce(3, 3, none, 1, 1); }),
            "all_reduce over 1 3 3*");
  // It sends nothing.
  EXPECT_EQ(spell([](TestPlan &plan) { plan.piece(3, 4, 0); }),
            "piece of 0 3 4*");
  EXPECT_EQ(spell([](TestPlan &plan) { plan.copy(3, 4); }), "copy 3 4*");
  EXPECT_EQ(spell([](TestPlan &plan) { plan.zero(4); }), "zero 4*");
  EXPECT_EQ(spell([](TestPlan &plan) { plan.record(0); }), "record");
  EXPECT_EQ(spell([](TestPlan &plan) { plan.wait(0); }), "wait");
}

TEST(Steps, WhatIsMeasuredSoFarIsRead) {
  auto measure = [](uint32_t initial) {
    return spell([=](TestPlan &plan) {
      plan.measure(MeasureKind::AbsMax, 0, 3, 4, {{0, 8}}, initial);
    });
  };
  EXPECT_EQ(measure(none), "measure of 0 3 4*");
  EXPECT_EQ(measure(5), "measure of 0 3 4* 5");
}

TEST(Steps, LaunchesReadArgumentsAndWriteResults) {
  EXPECT_EQ(spell([](TestPlan &plan) {
              int32_t list = plan.refs({3, -1, 4}), number = plan.integer(2);
              plan.launch("test::op(Tensor a) -> Tensor", {5, list, number}, "",
                          {6, none, 7});
            }),
            "launch 5 3 4 6* 7*");
}

TEST(Steps, UpdatesWriteAGradientThatTheyScale) {
  auto update = [](TestPlan::Scalars scalars) {
    return spell([=](TestPlan &plan) {
      plan.update(UpdateRule::AdamW, 0, {expAvg, expAvgSq}, {{0, 8}}, scalars);
    });
  };
  EXPECT_EQ(update({hyper}), "update of 0 0* 9 1* 2* 15");
  EXPECT_EQ(update({hyper, none, none, 5, 6}), "update of 0 0* 9 1* 2* 15 5 6");
  EXPECT_EQ(update({hyper, 5}), "update of 0 0* 9* 1* 2* 15 5");
  EXPECT_EQ(update({hyper, none, 6}), "update of 0 0* 9* 1* 2* 15 6");
}

TEST(Steps, NamesAreSpelledInSnakeCase) {
  EXPECT_EQ(toSnakeCase("ReduceScatter"), "reduce_scatter");
  EXPECT_EQ(toSnakeCase("Copy"), "copy");
  EXPECT_EQ(toSnakeCase(""), "");
}

} // namespace
