//===- PlanFileTest.cpp - Reading, writing and rejecting plan files -------===//

#include "Support/TestPlan.h"
#include "fsdp/Archive/OpFacts.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp::planfile;
using fsdp::test::makeSmallPlan;
using fsdp::test::TestPlan;

namespace {

std::string rejection(TestPlan plan) {
  Expected<PlanFile> file = plan.seal();
  return file ? "accepted" : file.error().message;
}

/// Damages the small plan and returns why it is rejected.
template <typename Damage> std::string rejectionAfter(Damage damage) {
  TestPlan plan = makeSmallPlan();
  damage(plan);
  return rejection(std::move(plan));
}

std::string rejection(std::vector<uint8_t> bytes) {
  Expected<PlanFile> file = PlanFile::fromBytes("small.plan", std::move(bytes));
  return file ? "accepted" : file.error().message;
}

/// Reads all that a runtime would read of an accepted plan.
uint64_t readAll(const PlanFile &file) {
  uint64_t sum = 0;
  for (const Buffer *buffer : *file->buffers()) {
    for (int64_t size : file.shape(buffer->sizes()))
      sum += static_cast<uint64_t>(size);
    for (int64_t stride : file.shape(buffer->strides()))
      sum += static_cast<uint64_t>(stride);
    sum += file.string(buffer->name()).size();
    sum += file->buffers()->Get(buffer->root())->offset();
    if (buffer->bytes())
      for (uint8_t byte : *buffer->bytes())
        sum += byte;
  }
  for (const Unit *unit : *file->units())
    for (const Parameter *parameter : *unit->parameters()) {
      sum += file.string(parameter->name()).size() + parameter->offset();
      for (int64_t size : file.shape(parameter->sizes()))
        sum += static_cast<uint64_t>(size);
    }
  for (const Program *program : *file->programs())
    for (const Command *command : *program->commands()) {
      sum += file.string(command->node()).size();
      if (const Launch *launch = command->step_as_Launch()) {
        sum +=
            file.string(file->operators()->Get(launch->op())->schema()).size();
        for (int32_t arg : *launch->args())
          sum +=
              arg >= 0
                  ? file->buffers()->Get(uint32_t(arg))->offset()
                  : uint64_t(
                        file->constants()->Get(uint32_t(~arg))->value_type());
      }
      if (const AdamW *update = command->step_as_AdamW())
        for (const Interval *interval : *update->intervals())
          sum += interval->end() - interval->begin();
    }
  for (uint32_t i = 0; i != file->communicators()->size(); ++i)
    sum += getCollectives(file.plan())[i].size();
  return sum;
}

TEST(PlanFile, AcceptsSoundPlans) {
  for (uint32_t ranks : {1, 2, 3, 4, 7}) {
    Expected<PlanFile> file = makeSmallPlan(ranks).seal();
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ((*file)->mesh()->Get(0)->size(), ranks);
    EXPECT_EQ(file->string((*file)->units()->Get(0)->name()), "u");
    EXPECT_GT(readAll(*file), 0u);
  }
}

TEST(PlanFile, WritesWhatItReads) {
  std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "fsdp-planfile";
  std::filesystem::create_directories(folder);
  std::string path = folder / "small.plan";
  Expected<PlanFile> written = makeSmallPlan().seal();
  ASSERT_TRUE(written);
  for (int i = 0; i != 2; ++i) { // once over an existing file
    Expected<size_t> size = written->write(path);
    ASSERT_TRUE(size) << size.error().message;
    EXPECT_EQ(*size, written->bytes().size());
  }
  Expected<PlanFile> read = PlanFile::open(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->bytes(), written->bytes());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  Expected<size_t> lost = written->write("/nonexistent/small.plan");
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().message, "/nonexistent/small.plan: cannot create the "
                                  "file: No such file or directory");
  std::filesystem::remove_all(folder);
}

TEST(PlanFile, DescribesCollectives) {
  Expected<PlanFile> file = makeSmallPlan().seal();
  ASSERT_TRUE(file);
  std::vector<std::string> lines = getCollectives(file->plan())[0];
  EXPECT_THAT(lines, testing::ElementsAre("all_gather 64 bytes f32 u",
                                          "all_reduce 4 bytes f32",
                                          "reduce_scatter 128 bytes f32 u"));
  EXPECT_EQ((*file)->digest()->Get(0)->str(), digestCollectives(lines));
  EXPECT_EQ(digestCollectives({}), "2d06800538d394c2"); // XXH3_64bits("")
}

