//===- PlanFileTest.cpp - Reading, writing and rejecting plan files -------===//

#include "PlanRejection.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp::planfile;
using fsdp::test::makeSmallPlan;
using fsdp::test::rejection;
using fsdp::test::rejectionAfter;
using fsdp::test::TestPlan;

namespace {

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
      if (const Update *update = command->step_as_Update())
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

// Sums over the programs of a step; of peaks, by how long each takes at its
// own.
TEST(PlanFile, PredictsSteps) {
  auto predict = [](std::optional<std::array<uint64_t, 4>> step) {
    TestPlan plan = makeSmallPlan();
    plan.programs.back().prediction = step;
    Expected<PlanFile> file = plan.seal();
    return predictStep(file->plan(), plan.programs.back().name);
  };
  EXPECT_FALSE(predict({}));
  std::optional<StepPrediction> step = predict({{4000, 1000, 6000, 3000}});
  ASSERT_TRUE(step);
  EXPECT_DOUBLE_EQ(step->seconds, 4e-6);
  EXPECT_DOUBLE_EQ(step->exposed, 1e-6);
  EXPECT_DOUBLE_EQ(step->flops, 6000);
  EXPECT_DOUBLE_EQ(step->mfu(8).value(), 0.25);
  EXPECT_FALSE(step->mfu(0));
  EXPECT_FALSE(predict({{4000, 1000, 6000, 0}})->mfu(8)); // nobody knows it
  EXPECT_FALSE(predict({{4000, 1000, 0, 3000}})->mfu(8)); // nothing to use it
  EXPECT_FALSE(predictStep(makeSmallPlan().seal()->plan(), "other"));
}

TEST(PlanFile, DescribesCollectives) {
  Expected<PlanFile> file = makeSmallPlan().seal();
  ASSERT_TRUE(file);
  using testing::ElementsAre;
  std::vector<std::vector<std::string>> lines = getCollectives(file->plan());
  EXPECT_THAT(lines,
              ElementsAre(ElementsAre("all_gather 64 bytes f32 u"),
                          ElementsAre("all_reduce 4 bytes f32"),
                          ElementsAre("reduce_scatter 128 bytes f32 u")));
  EXPECT_EQ((*file)->digest()->Get(0)->str(), digestCollectives(lines[0]));
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

// covers: Handling
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
