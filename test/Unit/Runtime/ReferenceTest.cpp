//===- ReferenceTest.cpp - What PyTorch says about a plan -----------------===//

#include "fsdp/Runtime/Data/Reference.h"

#include "Files.h"
#include "Support/TestPlan.h"
#include "fsdp/Runtime/Checkpoints/Weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

using namespace fsdp;
using test::TestPlan;
using testing::ElementsAre;
using testing::IsEmpty;

namespace {

TensorView view(const std::vector<float> &values,
                const std::vector<int64_t> &sizes) {
  return {planfile::DType::F32, sizes, std::as_bytes(std::span(values))};
}

TEST(Comparison, IsRelativeToTheLargestValue) {
  std::vector<int64_t> sizes = {2};
  Comparison comparison(1e-2);
  EXPECT_FALSE(comparison.passed()); // nothing has been compared
  comparison.compare("a", view({100, 1}, sizes), view({100, 2}, sizes));
  EXPECT_TRUE(comparison.passed());
  comparison.compare("zero", view({0, 0}, sizes), view({0, 5e-8f}, sizes));
  EXPECT_TRUE(comparison.passed());
  EXPECT_EQ(comparison.summary(),
            "compared 2 tensors, worst a: off by 1 where 1 is allowed");
  comparison.compare("b", view({1, 1}, sizes), view({1, 1.5}, sizes));
  comparison.compare("c", view({0, 0}, sizes), view({0, 1e-3f}, sizes));
  EXPECT_THAT(
      comparison.problems(),
      ElementsAre("c: expected values within 1e-07 of the reference, whose "
                  "largest is 0, found one off by 0.001",
                  "b: expected values within 0.01 of the reference, whose "
                  "largest is 1, found one off by 0.5"));
  EXPECT_EQ(comparison.worstTensor().name, "c");
}

TEST(Comparison, FailsForWhatCannotBeCompared) {
  std::vector<int64_t> two = {2}, three = {3};
  std::vector<float> nan = {NAN, 1}, inf = {INFINITY, 1}, one = {1, 1};
  Comparison comparison(1);
  comparison.compare("a", view(one, two), view(nan, two));
  comparison.compare("b", view(nan, two), view(one, two));
  comparison.compare("c", view(inf, two), view(nan, two));
  comparison.compare("d", view(one, two), view({1, 1, 1}, three));
  EXPECT_THAT(comparison.problems(),
              ElementsAre("a: expected numbers, found NaN",
                          "b: expected numbers, found NaN",
                          "c: expected numbers, found NaN",
                          "d: expected 2xf32, found 3xf32"));
}

// An infinity must not widen what is allowed elsewhere.
TEST(Comparison, InfinitiesMustBeEqual) {
  std::vector<int64_t> two = {2};
  Comparison same(1e-2);
  same.compare("a", view({INFINITY, 1}, two), view({INFINITY, 1}, two));
  same.compare("b", view({-INFINITY, 1}, two), view({-INFINITY, 1}, two));
  EXPECT_TRUE(same.passed()) << same.problems().front();
  Comparison other(1e-2);
  other.compare("a", view({INFINITY, 1}, two), view({INFINITY, 2}, two));
  other.compare("b", view({INFINITY, 1}, two), view({-INFINITY, 1}, two));
  other.compare("c", view({INFINITY, 1}, two), view({5, 1}, two));
  other.compare("d", view({5, 1}, two), view({INFINITY, 1}, two));
  EXPECT_EQ(other.problems().size(), 4u);
}

TEST(Comparison, IntegersMustBeEqual) {
  std::vector<int64_t> two = {2};
  auto integers = [&](const std::vector<int64_t> &values) {
    return TensorView{planfile::DType::I64, two,
                      std::as_bytes(std::span(values))};
  };
  std::vector<int64_t> large = {1, int64_t{1} << 60};
  std::vector<int64_t> next = {1, (int64_t{1} << 60) + 1};
  Comparison comparison(1);
  comparison.compare("a", integers(large), integers(large));
  EXPECT_TRUE(comparison.passed());
  comparison.compare("b", integers(large), integers(next));
  comparison.compare("c", view({1, 2}, two), integers(large));
  EXPECT_THAT(
      comparison.problems(),
      ElementsAre("b: expected the integers of the reference, found others",
                  "c: expected 2xf32, found 2xi64"));
}

/// loss = sum(x w + b) on two ranks, whose x is 1 and 3 everywhere.
class ReferenceTest : public testing::Test {
protected:
  ReferenceTest() {
    w.resize(16);
    for (size_t i = 0; i != w.size(); ++i)
      w[i] = 0.5f + 0.1f * static_cast<float>(i);
    weights.add("w", {4, 4}, w);
    weights.add("b", {4}, b);
    std::vector<float> x(16, 1);
    std::fill(x.begin() + 8, x.end(), 3.f);
    files.add("in_0", {2, 2, 4}, x);
    files.add("loss", {}, std::vector<float>{lossOf(w, b)});
    files.add("grad.w", {4, 4}, std::vector<float>(16, 4));
    files.add("grad.b", {4}, std::vector<float>(4, 2));
  }

