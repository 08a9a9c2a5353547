//===- VerifyPlanTest.cpp - What a plan computes --------------------------===//

#include "fsdp/Symbolic/VerifyPlan.h"

#include "Support/TestPlan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp;
using fsdp::test::TestPlan;
using planfile::Role;
using planfile::Step;
using planfile::Stream;
using testing::HasSubstr;

static std::string verify(TestPlan plan) {
  auto file = plan.seal();
  return file ? symbolic::verifyPlan(file->plan()).message
              : file.error().message;
}

/// The answer about plans without a mistake, for they are by hand and say
/// nothing about a model.
static const char *const noMeaning =
    "meaning: expected what the model computes, without which nothing can be "
    "proved; found none";

TEST(VerifyPlan, FindsNoMistakeInAPlanThatRuns) {
  for (uint32_t ranks : {1, 2, 3})
    EXPECT_EQ(verify(test::makeSmallPlan(ranks)), noMeaning);
}

// Nothing would be run, and nothing found.
TEST(VerifyPlan, NeedsAProgram) {
  TestPlan plan = test::makeSmallPlan();
  plan.programs.resize(1); // init
  EXPECT_EQ(verify(plan), "programs: expected what the model computes, without "
                          "which nothing can be proved; found none");
}

// Every wait of the small plan is needed. (That of the gradient is: the update
// reads it.)
// covers: _wait_for_computation_stream, Stream
// covers: a parameter changed between forward and backward
TEST(VerifyPlan, MissesEveryWait) {
  TestPlan plan = test::makeSmallPlan();
  int waits = 0;
  for (size_t i = 0; i != plan.programs[1].commands.size(); ++i) {
    if (plan.programs[1].commands[i].type != Step::Wait)
      continue;
    ++waits;
    TestPlan damaged = plan;
    auto &commands = damaged.programs[1].commands;
    commands.erase(commands.begin() + long(i));
    EXPECT_THAT(verify(damaged), HasSubstr("found no order between them"))
        << "without command " << i;
  }
  EXPECT_EQ(waits, 3);
}

// In one run, the backward writes to bytes that the update no longer needs. In
// a run of its own, the update writes there later, over what it is to read.
TEST(VerifyPlan, RunsTheUpdateByItself) {
  for (bool isApart : {true, false}) {
    TestPlan plan = test::makeSmallPlan();
    auto add = [&](uint64_t offset) {
      TestPlan::Buffer buffer{planfile::BufferRole::Transient, {16}};
      buffer.offset = plan.deviceBytes + offset;
      return plan.add(buffer);
    };
    uint32_t early = add(0), late = add(isApart ? 64 : 0), last = add(128);
    plan.deviceBytes += 192;
    plan.on(Stream::Compute, Role::Update).zero(early);
    plan.on(Stream::Compute, Role::Backward).zero(late);
    plan.on(Stream::Compute, Role::Update).copy(late, last);
    if (isApart)
      EXPECT_EQ(verify(plan), noMeaning);
    else
      EXPECT_THAT(verify(plan),
                  HasSubstr("Copy on Compute: expected to read buffers["));
  }
}

// Commands on random streams, each waiting for all that it depends on, compute
// what they compute on one stream; without one of the waits they do not.
// covers: Event, Delay
TEST(VerifyPlan, WaitsAreEnoughAndNeeded) {
  int needed = 0;
  EXPECT_TRUE(rc::check([&] {
    const char *neg =
        "aten::neg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
    TestPlan plan;
    plan.mesh = {{"shard", 1}};
    TestPlan::Buffer input{planfile::BufferRole::Input, {16}};
    input.index = 0;
    std::vector<uint32_t> buffers = {plan.add(input)};
    uint64_t used = 64;
    plan.programs = {{"step", {}, 0}};
    uint32_t &events = plan.programs[0].events;
    // Of each buffer: the stream that writes it, and its event.
    std::vector<std::pair<Stream, uint32_t>> writers = {{Stream::Compute, ~0u}};
    std::optional<size_t> dropped;
    bool drops = *rc::gen::arbitrary<bool>();
    for (int i = *rc::gen::inRange(1, 9); i != 0; --i) {
      auto source = *rc::gen::inRange<size_t>(0, buffers.size());
      auto stream =
          *rc::gen::element(Stream::Compute, Stream::Gather, Stream::Copy);
      TestPlan::Buffer target{planfile::BufferRole::Transient, {16}};
      target.offset = used;
      used += 64;
      uint32_t index = plan.add(target);
      plan.on(stream, Role::Forward);
      auto [writer, event] = writers[source];
      if (event != ~0u && writer != stream) {
        // A wait may follow from another one: only a lone one is needed.
        if (drops && !dropped)
          dropped = buffers.size();
        else
          plan.wait(event);
      }
      plan.launch(neg, {int32_t(buffers[source]), int32_t(index)});
      plan.record(events);
      buffers.push_back(index);
      writers.emplace_back(stream, events++);
      if (dropped)
        break;
    }
    plan.deviceBytes = used;
    std::string problem = verify(plan);
    if (!dropped) {
      RC_ASSERT(problem == noMeaning);
      return;
    }
    // Unless an earlier command of the stream has waited for it, or for what
    // came after it on its stream, there is a race.
    if (problem == noMeaning)
      return;
    ++needed;
    RC_ASSERT(problem.find("found no order between them") != std::string::npos);
  }));
  EXPECT_GT(needed, 5);
}
