//===- UpdateCheckTest.cpp - What updates of a plan file must mean --------===//

#include "PlanRejection.h"

#include <gtest/gtest.h>

using namespace fsdp::planfile;
using fsdp::test::makeOffloadedPlan;
using fsdp::test::makeSmallPlan;
using fsdp::test::rejection;
using fsdp::test::rejectionAfter;
using fsdp::test::TestPlan;
using namespace fsdp::test::small;

namespace {

// The first buffer that a test adds to the small plan.
constexpr uint32_t added = 16;

/// Why the small plan is rejected with one more update.
std::string update(std::vector<Interval> intervals,
                   std::vector<uint32_t> states = {expAvg, expAvgSq},
                   TestPlan::Scalars scalars = {hyper},
                   Role role = Role::Update,
                   UpdateRule rule = UpdateRule::AdamW) {
  return rejectionAfter([&](TestPlan &plan) {
    TestPlan::Buffer scalar;
    scalar.offset = plan.deviceBytes;
    plan.deviceBytes += 64;
    EXPECT_EQ(plan.add(scalar), added);
    plan.on(Stream::Compute, role).update(rule, 0, states, intervals, scalars);
  });
}

// covers: _post_backward_use_sharded_grad_views
TEST(UpdateCheck, ElementsAreTheUnits) {
  EXPECT_EQ(update({{0, 20}}), "accepted");
  EXPECT_EQ(update({{0, 33}}),
            "small.plan: programs[1] (step).commands[15]: expected ascending "
            "intervals inside [0, 32), found [0, 33)");
  EXPECT_EQ(update({{0, 8}, {4, 12}}),
            "small.plan: programs[1] (step).commands[15]: expected ascending "
            "intervals inside [8, 32), found [4, 12)");
  EXPECT_EQ(update({{0, 8}}, {expAvg, expAvgSq}, {hyper}, Role::Backward),
            "small.plan: programs[1] (step).commands[15]: expected the role "
            "Update, found Backward");
}

TEST(UpdateCheck, StatesAreThoseOfTheRule) {
  EXPECT_EQ(update({{0, 8}}, {6, expAvgSq}),
            "small.plan: programs[1] (step).commands[15]: expected the state "
            "exp_avg of the unit, found buffers[6]");
  EXPECT_EQ(update({{0, 8}}, {expAvgSq, expAvg}),
            "small.plan: programs[1] (step).commands[15]: expected the state "
            "exp_avg of the unit, found buffers[2] (exp_avg_sq)");
  EXPECT_EQ(update({{0, 8}}, {expAvg}),
            "small.plan: programs[1] (step).commands[15]: expected 2 states of "
            "adamw, found 1");
  EXPECT_EQ(update({{0, 8}}, {}, {hyper}, Role::Update, UpdateRule::SGD),
            "accepted");
  EXPECT_EQ(update({{0, 8}}, {expAvg}, {hyper}, Role::Update, UpdateRule::SGD),
            "small.plan: programs[1] (step).commands[15]: expected the state "
            "momentum of the unit, found buffers[1] (exp_avg)");
  EXPECT_EQ(update({{0, 8}}, {}, {hyper}, Role::Update, UpdateRule(2)),
            "small.plan: programs[1] (step).commands[15]: expected a rule, "
            "found 2");
}

TEST(UpdateCheck, HyperParametersAreThoseOfADecayGroup) {
  EXPECT_EQ(update({{0, 8}}, {expAvg, expAvgSq}, {loss}),
            "small.plan: programs[1] (step).commands[15]: expected the "
            "hyper-parameters of a decay group, found buffers[7]");
  EXPECT_EQ(
      update({{0, 8}}, {expAvg, expAvgSq}, {none}),
      "small.plan: programs[1] (step).commands[15]: expected buffer index "
      "below 17, found none");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.addHyper(1); }),
            "accepted");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.addHyper(0); }),
            "small.plan: buffers[16]: expected another decay group, found a "
            "second decay group 0");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[plan.addHyper(1)].name = "no_decay";
            }),
            "accepted");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[plan.addHyper(1)].name = "decay";
            }),
            "small.plan: buffers[16] (decay): expected a decay group without "
            "name or called no_decay, found decay");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[plan.addHyper(1)].offset = 0;
            }),
            "small.plan: buffers[16]: expected bytes that nothing else uses, "
            "found bytes of buffers[15]");
  EXPECT_EQ(
      rejectionAfter(
          [](TestPlan &plan) { plan.buffers[hyper].dtype = DType::I64; }),
      "small.plan: buffers[15]: expected 7 dense f64 on the host, found 7 "
      "i64 in Host memory");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.buffers[hyper].sizes = {6}; }),
      "small.plan: buffers[15]: expected 7 dense f64 on the host, found 6 "
      "f64 in Host memory");
}

