//===- TrainingTest.cpp - Trainings through the library alone -------------===//

#include "fsdp/Runtime/Training/TrainingRun.h"

#include "Files.h"
#include "Runtime/Training/Interruption.h"
#include "Support/TestPlan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <sstream>

using namespace fsdp;
using testing::ElementsAreArray;

namespace {

/// Keeps the losses, and asks for an end after a step.
class Listener final : public RunListener {
public:
  std::unique_ptr<TrainingObserver> watch(const Training &training) override {
    begun = training.state.step;
    return std::make_unique<Observer>(*this);
  }

  std::vector<double> losses;
  long long begun = -1, lastStep = 0; ///< The latter: of an interruption.

private:
  struct Observer final : TrainingObserver {
    explicit Observer(Listener &own) : own(own) {}
    void endStep(long long step, double loss, double) override {
      own.losses.push_back(loss);
      if (step == own.lastStep)
        std::raise(SIGTERM);
    }
    Listener &own;
  };
};

class Trainings : public testing::Test {
protected:
  void SetUp() override {
    auto sealed = test::makeSmallPlan(2).seal();
    ASSERT_TRUE(sealed) << sealed.error().message;
    ASSERT_TRUE(sealed->write(files.path("small.plan")));
    test::Files weights;
    weights.add("w", {4, 4}, std::vector<float>(16, 0.5f));
    weights.add("b", {4}, std::vector<float>(4, 1));
    copy(weights, "w.safetensors");
    test::Files data;
    std::vector<float> values(24);
    for (std::size_t i = 0; i != values.size(); ++i)
      values[i] = static_cast<float>(i % 7) / 5;
    data.add("in_0", {3, 2, 4}, values);
    copy(data, "d.safetensors");
  }

  void copy(const test::Files &from, const std::string &name) {
    std::filesystem::copy_file(from.write("made." + name), files.path(name));
  }

  TrainingOptions makeOptions() const {
    TrainingOptions options;
    options.plans = {files.path("small.plan")};
    options.weights = files.path("w.safetensors");
    options.data = files.path("d.safetensors");
    options.steps = 5;
    return options;
  }

  static int train(const TrainingOptions &options, Listener &listener) {
    Processes processes("local", "hosts");
    return TrainingRun(options, processes).execute(listener);
  }

  std::string read(const std::string &name) const {
    std::ostringstream text;
    text << std::ifstream(files.path(name)).rdbuf();
    return text.str();
  }

  test::Files files;
};

// What a program needs that trains without the command: the same bits as if
// nothing had come between.
TEST_F(Trainings, OneThatIsInterruptedGoesOnWhereItWas) {
  TrainingOptions options = makeOptions();
  options.summon = files.path("whole.safetensors");
  Listener whole;
  EXPECT_EQ(train(options, whole), 0);
  EXPECT_EQ(whole.losses.size(), 5u);

  options.summon.clear();
  options.checkpoint = files.path("checkpoints");
  Listener stopped;
  stopped.lastStep = 2;
  EXPECT_EQ(train(options, stopped), interruptedCode);
  ASSERT_GE(stopped.losses.size(), 2u);
  ASSERT_LT(stopped.losses.size(), 5u);

  // Steps and hyper-parameters are those of the checkpoint.
  options.steps = 0;
  options.weights.clear();
  options.resume = "auto";
  options.summon = files.path("resumed.safetensors");
  Listener resumed;
  EXPECT_EQ(train(options, resumed), 0);
  EXPECT_EQ(resumed.begun, static_cast<long long>(stopped.losses.size()));

  std::vector<double> losses = stopped.losses;
  losses.insert(losses.end(), resumed.losses.begin(), resumed.losses.end());
  EXPECT_THAT(losses, ElementsAreArray(whole.losses));
  EXPECT_EQ(read("resumed.safetensors"), read("whole.safetensors"));
}

// A program that embeds the library reports errors itself.
TEST_F(Trainings, WhatIsWrongIsThrownBeforeAnythingIsAllocated) {
  TrainingOptions options = makeOptions();
  options.ranks = 3;
  Processes processes("local", "hosts");
  try {
    TrainingRun run(options, processes);
    FAIL() << "a plan for 2 ranks was taken for one of 3";
  } catch (const Error &error) {
    EXPECT_EQ(std::string(error.what()),
              options.plans.front() +
                  ": expected a plan for 3 ranks, found one for 2");
  }
}

// What throws in an observer ends the training, and the library stays usable.
TEST_F(Trainings, AnObserverThatThrowsStopsTheTraining) {
  struct Thrower final : RunListener {
    struct Observer final : TrainingObserver {
      void endStep(long long, double, double) override { throw Error("full"); }
    };
    std::unique_ptr<TrainingObserver> watch(const Training &) override {
      return std::make_unique<Observer>();
    }
  } thrower;
  Processes processes("local", "hosts");
  EXPECT_THROW(TrainingRun(makeOptions(), processes).execute(thrower), Error);
  Listener listener;
  EXPECT_EQ(train(makeOptions(), listener), 0);
}

// The more steps have been measured, the more may go by unasked; a first one
// that is fast says nothing of the others.
TEST(Interruption, IntervalsAreAsLongAsWanted) {
  using namespace std::chrono_literals;
  EXPECT_EQ(getNextInterval(1, 1us), 2);
  EXPECT_EQ(getNextInterval(1, 0ns), 2);
  EXPECT_EQ(getNextInterval(1, 1h), 1);
  EXPECT_EQ(getNextInterval(100, 400ms), 50);
  long long steps = 1;
  for (int i = 0; i != 20; ++i)
    steps = getNextInterval(steps, steps * 1ms);
  EXPECT_EQ(steps, longestInterval / 1ms);
}

} // namespace
