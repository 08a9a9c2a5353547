//===- UpdatesTest.cpp - What updates take beside states ------------------===//
//
// Against ATen's own kernels, on gradients that were scaled before.
//
//===----------------------------------------------------------------------===//

#include "SmallModel.h"
#include "fsdp/Runtime/Support/Error.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <gtest/gtest.h>

#include <cmath>

using namespace fsdp;
using namespace fsdp::test;
using planfile::BufferRole;
using planfile::MeasureKind;
using planfile::Role;
using planfile::Stream;
using planfile::UpdateRule;

namespace {

// Of the small plan.
constexpr std::uint32_t expAvg = 1, expAvgSq = 2, gradient = 9, hyper = 15;

/// A number that a test sets, input `index`, or reads, output `index`.
std::uint32_t addScalar(TestPlan &plan, BufferRole role, std::uint32_t index) {
  TestPlan::Buffer scalar{role, {}};
  scalar.index = index;
  scalar.offset = plan.deviceBytes;
  plan.deviceBytes += 64;
  return plan.add(scalar);
}

void set(Session &session, unsigned index, float value) {
  for (unsigned rank = 0; rank != session.ranks().count; ++rank)
    session.setInput(rank, index, toHost(at::scalar_tensor(value, at::kFloat)));
}

/// The small plan, whose update takes inputs 1, 2, 3 and 4: which of them, as
/// bits.
TestPlan makeScaledPlan(UpdateRule rule, unsigned ranks, unsigned present) {
  TestPlan plan = makeSmallPlan(ranks);
  plan.programs.back().commands.pop_back();
  TestPlan::Scalars scalars{hyper};
  std::uint32_t *const all[] = {&scalars.clipFactor, &scalars.lossScale,
                                &scalars.foundInf, &scalars.skipped};
  for (std::uint32_t i = 0; i != 4; ++i) {
    std::uint32_t scalar = addScalar(plan, BufferRole::Input, i + 1);
    if (present >> i & 1)
      *all[i] = scalar;
  }
  std::vector<std::uint32_t> states;
  if (rule == UpdateRule::AdamW)
    states = {expAvg, expAvgSq};
  plan.on(Stream::Compute, Role::Update)
      .update(rule, 0, states, {{0, 20}}, scalars);
  return plan;
}

/// w and b after some updates, by ATen.
struct Model {
  at::Tensor w = initialW(), b = initialB();
  at::Tensor mw = at::zeros({4, 4}), vw = at::zeros({4, 4});
  at::Tensor mb = at::zeros({4}), vb = at::zeros({4});

  void update(UpdateRule rule, at::Tensor gw, at::Tensor gb, double number) {
    at::Tensor step = at::scalar_tensor(number, at::kFloat);
    if (rule == UpdateRule::AdamW)
      at::_fused_adamw_({w, b}, {gw, gb}, {mw, mb}, {vw, vb}, {}, {step, step},
                        0.1, 0.9, 0.999, 0.01, 1e-8, false, false);
    else
      at::_fused_sgd_({w, b}, {gw, gb}, {}, 0.01, 0, 0.1, 0, false, false,
                      false);
  }
};

std::pair<at::Tensor, at::Tensor> getGradients(unsigned step, unsigned ranks) {
  at::Tensor gw = at::zeros({4, 4}), gb = at::zeros({4});
  at::Tensor ones = at::ones({2, 4});
  for (unsigned rank = 0; rank != ranks; ++rank) {
    gw += at::mm(batch(step, rank).t(), ones) / ranks;
    gb += ones.sum(0) / ranks;
  }
  return {gw, gb};
}

TEST(Updates, ScaleTheirGradients) {
  constexpr float clipFactor = 0.375f, lossScale = 3;
  for (UpdateRule rule : {UpdateRule::AdamW, UpdateRule::SGD})
    for (unsigned ranks : {1u, 2u, 3u})
      for (unsigned present = 0; present != 8; ++present) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, operands " +
                     std::to_string(present));
        Loaded loaded(makeScaledPlan(rule, ranks, present), ranks);
        Session &session = loaded.session;
        load(session);
        session.setHyperParameters({.lr = 0.1});
        set(session, 1, clipFactor);
        set(session, 2, lossScale);
        set(session, 3, 0);
        Model model;
        for (unsigned step = 0; step != 3; ++step) {
          feed(session, step);
          session.run();
          auto [gw, gb] = getGradients(step, ranks);
          for (at::Tensor &g : {std::ref(gw), std::ref(gb)}) {
            if (present & 1)
              g.mul_(clipFactor);
            if (present & 2)
              g.div_(lossScale);
          }
          model.update(rule, gw, gb, step + 1.0);
          EXPECT_TRUE(at::allclose(
              toTorch(session.read(TensorName::parameter("w"))), model.w));
          EXPECT_TRUE(at::allclose(
              toTorch(session.read(TensorName::parameter("b"))), model.b));
        }
      }
}