// They are the caller's: what a command writes, no caller has set.
TEST(UpdateCheck, NothingWritesHyperParameters) {
  const char *sentence =
      "small.plan: programs[1] (step).commands[15]: expected a buffer that "
      "Forward commands may write, found buffers[15] of role Hyper";
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.on(Stream::Compute, Role::Forward).zero(hyper);
            }),
            sentence);
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              TestPlan::Buffer other = plan.buffers[hyper];
              other.role = BufferRole::Transient;
              other.offset = plan.hostBytes;
              other.index = none;
              plan.hostBytes += 64;
              uint32_t source = plan.add(other);
              plan.on(Stream::Compute, Role::Forward).copy(source, hyper);
            }),
            sentence);
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              TestPlan::Buffer view = plan.buffers[hyper];
              view.role = BufferRole::Transient;
              view.root = hyper;
              view.index = none;
              view.sizes = {1};
              plan.on(Stream::Compute, Role::Forward).zero(plan.add(view));
            }),
            "small.plan: programs[1] (step).commands[15]: expected a buffer "
            "that Forward commands may write, found buffers[16] of role Hyper");
}

TEST(UpdateCheck, GradientsAreScaledByOneNumber) {
  auto scaled = [](TestPlan::Scalars scalars) {
    return update({{0, 8}}, {expAvg, expAvgSq}, scalars);
  };
  EXPECT_EQ(scaled({hyper, loss, loss, loss, loss}), "accepted");
  EXPECT_EQ(scaled({hyper, gradient}),
            "small.plan: programs[1] (step).commands[15]: expected one f32 as "
            "clip_factor, found buffers[9]");
  EXPECT_EQ(scaled({hyper, none, hyper}),
            "small.plan: programs[1] (step).commands[15]: expected one f32 as "
            "loss_scale, found buffers[15]");
  EXPECT_EQ(
      scaled({hyper, none, none, 99}),
      "small.plan: programs[1] (step).commands[15]: expected buffer index "
      "below 17, found 99");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              TestPlan::Buffer element; // of the gradient
              element.root = gradient;
              element.offset = plan.buffers[gradient].offset;
              uint32_t scalar = plan.add(element);
              plan.on(Stream::Compute, Role::Update)
                  .update(UpdateRule::AdamW, 0, {expAvg, expAvgSq}, {{0, 8}},
                          {hyper, scalar});
            }),
            "small.plan: programs[1] (step).commands[15]: expected targets "
            "apart from each other, found buffers[16] across buffers[9]");
}