TEST(PlanFile, RejectsWhatIsNoPlan) {
  EXPECT_EQ(rejection(std::vector<uint8_t>(20)),
            "small.plan: expected a plan file of 24 to 2147483647 bytes, found "
            "20 bytes");
  EXPECT_EQ(rejection(std::vector<uint8_t>(100, 'x')),
            "small.plan: expected a plan file, found other content");
  std::vector<uint8_t> plan = makeSmallPlan().flatbuffer();
  EXPECT_EQ(rejection(plan),
            "small.plan: expected the checksum of the content in the last 16 "
            "bytes, found another: the file is damaged or incomplete");
  plan.resize(plan.size() / 2);
  EXPECT_EQ(rejection(appendTrailer(plan.data(), plan.size())),
            "small.plan: expected a well-formed FlatBuffer, found offsets that "
            "lead outside or fields that are missing");
}

TEST(PlanFile, RejectsBadHeaders) {
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
  EXPECT_EQ(rejectionAfter(
                [](TestPlan &plan) { plan.communicators[0].second = {0, 0}; }),
            "small.plan: communicators[0] (shard): expected ascending axes, "
            "found 0 after 0");
  EXPECT_EQ(rejectionAfter(
                [](TestPlan &plan) { plan.communicators[0].second = {1}; }),
            "small.plan: communicators[0] (shard): expected mesh axis index "
            "below 1, found 1");
}

TEST(PlanFile, RejectsBadBuffers) {
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

TEST(PlanFile, RejectsBadUnits) {
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.mesh = {{"shard", 2}, {"replica", 3}};
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

TEST(PlanFile, RejectsBadOperatorsAndConstants) {
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
            "buffer index below 15, found 4000");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              step(plan).launch(plan.operators[3].second, {0, -99, 6}, "mm_3");
            }),
            "small.plan: programs[1] (step).commands[15] (mm_3): expected "
            "constant index below 6, found 98");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              int32_t list = plan.refs({0, 3});
              step(plan).launch(plan.operators[3].second, {0, list, 6}, "mm_3");
            }),
            "small.plan: programs[1] (step).commands[15] (mm_3): expected mat2 "
            "of type Tensor, found Refs");
  EXPECT_EQ(rejectionAfter([&](TestPlan &plan) {
              plan.constants[2] = plan.constants[0]; // a size that is no list
            }),
            "small.plan: programs[0] (init).commands[0] (ones): expected size "
            "of type SymInt[], found Int");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) { plan.refs({-2}); }),
            "small.plan: constants[6]: expected buffer index below 15, found "
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
            "small.plan: constants[6]: expected a known kind of value, found "
            "77");
}

