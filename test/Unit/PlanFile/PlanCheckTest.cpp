//===- PlanCheckTest.cpp - What a plan file must mean ---------------------===//

#include "PlanRejection.h"
#include "fsdp/Operators/OpFacts.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp::planfile;
using fsdp::test::makeSmallPlan;
using fsdp::test::rejection;
using fsdp::test::rejectionAfter;
using fsdp::test::TestPlan;
using testing::HasSubstr;

namespace {

// covers: _lazy_init
TEST(PlanCheck, RejectsBadHeaders) {
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.version = 7; }),
            "small.plan: version: expected 2, found 7");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.device = "tpu"; }),
            "small.plan: device: expected cpu or cuda, found tpu");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.mesh[0].second = 0; }),
            "small.plan: mesh[0] (shard): expected a size of at least 1, "
            "found 0");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.mesh.assign(5, {"shard", 1u << 31});
            }),
            "small.plan: mesh: expected less than 2^31 ranks, found more");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.persistentBytes = 4096; }),
      "small.plan: memory: expected a persistent region inside the device "
      "arena of 768 bytes, found 4096 bytes");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.groups[0].second = {0, 0}; }),
      "small.plan: communicators[0] (shard): expected ascending axes, "
      "found 0 after 0");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.groups[0].second = {1}; }),
            "small.plan: communicators[0] (shard): expected mesh axis index "
            "below 1, found 1");
}

TEST(PlanCheck, RejectsBadBuffers) {
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[0].strides = TestPlan::Numbers{-1};
            }),
            "small.plan: shapes[1]: expected sizes and strides of at least 0, "
            "found -1");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.buffers[9].offset = 832; }),
      "small.plan: buffers[9]: expected bytes inside the arena of 768, "
      "found [832, 896)");
  EXPECT_EQ(rejectionAfter(
                [](TestPlan &plan) { plan.buffers[5].offset = ~uint64_t(63); }),
            "small.plan: buffers[5]: expected bytes inside the arena of 768, "
            "found more than 2^63");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[5].sizes = {int64_t(1) << 62, 8};
              plan.buffers[5].strides = TestPlan::Numbers{8, 1};
            }),
            "small.plan: buffers[5]: expected bytes inside the arena of 768, "
            "found more than 2^63");
  // A few bytes are any number of elements; a sum over them would never end.
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[5].sizes = {int64_t(1) << 57};
              plan.buffers[5].strides = TestPlan::Numbers{0};
            }),
            "small.plan: buffers[5]: expected at most 1099511627776 elements, "
            "found 144115188075855872");
  EXPECT_EQ(rejectionAfter(
                [](TestPlan &plan) { plan.buffers[6].space = Space::Pinned; }),
            "small.plan: buffers[6]: expected bytes inside the arena of 0, "
            "found [448, 480)");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.buffers[6].offset += 4; }),
            "small.plan: buffers[6]: expected an offset that is a multiple of "
            "64, found 452");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.device = "cuda"; }),
            "small.plan: buffers[1] (exp_avg): expected an offset that is a "
            "multiple of 512, found 64");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.buffers[10].offset += 68; }),
      "small.plan: buffers[10]: expected a view inside of buffers[5] at "
      "[320, 448), found [388, 452)");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.buffers[10].root = 11; }),
            "small.plan: buffers[10]: expected a view of a buffer that owns "
            "its bytes, found one of the view buffers[11]");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[10].role = BufferRole::Constant;
            }),
            "small.plan: buffers[10]: expected a role that a view can have, "
            "found Constant");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[2].offset = plan.buffers[1].offset;
            }),
            "small.plan: buffers[2] (exp_avg_sq): expected bytes that nothing "
            "else uses, found bytes of buffers[1] (exp_avg)");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.buffers[5].offset = 0; }),
            "small.plan: buffers[5]: expected bytes outside of the persistent "
            "region of 256, found [0, 128)");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[3].role = BufferRole::Constant;
              plan.buffers[3].bytes = std::string(31, '\0');
            }),
            "small.plan: buffers[3]: expected 32 embedded bytes, found 31");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.buffers[4].index = 1; }),
            "small.plan: buffers[4]: expected input index below 1, found 1");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.tokenRows = 8; }),
            "small.plan: buffers[4]: expected tokens of i32 or i64, found f32");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.buffers[7].sizes = {2}; }),
            "small.plan: buffers[7]: expected a loss of one element, found 2");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.buffers[2].name = "exp_avg"; }),
      "small.plan: buffers[2] (exp_avg): expected another optimizer "
      "state, found a second optimizer state 0 exp_avg");
}

