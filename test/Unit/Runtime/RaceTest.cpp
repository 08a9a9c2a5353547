//===- RaceTest.cpp - A rank's threads under ThreadSanitizer --------------===//
//
// Run only there. The runtime tells ThreadSanitizer which bytes each command
// reads and writes, so that a wait that is missing in a plan is a data race.
//
//===----------------------------------------------------------------------===//
#include "SharedBackend.h"
#include "Support/TestPlan.h"
#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Runtime/Execution/Session.h"

#include <gtest/gtest.h>

using namespace fsdp;
using test::TestPlan;

/// With zeros for inputs and parameters.
static void train(const planfile::Plan &plan, RankRange ranks,
                  SessionOptions options) {
  Session session(plan, ranks, std::move(options));
  for (unsigned step = 0; step != 50; ++step)
    session.run();
}

static void train(const planfile::Plan &plan) {
  SessionOptions options;
  options.overlap = true;
  train(plan, 4, std::move(options));
}

/// Not verified.
static void train(TestPlan plan) {
  std::vector<std::uint8_t> bytes = plan.flatbuffer();
  train(*planfile::GetPlan(bytes.data()));
}

TEST(Race, NoneInAPlanWithAllItsWaits) { train(test::makeOverlappingPlan(4)); }

// Their runs are not joined: what one writes between two of them, the other may
// still read.
TEST(Race, NoneBetweenSessions) {
  for (bool writesFirst : {false, true}) {
    TestPlan plan = test::makeOverlappingPlan(4);
    if (writesFirst) { // the source of the run before, ahead of any wait
      plan.on(planfile::Stream::Compute, planfile::Role::Backward);
      plan.zero(plan.units[0].gradient - 1);
      std::vector<TestPlan::Command> &commands = plan.programs.back().commands;
      std::rotate(commands.begin(), commands.end() - 1, commands.end());
    }
    std::vector<std::uint8_t> bytes = plan.flatbuffer();
    std::shared_ptr<Backend> backend = makeLocalBackend(4);
    std::shared_ptr<Store> store = makeLocalStore();
    auto errors = test::runBoth([&](RankRange ranks) {
      SessionOptions options;
      options.backend = std::make_unique<test::SharedBackend>(backend);
      options.store = store;
      train(*planfile::GetPlan(bytes.data()), ranks, std::move(options));
    });
    for (const std::optional<Error> &error : errors)
      EXPECT_FALSE(error) << error->what();
  }
}

// What fsdp-plan has made of a model. scripts/check.sh names the plan.
TEST(Race, NoneInACompiledPlan) {
  const char *path = std::getenv("FSDP_RACE_PLAN");
  // This build has no compiler: scripts/check.sh makes the plan with another.
  ASSERT_TRUE(path) << "expected FSDP_RACE_PLAN to name a plan for 4 ranks";
  auto file = planfile::PlanFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  train(file->plan());
}

// ThreadSanitizer's exit status is what counts.
TEST(RaceWithoutAWait, IsReported) {
  TestPlan plan = test::makeOverlappingPlan(4);
  std::vector<TestPlan::Command> &commands = plan.programs.back().commands;
  auto wait = std::find_if(commands.begin(), commands.end(), [](auto &command) {
    return command.type == planfile::Step::Wait &&
           command.stream == planfile::Stream::Reduce;
  });
  ASSERT_NE(wait, commands.end());
  commands.erase(wait);
  train(std::move(plan));
}