// An update that was skipped is none: the next one has its number.
TEST(Updates, AreSkippedWhereSomethingIsInfinite) {
  for (float found : {1.0f, 2.0f, NAN}) {
    Loaded loaded(makeScaledPlan(UpdateRule::AdamW, 2, 15), 2);
    Session &session = loaded.session;
    load(session);
    session.setHyperParameters({.lr = 0.1});
    set(session, 1, 1);
    set(session, 2, 1);
    Model model;
    for (unsigned step = 0; step != 4; ++step) {
      bool isSkipped = step == 0 || step == 2;
      set(session, 3, isSkipped ? found : 0);
      set(session, 4, static_cast<float>((step + 1) / 2));
      feed(session, step);
      session.run();
      auto [gw, gb] = getGradients(step, 2);
      if (!isSkipped)
        model.update(UpdateRule::AdamW, gw, gb, step == 1 ? 1 : 2);
      EXPECT_TRUE(at::allclose(
          toTorch(session.read(TensorName::parameter("w"))), model.w));
      EXPECT_TRUE(at::allclose(
          toTorch(session.read(TensorName::optimizerState("b", "exp_avg_sq"))),
          model.vb));
    }
  }
}

// Each update reads the numbers of its own group.
TEST(Updates, DecayGroupsHaveNumbersOfTheirOwn) {
  TestPlan plan = makeSmallPlan(2);
  plan.programs.back().commands.pop_back();
  plan.on(Stream::Compute, Role::Update);
  plan.update(UpdateRule::AdamW, 0, {expAvg, expAvgSq}, {{0, 16}}, {hyper});
  std::uint32_t other = plan.addHyper(3);
  plan.buffers[other].name = "no_decay"; // whatever the caller sets
  plan.update(UpdateRule::AdamW, 0, {expAvg, expAvgSq}, {{16, 20}}, {other});
  Loaded loaded(std::move(plan), 2);
  Session &session = loaded.session;
  load(session);
  session.setHyperParameters({.lr = 0.1});
  session.setHyperParameters(3, {.lr = 0.25, .weightDecay = 0.5});
  feed(session, 0);
  session.run();
  Model model;
  auto [gw, gb] = getGradients(0, 2);
  at::Tensor one = at::scalar_tensor(1.0, at::kFloat);
  at::_fused_adamw_({model.w}, {gw}, {model.mw}, {model.vw}, {}, {one}, 0.1,
                    0.9, 0.999, 0.01, 1e-8, false, false);
  at::_fused_adamw_({model.b}, {gb}, {model.mb}, {model.vb}, {}, {one}, 0.25,
                    0.9, 0.999, 0, 1e-8, false, false);
  EXPECT_TRUE(
      at::allclose(toTorch(session.read(TensorName::parameter("w"))), model.w));
  EXPECT_TRUE(
      at::allclose(toTorch(session.read(TensorName::parameter("b"))), model.b));
  EXPECT_EQ(session.updates(), 1u);

  try {
    session.setHyperParameters(1, {});
    FAIL();
  } catch (const Error &error) {
    EXPECT_STREQ(error.what(),
                 "expected one of the 2 decay groups of the plan, found 1");
  }
}

// Over all ranks, the pieces add up to the whole, without what is in no
// interval; and what is not finite in an interval is found by who has it.
TEST(Updates, MeasuresAreOfThePiece) {
  for (unsigned ranks : {1u, 2u, 3u, 4u})
    for (bool isFinite : {true, false}) {
      TestPlan plan = makeSmallPlan(ranks);
      constexpr unsigned count = 7;
      std::uint32_t out[count];
      for (unsigned i = 0; i != count; ++i)
        out[i] = plan.addSum(BufferRole::Output, i);
      using enum MeasureKind;
      plan.on(Stream::Compute, Role::Update);
      plan.measure(SquaredNorm, 0, gradient, out[0], {{0, 20}});
      plan.measure(SquaredNorm, 0, gradient, out[1], {{16, 20}});
      plan.measure(FoundInf, 0, gradient, out[2], {{0, 20}});
      plan.measure(FoundInf, 0, gradient, out[3], {{16, 20}});
      plan.measure(AbsSum, 0, gradient, out[4], {{0, 16}});
      plan.measure(AbsSum, 0, gradient, out[5], {{16, 20}}, out[4]);
      plan.measure(AbsMax, 0, gradient, out[6], {{0, 20}});
      Loaded loaded(std::move(plan), ranks);
      Session &session = loaded.session;
      load(session);
      feed(session, 0);
      if (!isFinite) {
        at::Tensor x = batch(0, 0);
        x[0][0] = INFINITY;
        session.setInput(0, 0, toHost(x));
      }
      session.run();
      double sums[count] = {}, largest = 0;
      for (unsigned rank = 0; rank != ranks; ++rank) {
        for (unsigned i = 0; i != count; ++i)
          sums[i] += toTorch(session.output(rank, i)).item<double>();
        double own = toTorch(session.output(rank, 6)).item<double>();
        largest = own > largest || std::isnan(own) ? own : largest;
      }
      auto [gw, gb] = getGradients(0, ranks);
      double b = gb.square().sum().item<double>();
      EXPECT_NEAR(sums[1], b, 1e-4 * b);
      EXPECT_EQ(sums[2] > 0, !isFinite);
      EXPECT_EQ(sums[3], 0);
      if (isFinite) {
        double whole = gw.square().sum().item<double>() + b;
        EXPECT_NEAR(sums[0], whole, 1e-4 * whole);
        at::Tensor all = at::cat({gw.flatten(), gb.flatten()}).abs();
        double sum = all.sum().item<double>();
        EXPECT_NEAR(sums[5], sum, 1e-4 * sum);
        EXPECT_NEAR(largest, all.max().item<double>(), 1e-4 * largest);
      } else {
        EXPECT_FALSE(std::isfinite(largest));
      }
    }
}

} // namespace