TEST(PlanCheck, RejectsBadPredictions) {
  auto rejection = [](std::array<uint64_t, 4> prediction) {
    return rejectionAfter(
        [&](TestPlan &plan) { plan.programs.back().prediction = prediction; });
  };
  std::string place = "small.plan: programs[1] (step): ";
  EXPECT_EQ(rejection({5, 6, 0, 0}),
            place + "expected a prediction with an exposed part of its 5 ns, "
                    "found 6 ns");
  for (unsigned number : {0, 2, 3}) {
    std::array<uint64_t, 4> prediction = {};
    prediction[number] = uint64_t(1) << 63;
    EXPECT_EQ(rejection(prediction),
              place + "expected a prediction of less than 2^63, found more");
  }
}

// covers: _share_state_and_init_handle_attrs
TEST(PlanCheck, RejectsBadUnits) {
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.mesh = {{"shard", 2}, {"replicate", 3}};
            }),
            "small.plan: units[0] (u): expected as many shards as there are "
            "ranks along its axes, 3, found 2");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.units[0].numel = 33; }),
            "small.plan: units[0] (u): expected a multiple of 2 elements, "
            "found 33");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.units[0].shards = 3; }),
            "small.plan: units[0] (u): expected as many shards as there are "
            "ranks along its axes, 2, found 3");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.units[0].numel = 34; }),
            "small.plan: units[0] (u): expected a dense buffer of 17 elements, "
            "found 16");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.units[0].shard = 1; }),
            "small.plan: units[0] (u): expected a shard of f32 that names the "
            "unit as its owner, found buffers[1] (exp_avg)");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[2].role = BufferRole::Shard;
            }),
            "small.plan: buffers[2] (exp_avg_sq): expected to be the shard of "
            "units[0] (u), found another");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.units[0].parameters[1].offset = 15;
            }),
            "small.plan: units[0] (u).parameters[1] (b): expected 4 elements "
            "inside [16, 32), found them at 15");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.units[0].parameters[1].offset = 29;
            }),
            "small.plan: units[0] (u).parameters[1] (b): expected 4 elements "
            "inside [16, 32), found them at 29");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.units[0].parameters[0].strides = TestPlan::Numbers{1, 1};
            }),
            "small.plan: units[0] (u).parameters[0] (w): expected dense "
            "strides, found others");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.units[0].parameters[1].aliases = {"w"};
            }),
            "small.plan: units[0] (u).parameters[1] (b): expected another "
            "name, found a second name w");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.units[0].parameters[0].strides = TestPlan::Numbers{1, 4};
            }),
            "accepted"); // dense, but not row-major
}

TEST(PlanCheck, RejectsBadOperatorsAndConstants) {
  auto step = [](TestPlan &plan) -> TestPlan & {
    return plan.on(Stream::Compute, Role::Forward);
  };
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.operators[0].first = "aten::empty";
            }),
            "small.plan: operators[0] (aten::empty): expected the schema of "
            "aten::empty, found that of aten::full.out");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.op("aten::t_(Tensor(a!) self) -> Tensor(a!)");
            }),
            "small.plan: operators[4] (aten::t_): expected an operator that a "
            "plan may run, found one that no plan may");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.op("aten::xyz() -> ()"); }),
      "small.plan: operators[4] (aten::xyz): expected an operator that a "
      "plan may run, found an unknown one");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.op("aten::relu(Tensor(a!) self) -> Tensor");
            }),
            "small.plan: operators[4] (aten::relu): expected "
            "aten::relu(Tensor self) -> Tensor, found "
            "aten::relu(Tensor(a!) self) -> Tensor");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.op("my::f(Tensor[ x) -> ()"); }),
      "small.plan: operators[4] (my::f): expected an operator schema, "
      "found my::f(Tensor[ x) -> ()");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              step(plan).launch(plan.operators[1].second, {0}, "addmm_9");
            }),
            "small.plan: programs[1] (step).commands[15] (addmm_9): expected 6 "
            "arguments of aten::addmm.out, found 1");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              step(plan).launch(plan.operators[3].second, {0, 4000, 6}, "mm_3");
            }),
            "small.plan: programs[1] (step).commands[15] (mm_3): expected "
            "buffer index below 16, found 4000");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              step(plan).launch(plan.operators[3].second, {0, -99, 6}, "mm_3");
            }),
            "small.plan: programs[1] (step).commands[15] (mm_3): expected "
            "constant index below 9, found 98");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              int32_t list = plan.refs({0, 3});
              step(plan).launch(plan.operators[3].second, {0, list, 6}, "mm_3");
            }),
            "small.plan: programs[1] (step).commands[15] (mm_3): expected mat2 "
            "of type Tensor, found Refs");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              plan.constants[0] = plan.constants[1]; // a size that is no list
            }),
            "small.plan: programs[0] (init).commands[0] (ones): expected size "
            "of type SymInt[], found Int");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.refs({-2}); }),
            "small.plan: constants[9]: expected buffer index below 16, found "
            "4294967294");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              step(plan).launch("aten::relu(Tensor self) -> Tensor", {6});
            }),
            "small.plan: programs[1] (step).commands[15]: expected 1 results "
            "of aten::relu, found 0");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              step(plan).launch("aten::cat(Tensor[] tensors, int dim=0) -> "
                                "Tensor",
                                {plan.refs({6, -1}), plan.integer(0)}, "cat",
                                {6});
            }),
            "small.plan: programs[1] (step).commands[15] (cat): expected "
            "tensors of type Tensor[], found none inside");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.constant(Value(77),
                            [](auto &fbb) { return CreateNone(fbb); });
            }),
            "small.plan: constants[9]: expected a known kind of value, found "
            "77");
}