TEST(UpdateCheck, MeasuresArePieces) {
  auto measure = [](uint32_t source, bool isWide = true,
                    std::vector<Interval> intervals = {{0, 20}},
                    MeasureKind kind = MeasureKind::SquaredNorm,
                    uint32_t initial = none) {
    return rejectionAfter([&](TestPlan &plan) {
      uint32_t target = plan.addSum();
      plan.on(Stream::Compute, Role::Update)
          .measure(kind, 0, source, isWide ? target : loss, intervals, initial);
    });
  };
  for (MeasureKind kind : EnumValuesMeasureKind())
    EXPECT_EQ(measure(gradient, true, {{0, 20}}, kind), "accepted");
  EXPECT_EQ(measure(8),
            "small.plan: programs[1] (step).commands[15]: expected a dense "
            "piece of unit u, found buffers[8]");
  EXPECT_EQ(measure(gradient, false),
            "small.plan: programs[1] (step).commands[15]: expected one f64 as "
            "target, found buffers[7]");
  EXPECT_EQ(measure(gradient, true, {{0, 99}}),
            "small.plan: programs[1] (step).commands[15]: expected ascending "
            "intervals inside [0, 32), found [0, 99)");
  EXPECT_EQ(measure(gradient, true, {{0, 20}}, MeasureKind(9)),
            "small.plan: programs[1] (step).commands[15]: expected a kind of "
            "measure, found 9");
  EXPECT_EQ(measure(gradient, true, {{0, 20}}, MeasureKind::AbsMax, loss),
            "small.plan: programs[1] (step).commands[15]: expected one f64 as "
            "what is measured so far, found buffers[7]");
  EXPECT_EQ(measure(gradient, true, {{0, 20}}, MeasureKind::AbsMax, 17),
            "small.plan: programs[1] (step).commands[15]: expected buffer "
            "index below 17, found 17");
  EXPECT_EQ(measure(gradient, true, {{0, 20}}, MeasureKind::AbsMax, 16),
            "small.plan: programs[1] (step).commands[15]: expected targets "
            "apart from each other, found buffers[16] across buffers[16]");
}

// Nothing divides what is no sum.
TEST(UpdateCheck, OnlySumsAreDivided) {
  auto reduce = [](double post, ReduceKind kind) {
    return rejectionAfter([&](TestPlan &plan) {
      uint32_t sum = plan.addSum();
      plan.on(Stream::Reduce, Role::Update)
          .allReduce(sum, sum, none, 1, post, 0, DType::F64, kind);
    });
  };
  std::string place = "small.plan: programs[1] (step).commands[15]: ";
  for (ReduceKind kind : {ReduceKind::Max, ReduceKind::First})
    EXPECT_EQ(reduce(2, kind), place + "expected divisors of 1 for what is no "
                                       "sum, found 1 and 2");
  EXPECT_EQ(reduce(1, ReduceKind(3)),
            place + "expected a kind of reduction, found 3");
}

// What is done to a shard is done where its states are, and nothing else is
// done there.
// covers: _check_flat_params_on_expected_device
TEST(UpdateCheck, HostAndDeviceDoNotMix) {
  EXPECT_EQ(rejection(makeOffloadedPlan()), "accepted");
  TestPlan plan = makeOffloadedPlan();
  TestPlan::Buffer &state = plan.buffers[expAvg];
  state.space = Space::Device;
  state.offset = 0;
  EXPECT_EQ(rejection(plan),
            "small.plan: programs[1] (step).commands[20]: expected host "
            "memory, where its states are, found buffers[1] (exp_avg) in "
            "Device memory");
  plan = makeOffloadedPlan();
  plan.on(Stream::Compute, Role::Backward).zero(gradient);
  EXPECT_EQ(rejection(plan),
            "small.plan: programs[1] (step).commands[21]: expected device "
            "memory, found buffers[9] in Pinned memory");
  plan = makeOffloadedPlan();
  TestPlan::Buffer skipped;
  skipped.offset = plan.deviceBytes;
  plan.deviceBytes += 64;
  uint32_t onDevice = plan.add(skipped);
  plan.on(Stream::Copy, Role::Update)
      .update(UpdateRule::AdamW, 0, {expAvg, expAvgSq}, {{0, 20}},
              {.hyper = hyper, .skipped = onDevice});
  EXPECT_EQ(rejection(plan),
            "small.plan: programs[1] (step).commands[21]: expected host "
            "memory, where its states are, found buffers[18] in Device memory");
  plan = makeOffloadedPlan();
  plan.pinnedBytes -= 1;
  EXPECT_EQ(rejection(plan).substr(0, 50),
            "small.plan: buffers[9]: expected bytes inside the ");
}

} // namespace