  /// Mean over the ranks: each element of w meets x in 2 rows.
  static float lossOf(const std::vector<float> &w,
                      const std::vector<float> &b) {
    double sum = 0;
    for (float value : w)
      sum += 4 * value;
    for (float value : b)
      sum += 2 * value;
    return static_cast<float>(sum);
  }

  Comparison run(double tolerance = 1e-5,
                 const archive::SafetensorsMetadata &metadata = {}) {
    auto sealed = test::makeSmallPlan(2).seal();
    if (!sealed)
      throw Error(sealed.error().message);
    Reference reference =
        Reference::open(files.write("r.safetensors", metadata), *sealed);
    Session session(sealed->plan(), 2);
    Weights file = Weights::open(weights.write("w.safetensors"));
    file.load(file.match(*sealed), session);
    return reference.run(session, tolerance);
  }

  std::string rejection(const archive::SafetensorsMetadata &metadata = {}) {
    try {
      run(1e-5, metadata);
    } catch (const Error &error) {
      EXPECT_EQ(error.exitCode(), 1);
      return files.withoutFolder(error.what());
    }
    return "accepted";
  }

  test::Files files, weights;
  std::vector<float> w, b = {1, 2, 3, 4};
};

TEST_F(ReferenceTest, Agrees) {
  Comparison comparison = run();
  EXPECT_THAT(comparison.problems(), IsEmpty());
  EXPECT_TRUE(comparison.passed());
  EXPECT_EQ(comparison.compared().size(), 3u);
}

TEST_F(ReferenceTest, TheSameBatchForAllRanks) {
  files.add("in_0", {2, 4}, std::vector<float>(8, 2));
  EXPECT_THAT(run().problems(), IsEmpty());
}

TEST_F(ReferenceTest, GradientUnderAnAlias) {
  files.remove("grad.w");
  files.add("grad.tied.w", {4, 4}, std::vector<float>(16, 4));
  EXPECT_THAT(run().problems(), IsEmpty());
}

TEST_F(ReferenceTest, Differs) {
  files.add("grad.b", {4}, std::vector<float>{2, 2, 2, 2.1f});
  files.add("loss", {}, std::vector<float>{1});
  Comparison comparison = run();
  EXPECT_FALSE(comparison.passed());
  EXPECT_EQ(comparison.problems().size(), 2u);
  EXPECT_EQ(comparison.problems()[1],
            "grad.b: expected values within 2.11e-05 of the reference, whose "
            "largest is 2.1, found one off by 0.1");
  EXPECT_TRUE(run(100).passed());
}

TEST_F(ReferenceTest, MissingAndExtraNamesFail) {
  files.remove("grad.w");
  files.add("grad.c", {4}, std::vector<float>(4, 2));
  EXPECT_THAT(
      run().problems(),
      ElementsAre("expected all that the plan has, found nothing for grad.w",
                  "expected only what the plan has, found grad.c"));
}

TEST_F(ReferenceTest, RejectsInputsThatDoNotFit) {
  files.add("in_0", {3, 2, 4}, std::vector<float>(24));
  EXPECT_EQ(rejection(), "r.safetensors: in_0: expected 2x2x4xf32 or 2x4xf32, "
                         "found 3x2x4xf32");
  files.remove("in_0");
  EXPECT_EQ(rejection(),
            "r.safetensors: expected in_0, 2x4xf32, found no such tensor");
  files.add("in_0", {2, 4}, std::vector<float>(8));
  files.add("in_1", {2, 4}, std::vector<float>(8));
  EXPECT_EQ(rejection(), "r.safetensors: expected 1 inputs, found in_1");
  files.remove("loss");
  EXPECT_EQ(rejection(),
            "r.safetensors: expected a tensor loss, found no such name");
}

TEST_F(ReferenceTest, Training) {
  // AdamW without decay and eps: the first two steps are of length lr, because
  // the gradient is the same in both.
  files.remove("loss");
  files.remove("grad.w");
  files.remove("grad.b");
  files.add("losses", {2},
            std::vector<float>{lossOf(w, b), lossOf(w, b) - 0.5f * 72});
  std::vector<float> newW = w, newB = b;
  for (float &value : newW)
    value -= 1;
  for (float &value : newB)
    value -= 1;
  files.add("param.w", {4, 4}, newW);
  files.add("param.b", {4}, newB);
  std::vector<float> x(32, 1);
  for (size_t batch : {1, 3})
    std::fill_n(x.begin() + ptrdiff_t(8 * batch), 8, 3.f);
  files.add("in_0", {4, 2, 4}, x);
  archive::SafetensorsMetadata hyper = {
      {"lr", "0.5"}, {"weight_decay", "0.0"}, {"eps", "0"}};
  EXPECT_THAT(run(1e-5, hyper).problems(), IsEmpty());
  EXPECT_EQ(run(1e-5, hyper).compared().size(), 3u);
  EXPECT_FALSE(run().passed()); // other hyper-parameters

  hyper["lr"] = "fast";
  EXPECT_EQ(rejection(hyper),
            "r.safetensors: lr: expected a number, found fast");
  files.add("in_0", {2, 2, 4}, std::vector<float>(16));
  EXPECT_EQ(rejection(),
            "r.safetensors: in_0: expected 4x2x4xf32, found 2x2x4xf32");
}

} // namespace