TEST(PlanCheck, RejectsBadWrites) {
  auto zero = [](uint32_t buffer) {
    return [=](TestPlan &plan) {
      plan.on(Stream::Compute, Role::Forward).zero(buffer);
    };
  };
  EXPECT_EQ(rejectionAfter(zero(0)),
            "small.plan: programs[1] (step).commands[15]: expected a buffer "
            "that Forward commands may write, found buffers[0] of role Shard");
  EXPECT_EQ(rejectionAfter(zero(3)),
            "small.plan: programs[1] (step).commands[15]: expected a buffer "
            "that Forward commands may write, found buffers[3] of role Result");
  EXPECT_EQ(rejectionAfter(zero(14)), // a view of the input
            "small.plan: programs[1] (step).commands[15]: expected a buffer "
            "that Forward commands may write, found buffers[14] of role Input");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.on(Stream::Compute, Role::Forward).copy(6, 5);
            }),
            "small.plan: programs[1] (step).commands[15]: expected a target of "
            "8 elements, found 32");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[10].sizes = {2};
              plan.buffers[10].strides = TestPlan::Numbers{2};
              plan.on(Stream::Compute, Role::Forward).zero(10);
              plan.programs[1].commands.erase(
                  plan.programs[1].commands.begin() + 3);
            }),
            "small.plan: programs[1] (step).commands[14]: expected a dense "
            "buffer, found buffers[10]");
}

// covers: _init_streams
TEST(PlanCheck, RejectsBadEventsAndRoles) {
  auto &&on = [](auto make) {
    return
        [=](TestPlan &plan) { make(plan.on(Stream::Compute, Role::Forward)); };
  };
  EXPECT_EQ(rejectionAfter(on([](TestPlan &plan) { plan.wait(3); })),
            "small.plan: programs[1] (step).commands[15]: expected event index "
            "below 3, found 3");
  EXPECT_EQ(rejectionAfter(on([](TestPlan &plan) { plan.wait(1); })),
            "small.plan: programs[1] (step).commands[15]: expected an event of "
            "another stream, found event 1 of Compute");
  EXPECT_EQ(rejectionAfter(on([](TestPlan &plan) { plan.record(1); })),
            "small.plan: programs[1] (step).commands[15]: expected an event "
            "that is recorded once, found event 1 again");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              std::swap(plan.programs[1].commands[1],
                        plan.programs[1].commands[2]);
            }),
            "small.plan: programs[1] (step).commands[1]: expected an event "
            "that has been recorded, found event 0");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.programs[0].events = 2; }),
            "small.plan: programs[0] (init): expected at most one event for "
            "each command, found 2 events");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.programs[0].commands[0].role = Role::Forward;
            }),
            "small.plan: programs[0] (init).commands[0] (ones): expected a "
            "buffer that Forward commands may write, found buffers[3] of role "
            "Result");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.programs[1].commands[1].role = Role::Init;
            }),
            "small.plan: programs[1] (step).commands[1]: expected a role of a "
            "step, found Init");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.programs[1].name = "init"; }),
      "small.plan: programs[1] (init): expected another program, found a "
      "second program init");
}

