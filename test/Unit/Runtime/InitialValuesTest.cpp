//===- InitialValuesTest.cpp - Parameters without a file ------------------===//
#include "fsdp/Runtime/Checkpoints/InitialValues.h"

#include "SmallModel.h"

#include <ATen/core/PhiloxRNGEngine.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using testing::ThrowsMessage;
using namespace fsdp::test;

namespace {

at::Tensor valueOf(const InitialValues &init, unsigned ranks,
                   const std::string &parameter, std::uint64_t seed) {
  Loaded loaded(makeOddPlan(ranks), ranks);
  init.set(loaded.session, parameter, seed);
  EXPECT_THAT(loaded.session.findDirtyPadding(false), testing::IsEmpty());
  return toTorch(loaded.session.read(TensorName::parameter(parameter))).clone();
}

// Ranks end in the middle of rows.
// covers: param_init_fn
TEST(InitialValues, DoNotDependOnTheRanks) {
  InitialValues init = InitialValues::parse("normal:0.02");
  for (const char *parameter : {"cube", "scalar", "turned", "empty", "line"}) {
    at::Tensor one = valueOf(init, 1, parameter, 7);
    for (unsigned ranks : {2u, 3u, 4u})
      EXPECT_TRUE(at::equal(valueOf(init, ranks, parameter, 7), one))
          << parameter << " on " << ranks;
  }
}

TEST(InitialValues, AreOfTheSeedAndTheName) {
  InitialValues init = InitialValues::parse("normal:1");
  at::Tensor line = valueOf(init, 2, "line", 0);
  EXPECT_TRUE(at::equal(valueOf(init, 2, "line", 0), line));
  EXPECT_FALSE(at::equal(valueOf(init, 2, "line", 1), line));
  at::Tensor cube = valueOf(init, 2, "cube", 0).flatten().narrow(0, 0, 7);
  EXPECT_FALSE(at::equal(cube, line));
  EXPECT_TRUE(at::allclose(
      valueOf(InitialValues::parse("normal:0.5"), 2, "line", 0), line * 0.5));
}

// Three standard errors of the mean, and of the deviation.
TEST(InitialValues, AreNormal) {
  constexpr std::size_t count = 40000;
  Loaded loaded(makeOddPlan(1), 1);
  std::vector<at::Tensor> parts;
  InitialValues init = InitialValues::parse("normal:0.02");
  for (std::uint64_t seed = 0; parts.size() * 12 < count; ++seed) {
    init.set(loaded.session, "cube", seed);
    parts.push_back(
        toTorch(loaded.session.read(TensorName::parameter("cube"))).flatten() /
        0.02);
  }
  at::Tensor all = at::cat(parts);
  double n = static_cast<double>(all.numel());
  EXPECT_NEAR(all.mean().item<double>(), 0, 3 / std::sqrt(n));
  EXPECT_NEAR(all.std().item<double>(), 1, 3 / std::sqrt(2 * n));
  EXPECT_NEAR(all.abs().gt(1.959964).to(at::kDouble).mean().item<double>(),
              0.05, 3 * std::sqrt(0.05 * 0.95 / n));
}

TEST(InitialValues, MayBeZeros) {
  at::Tensor cube = valueOf(InitialValues::parse("zeros"), 2, "cube", 3);
  EXPECT_TRUE(at::equal(cube, at::zeros({2, 3, 2})));
  EXPECT_FALSE(at::signbit(cube).any().item<bool>());
}

TEST(InitialValues, OthersAreRejected) {
  for (const char *text : {"", "zero", "normal", "normal:", "normal:-1",
                           "normal:nan", "normal:inf", "normal:1x", "ones"})
    EXPECT_THAT(
        [&] { InitialValues::parse(text); },
        ThrowsMessage<Error>(
            "expected from-module, zeros, or normal:STD with a standard "
            "deviation of at least 0, found " +
            std::string(text)));
}

} // namespace