TEST(PlanFile, RejectsBadWrites) {
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

TEST(PlanFile, RejectsBadEventsAndRoles) {
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

// Collectives that are issued in one call stand in a row and are alike.
TEST(PlanFile, RejectsBadGroups) {
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
            "communicator, stream and role in group 7, found two");
}

// A mean over ranks divides, and by no more than there are; all else turns good
// numbers into zeros and infinities.
TEST(PlanFile, RejectsBadDivisors) {
  auto divide = [](double pre, double post, uint32_t ranks = 2,
                   DType via = DType::F32) {
    return rejectionAfter([&](TestPlan &plan) {
      plan.mesh = {{"replica", ranks / 2}, {"shard", 2}};
      plan.communicators = {{"shard", {1}}};
      plan.on(Stream::Compute, Role::Backward);
      plan.command(Step::AllReduce, [=](TestPlan::FBB &fbb) {
        return CreateAllReduce(fbb, 0, 6, 6, none, pre, post, via);
      });
      std::string line =
          describeCollective(Step::AllReduce, 32, DType::F32, "");
      plan.programs.back().commands.back().line = {0, line};
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

// The order in which a kernel writes is its own business: no byte may be
// written twice by one command.
TEST(PlanFile, RejectsTargetsThatShareBytes) {
  auto launch = [](const char *name, auto makeArgs,
                   std::vector<uint32_t> results = {}) {
    return rejectionAfter([&](TestPlan &plan) {
      TestPlan::Buffer half;
      half.sizes = {4};
      half.root = 6;
      half.offset = plan.buffers[6].offset;
      plan.add(half); // 15
      half.offset += 8;
      plan.add(half); // 16
      half.offset += 8;
      plan.add(half); // 17
      plan.on(Stream::Compute, Role::Backward)
          .launch(std::string(fsdp::archive::lookupOpFacts(name)->schema),
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
  EXPECT_EQ(out(15, 17), "accepted");
  EXPECT_EQ(out(17, 15), "accepted");
  EXPECT_EQ(out(15, 15), start + "buffers[15] across buffers[15]");
  EXPECT_EQ(out(16, 15), start + "buffers[16] across buffers[15]");
  EXPECT_EQ(fresh(15, 17), "accepted");
  EXPECT_EQ(fresh(16, 17), start + "buffers[17] across buffers[16]");
  EXPECT_EQ(fresh(16, none), "accepted");
  EXPECT_EQ(list({15, 17}), "accepted");
  EXPECT_EQ(list({17, 15, 6}), start + "buffers[15] across buffers[6]");
}

// Nor may two elements of a target be one.
TEST(PlanFile, RejectsTargetsThatOverlapThemselves) {
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
      "elements have their own bytes, found buffers[15], where some share them";
  EXPECT_EQ(write({4, 2}, {1, 4}), "accepted");
  EXPECT_EQ(write({8, 1}, {1, 0}), "accepted");
  EXPECT_EQ(write({2, 4}, {0, 1}), rejected);
  EXPECT_EQ(write({4, 2}, {2, 1}), "accepted");
  EXPECT_EQ(write({4, 2}, {1, 2}), rejected);
  // As many elements as there are in [0, 8), but not those.
  EXPECT_EQ(write({2, 2, 2}, {7, 0, 0}), rejected);
}

// What softmax writes is row-major, whatever is said of its target.
TEST(PlanFile, RejectsStridesThatAKernelIgnores) {
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
  EXPECT_THAT(
      softmax({1, 4}),
      testing::HasSubstr("expected a row-major target, for aten::_softmax.out "
                         "ignores other strides, found buffers[15]"));
}

TEST(PlanFile, RejectsBadCollectives) {
  auto collective = [](auto add) {
    return rejectionAfter(
        [=](TestPlan &plan) { add(plan.on(Stream::Gather, Role::Backward)); });
  };
  EXPECT_EQ(collective([](TestPlan &plan) { plan.allGather(0, 6, 0); }),
            "small.plan: programs[1] (step).commands[15]: expected 2 x 16 "
            "elements for the whole, found 8");
  EXPECT_EQ(collective([](TestPlan &plan) { plan.allGather(0, 5, 0, 1); }),
            "small.plan: programs[1] (step).commands[15]: expected "
            "communicator index below 1, found 1");
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
            "and a target apart, found buffers[15] across buffers[16]");
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
      plan.communicators.push_back({"local", {1}});
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
  EXPECT_EQ(rejectionAfter(
                [](TestPlan &plan) { plan.digest = {"0123456789abcdef"}; }),
            "small.plan: digest[0]: expected 0798b3a94427075a, found "
            "0123456789abcdef");
  EXPECT_EQ(
      rejectionAfter([](TestPlan &plan) { plan.digest.emplace(); }),
      "small.plan: digest: expected one entry for each of 1 communicators, "
      "found 0");
}

TEST(PlanFile, RejectsBadUpdates) {
  auto update = [](std::vector<Interval> intervals, Role role = Role::Update,
                   uint32_t expAvg = 1) {
    return rejectionAfter([&](TestPlan &plan) {
      plan.on(Stream::Compute, role).adamW(0, expAvg, 2, intervals);
    });
  };
  EXPECT_EQ(update({{0, 33}}),
            "small.plan: programs[1] (step).commands[15]: expected ascending "
            "intervals inside [0, 32), found [0, 33)");
  EXPECT_EQ(update({{0, 8}, {4, 12}}),
            "small.plan: programs[1] (step).commands[15]: expected ascending "
            "intervals inside [8, 32), found [4, 12)");
  EXPECT_EQ(update({{0, 8}}, Role::Backward),
            "small.plan: programs[1] (step).commands[15]: expected the role "
            "Update, found Backward");
  EXPECT_EQ(update({{0, 8}}, Role::Update, 6),
            "small.plan: programs[1] (step).commands[15]: expected an "
            "optimizer state of the unit, found buffers[6]");
}

//===----------------------------------------------------------------------===//
// Damage
//===----------------------------------------------------------------------===//

/// What is wrong with what was accepted is for the sanitizers to find.
bool isAccepted(std::vector<uint8_t> bytes) {
  Expected<PlanFile> file = PlanFile::fromBytes("small.plan", std::move(bytes));
  if (file)
    readAll(*file);
  return static_cast<bool>(file);
}

TEST(PlanFileDamage, FlippedBits) {
  std::vector<uint8_t> plan = makeSmallPlan().flatbuffer();
  size_t accepted = 0, limit = std::min<size_t>(plan.size(), 4096) * 8;
  for (size_t bit = 0; bit != limit; ++bit) {
    auto flip = [&](std::vector<uint8_t> &bytes) {
      bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    };
    std::vector<uint8_t> file = appendTrailer(plan.data(), plan.size());
    flip(file);
    ASSERT_FALSE(isAccepted(std::move(file))) << "bit " << bit;
    flip(plan);
    accepted += isAccepted(appendTrailer(plan.data(), plan.size()));
    flip(plan);
  }
  RecordProperty("accepted", static_cast<int>(accepted));
  EXPECT_LT(accepted, limit / 2);
}

TEST(PlanFileDamage, Truncation) {
  std::vector<uint8_t> plan = makeSmallPlan().flatbuffer();
  std::vector<uint8_t> whole = appendTrailer(plan.data(), plan.size());
  for (size_t size = 0; size != whole.size(); ++size)
    ASSERT_FALSE(isAccepted({whole.begin(), whole.begin() + ptrdiff_t(size)}))
        << size << " bytes";
  for (size_t size = 0; size != plan.size(); ++size)
    isAccepted(appendTrailer(plan.data(), size));
}

TEST(PlanFileDamage, SharedVectorsDoNotMakeEndlessWork) {
  // A million commands that all are one launch with a million arguments.
  TestPlan plan = makeSmallPlan();
  flatbuffers::Offset<void> shared;
  std::string schema = "my::f(";
  for (int i = 0; i != 2000; ++i)
    schema += (i ? ", Tensor a" : "Tensor a") + std::to_string(i);
  uint32_t op = plan.op(schema + ") -> ()");
  for (int i = 0; i != 10000; ++i)
    plan.on(Stream::Compute, Role::Forward)
        .command(Step::Launch, [&, op](TestPlan::FBB &fbb) {
          if (shared.IsNull())
            shared = CreateLaunch(fbb, op,
                                  fbb.CreateVector(std::vector<int32_t>(2000)))
                         .Union();
          return flatbuffers::Offset<Launch>(shared.o);
        });
  EXPECT_THAT(rejection(plan),
              testing::HasSubstr(": expected vectors that are used once, found "
                                 "more elements than the file has bytes"));
}

// What is read once for each of many must not be long itself.
TEST(PlanFileDamage, ProductsOfTwoCountsDoNotMakeEndlessWork) {
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              for (int i = 0; i != 64; ++i)
                plan.mesh.insert(plan.mesh.begin(), {"one", 1});
            }),
            "small.plan: mesh: expected at most 63 axes, found 65");
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[6].sizes.insert(plan.buffers[6].sizes.begin(), 64,
                                           1);
            }),
            "small.plan: buffers[6]: expected at most 64 dimensions, found "
            "66");
  const char *tooMuch = ": expected vectors that are used once, found more "
                        "elements than the file has bytes";
  EXPECT_THAT(rejectionAfter([](TestPlan &plan) {
                std::string node(1 << 20, 'n');
                plan.on(Stream::Compute, Role::Forward);
                for (int i = 0; i != 1000; ++i)
                  plan.command(
                      Step::Zero,
                      [](TestPlan::FBB &fbb) { return CreateZero(fbb, 5); },
                      node);
              }),
              testing::HasSubstr(tooMuch));
  EXPECT_THAT(rejectionAfter([](TestPlan &plan) {
                plan.units[0].name = std::string(1 << 20, 'u');
                plan.on(Stream::Gather, Role::Forward);
                for (int i = 0; i != 1000; ++i)
                  plan.allGather(0, 5, 0);
              }),
              testing::HasSubstr(tooMuch));
}

// A kernel walks all elements, also those that share their bytes.
TEST(PlanFileDamage, ElementsThatShareBytesAreCounted) {
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[6].sizes = {int64_t(1) << 57};
              plan.buffers[6].strides = TestPlan::Numbers{0};
            }),
            "small.plan: buffers[6]: expected at most 1099511627776 elements, "
            "found 144115188075855872");
  // Whoever multiplies these sizes meets the 0 too late.
  EXPECT_EQ(rejectionAfter([](TestPlan &plan) {
              plan.buffers[6].sizes = {int64_t(1) << 62, 4, 0};
              plan.buffers[6].strides = TestPlan::Numbers{0, 0, 0};
            }),
            "small.plan: buffers[6]: expected bytes inside the arena of 768, "
            "found more than 2^63");
}

} // namespace