// Init runs once: what it reads must be the same in all steps.
TEST(PlanCheck, RejectsInitThatReadsWhatStepsChange) {
  auto readsOnce = [](uint32_t buffer, auto damage) {
    return rejectionAfter([&](TestPlan &plan) {
      std::swap(plan.programs[0], plan.programs[1]); // the last one grows
      plan.on(Stream::Compute, Role::Init).copy(buffer, 3);
      std::swap(plan.programs[0], plan.programs[1]);
      damage(plan);
    });
  };
  auto nothing = [](TestPlan &) {};
  EXPECT_EQ(readsOnce(4, nothing),
            "small.plan: programs[0] (init).commands[1]: expected Init "
            "commands to read what no step changes, found buffers[4] of role "
            "Input");
  EXPECT_THAT(readsOnce(0, nothing),
              HasSubstr("found buffers[0] of role Shard"));
  auto asModelBuffer = [](TestPlan &plan) {
    TestPlan::Buffer &buffer = plan.buffers[1];
    buffer = {BufferRole::ModelBuffer, {2, 4}, buffer.offset};
    buffer.name = "running";
    plan.programs[1].commands.pop_back(); // the update
  };
  EXPECT_EQ(readsOnce(1, asModelBuffer), "accepted");
  EXPECT_EQ(readsOnce(1,
                      [&](TestPlan &plan) {
                        asModelBuffer(plan);
                        plan.on(Stream::Compute, Role::Backward).zero(1);
                      }),
            "small.plan: programs[1] (step): expected no command that writes "
            "what Init commands have read, once for all steps, found "
            "buffers[1] (running) as a target");
}

// Collectives that are issued in one call stand in a row and are alike.
TEST(PlanCheck, RejectsBadGroups) {
  auto grouped = [](auto damage) {
    return rejectionAfter([&](TestPlan &plan) {
      std::vector<TestPlan::Command> &commands = plan.programs[1].commands;
      commands[0].group = 7;
      commands.insert(commands.begin(), commands[0]);
      damage(commands);
    });
  };
  EXPECT_EQ(grouped([](auto &) {}), "accepted");
  EXPECT_EQ(grouped([](auto &commands) { commands[2].group = 7; }),
            "small.plan: programs[1] (step).commands[2]: expected a collective "
            "in group 7, found Record");
  EXPECT_EQ(grouped([](auto &commands) { commands[6].group = 7; }),
            "small.plan: programs[1] (step).commands[6]: expected the "
            "collectives of group 7 in a row, found another command between "
            "them");
  EXPECT_EQ(grouped([](auto &commands) { commands[1].role = Role::Backward; }),
            "small.plan: programs[1] (step).commands[1]: expected one kind, "
            "communicator and role in group 7, found two");
}

// A mean over ranks divides, and by no more than there are; all else turns good
// numbers into zeros and infinities.
// covers: DefaultState
TEST(PlanCheck, RejectsBadDivisors) {
  auto divide = [](double pre, double post, uint32_t ranks = 2,
                   DType via = DType::F32) {
    return rejectionAfter([&](TestPlan &plan) {
      plan.mesh = {{"replicate", ranks / 2}, {"shard", 2}};
      plan.groups = {{"shard", {1}}};
      TestPlan::Buffer sum = plan.buffers[6];
      sum.root = 6;
      sum.dtype = via;
      plan.add(sum); // 16
      plan.on(Stream::Compute, Role::Backward)
          .allReduce(16, 16, none, pre, post, 0, via);
    });
  };
  std::string start = "small.plan: programs[1] (step).commands[15]: expected "
                      "divisors of at least 1 whose product is at most the ";
  EXPECT_EQ(divide(2, 1), "accepted");
  EXPECT_EQ(divide(4, 1.5, 6), "accepted");
  EXPECT_EQ(divide(1, 0), start + "2 ranks, found 1 and 0");
  EXPECT_EQ(divide(0.5, 2), start + "2 ranks, found 0.5 and 2");
  EXPECT_EQ(divide(1, -2), start + "2 ranks, found 1 and -2");
  EXPECT_EQ(divide(2, 2), start + "2 ranks, found 2 and 2");
  EXPECT_EQ(divide(1e300, 1e-300), start + "2 ranks, found 1e+300 and 1e-300");
  EXPECT_EQ(divide(1, 1e-310), start + "2 ranks, found 1 and 1e-310");
  EXPECT_EQ(divide(1, INFINITY), start + "2 ranks, found 1 and inf");
  EXPECT_EQ(divide(1, NAN), start + "2 ranks, found 1 and nan");
  EXPECT_EQ(divide(256, 512, 1 << 17, DType::F16), "accepted");
  EXPECT_EQ(divide(1, 1 << 17, 1 << 17, DType::F16),
            "small.plan: programs[1] (step).commands[15]: expected divisors "
            "that f16 can hold, found 1 and 131072");
}

// NCCL sums in one type: what is of another is cast by a command of its own.
TEST(PlanCheck, RejectsSumsOfTwoTypes) {
  auto sum = [](DType dtype, DType via) {
    return rejectionAfter([&](TestPlan &plan) {
      TestPlan::Buffer buffer = plan.buffers[6];
      buffer.root = 6;
      buffer.dtype = dtype;
      plan.add(buffer); // 16
      plan.on(Stream::Compute, Role::Backward)
          .allReduce(16, 16, none, 1, 2, 0, via);
    });
  };
  std::string start = "small.plan: programs[1] (step).commands[15]: expected a "
                      "sum of ";
  EXPECT_EQ(sum(DType::BF16, DType::BF16), "accepted");
  EXPECT_EQ(sum(DType::BF16, DType::F32),
            start + "one element type, f32, found a buffer of bf16");
  EXPECT_EQ(sum(DType::F32, DType::BF16),
            start + "one element type, bf16, found a buffer of f32");
  EXPECT_EQ(sum(DType::I16, DType::I16), start + "floats, found i16");
}

// The order in which a kernel writes is its own business: no byte may be
// written twice by one command.
TEST(PlanCheck, RejectsTargetsThatShareBytes) {
  auto launch = [](const char *name, auto makeArgs,
                   std::vector<uint32_t> results = {}) {
    return rejectionAfter([&](TestPlan &plan) {
      TestPlan::Buffer half;
      half.sizes = {4};
      half.root = 6;
      half.offset = plan.buffers[6].offset;
      plan.add(half); // 16
      half.offset += 8;
      plan.add(half); // 17
      half.offset += 8;
      plan.add(half); // 18
      plan.on(Stream::Compute, Role::Backward)
          .launch(std::string(fsdp::operators::lookupOpFacts(name)->schema),
                  makeArgs(plan), "", results);
    });
  };
  auto out = [&](int32_t min, int32_t max) {
    return launch("aminmax.out", [=](TestPlan &plan) {
      return std::vector<int32_t>{3, plan.nothing(), plan.boolean(false), min,
                                  max};
    });
  };
  auto fresh = [&](uint32_t min, uint32_t max) {
    return launch("aminmax",
                  [](TestPlan &plan) {
                    return std::vector<int32_t>{3, plan.nothing(),
                                                plan.boolean(false)};
                  },
                  {min, max});
  };
  auto list = [&](std::vector<int32_t> targets) {
    return launch("_foreach_zero_", [=](TestPlan &plan) {
      return std::vector<int32_t>{plan.refs(targets)};
    });
  };
  std::string start = "small.plan: programs[1] (step).commands[15]: expected "
                      "targets apart from each other, found ";
  EXPECT_EQ(out(16, 18), "accepted");
  EXPECT_EQ(out(18, 16), "accepted");
  EXPECT_EQ(out(16, 16), start + "buffers[16] across buffers[16]");
  EXPECT_EQ(out(17, 16), start + "buffers[17] across buffers[16]");
  EXPECT_EQ(fresh(16, 18), "accepted");
  EXPECT_EQ(fresh(17, 18), start + "buffers[18] across buffers[17]");
  EXPECT_EQ(fresh(17, none), "accepted");
  EXPECT_EQ(list({16, 18}), "accepted");
  EXPECT_EQ(list({18, 16, 6}), start + "buffers[16] across buffers[6]");
}

// Nor may two elements of a target be one.
TEST(PlanCheck, RejectsTargetsThatOverlapThemselves) {
  auto write = [](TestPlan::Numbers sizes, TestPlan::Numbers strides) {
    return rejectionAfter([&](TestPlan &plan) {
      TestPlan::Buffer other;
      other.sizes = sizes;
      other.strides = strides;
      other.root = 6;
      other.offset = plan.buffers[6].offset;
      plan.on(Stream::Compute, Role::Backward).copy(3, plan.add(other));
    });
  };
  std::string rejected =
      "small.plan: programs[1] (step).commands[15]: expected a target whose "
      "elements have their own bytes, found buffers[16], where some share them";
  EXPECT_EQ(write({4, 2}, {1, 4}), "accepted");
  EXPECT_EQ(write({8, 1}, {1, 0}), "accepted");
  EXPECT_EQ(write({2, 4}, {0, 1}), rejected);
  EXPECT_EQ(write({4, 2}, {2, 1}), "accepted");
  EXPECT_EQ(write({4, 2}, {1, 2}), rejected);
  // As many elements as there are in [0, 8), but not those.
  EXPECT_EQ(write({2, 2, 2}, {7, 0, 0}), rejected);
}

// What softmax writes is row-major, whatever is said of its target.
TEST(PlanCheck, RejectsStridesThatAKernelIgnores) {
  auto softmax = [](TestPlan::Numbers strides) {
    return rejectionAfter([&](TestPlan &plan) {
      TestPlan::Buffer other;
      other.sizes = {4, 2};
      other.strides = strides;
      other.root = 6;
      other.offset = plan.buffers[6].offset;
      auto out = static_cast<int32_t>(plan.add(other));
      plan.on(Stream::Compute, Role::Backward)
          .launch("aten::_softmax.out(Tensor self, int dim, bool half_to_float,"
                  " *, Tensor(a!) out) -> Tensor(a!)",
                  {3, plan.integer(0), plan.boolean(false), out});
    });
  };
  EXPECT_EQ(softmax({2, 1}), "accepted");
  EXPECT_THAT(softmax({1, 4}),
              HasSubstr("expected a row-major target, for aten::_softmax.out "
                        "ignores other strides, found buffers[16]"));
}

// covers: gradients of another shape or device
TEST(PlanCheck, RejectsBadCollectives) {
  auto collective = [](auto add) {
    return rejectionAfter(
        [=](TestPlan &plan) { add(plan.on(Stream::Gather, Role::Backward)); });
  };
  EXPECT_EQ(collective([](TestPlan &plan) { plan.allGather(0, 6, 0); }),
            "small.plan: programs[1] (step).commands[15]: expected 2 x 16 "
            "elements for the whole, found 8");
  EXPECT_EQ(collective([](TestPlan &plan) { plan.allGather(0, 5, 0, 9); }),
            "small.plan: programs[1] (step).commands[15]: expected "
            "communicator index below 3, found 9");
  EXPECT_EQ(collective([](TestPlan &plan) {
              plan.on(Stream::Reduce, Role::Backward)
                  .command(Step::AllGather, [](TestPlan::FBB &fbb) {
                    return CreateAllGather(fbb, 0, 0, 5, 0);
                  });
            }),
            "small.plan: programs[1] (step).commands[15]: expected "
            "communicators[0] (shard)'s stream, Gather, found Reduce");
  EXPECT_EQ(rejectionAfter(
                [](TestPlan &plan) { plan.groups.push_back({"other", {0}}); }),
            "small.plan: communicators[1] (other): expected other axes or "
            "another stream than earlier ones have, found Gather");
  EXPECT_EQ(collective([](TestPlan &plan) { plan.allGather(0, 5, 9); }),
            "small.plan: programs[1] (step).commands[15]: expected unit index "
            "below 1, found 9");
  EXPECT_EQ(collective([](TestPlan &plan) { plan.allReduce(6, 6, 0, 1, 2); }),
            "small.plan: programs[1] (step).commands[15]: expected pieces of "
            "16 elements of unit u, found 8");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              TestPlan::Buffer half;
              half.sizes = {4};
              half.offset = plan.buffers[6].offset + 4;
              half.root = 6;
              uint32_t first = plan.add(half);
              half.offset += 4;
              plan.on(Stream::Compute, Role::Forward)
                  .allReduce(first, plan.add(half), none, 1, 2);
            }),
            "small.plan: programs[1] (step).commands[15]: expected a source "
            "and a target apart, found buffers[16] across buffers[17]");
  // A piece is like the end of a scatter, but sends nothing.
  EXPECT_EQ(collective([](TestPlan &plan) { plan.piece(5, 9, 0); }),
            "accepted");
  EXPECT_EQ(collective([](TestPlan &plan) { plan.piece(5, 6, none); }),
            "small.plan: programs[1] (step).commands[15]: expected 2 x 8 "
            "elements for the whole, found 32");
  EXPECT_EQ(collective([](TestPlan &plan) { plan.piece(5, 0, 0); }),
            "small.plan: programs[1] (step).commands[15]: expected a buffer "
            "that Backward commands may write, found buffers[0] of role Shard");
  EXPECT_EQ(collective([](TestPlan &plan) {
              plan.piece(5, 9, 0);
              plan.programs.back().commands.back().group = 7;
            }),
            "small.plan: programs[1] (step).commands[15]: expected a "
            "collective in group 7, found Piece");
  // In groups of fewer ranks than there are shards, the whole is the unit's.
  auto small = [](auto add) {
    return rejectionAfter([=](TestPlan &plan) {
      plan.mesh = {{"shard", 2}, {"local", 1}};
      plan.groups.push_back({"local", {1}});
      TestPlan::Buffer part;
      part.sizes = {8};
      part.offset = plan.buffers[8].offset;
      part.root = 8;
      add(plan.on(Stream::Gather, Role::Backward), plan.add(part));
    });
  };
  EXPECT_EQ(small([](TestPlan &plan, uint32_t) { plan.piece(5, 8, 0, 1); }),
            "accepted");
  EXPECT_EQ(
      small([](TestPlan &plan, uint32_t part) { plan.piece(6, part, 0, 1); }),
      "small.plan: programs[1] (step).commands[15]: expected 32 elements of "
      "unit u for the whole, found 8");
  EXPECT_EQ(small([](TestPlan &plan, uint32_t part) {
              plan.allGather(part, 6, 0, 1);
            }),
            "small.plan: programs[1] (step).commands[15]: expected 32 elements "
            "of unit u for the whole, found 8");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.digest = {"0123456789abcdef", "", ""};
            }),
            "small.plan: digest[0]: expected 142ec7ae83e652e6, found "
            "0123456789abcdef");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.digest.emplace(); }),
      "small.plan: digest: expected one entry for each of 3 communicators, "
      "found 0");
}

} // namespace

// All draws of a rank have one order.
TEST(PlanCheck, RejectsDrawsWithoutAnOrder) {
  auto draw = [](Stream stream, Role role) {
    return rejectionAfter([&](TestPlan &plan) {
      if (role == Role::Init)
        std::swap(plan.programs[0], plan.programs[1]);
      plan.on(stream, role)
          .launch(
              "aten::uniform_(Tensor(a!) self, float from=0., float to=1., *, "
              "Generator? generator=None) -> Tensor(a!)",
              {6, plan.number(0), plan.number(1), plan.nothing()}, "noise");
      if (role == Role::Init)
        std::swap(plan.programs[0], plan.programs[1]);
    });
  };
  EXPECT_EQ(draw(Stream::Compute, Role::Forward), "accepted");
  EXPECT_EQ(
      draw(Stream::Copy, Role::Forward),
      "small.plan: programs[1] (step).commands[15] (noise): expected to draw "
      "random numbers on the compute stream, found Copy");
  EXPECT_EQ(
      draw(Stream::Compute, Role::Init),
      "small.plan: programs[0] (init).commands[1] (noise): expected no random "
      "numbers in a program of constants, found aten::uniform_");
}

// Attention would draw from a generator that nobody knows.
TEST(PlanCheck, RejectsAttentionWithDropout) {
  auto attend = [](double dropout) {
    return rejectionAfter([&](TestPlan &plan) {
      plan.on(Stream::Compute, Role::Forward)
          .launch("aten::_scaled_dot_product_flash_attention_for_cpu(Tensor "
                  "query, Tensor key, Tensor value, float dropout_p=0., bool "
                  "is_causal=False, *, Tensor? attn_mask=None, float? "
                  "scale=None) -> (Tensor output, Tensor logsumexp)",
                  {3, 3, 3, plan.number(dropout), plan.boolean(false),
                   plan.nothing(), plan.nothing()},
                  "attention", {6, fsdp::planfile::none});
    });
  };
  EXPECT_EQ(attend(0), "accepted");
  EXPECT_THAT(attend(0.1), HasSubstr("expected attention without dropout"));
}
