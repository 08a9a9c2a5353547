//===- HardwareTest.cpp - Hardware files and the durations they give ------===//

#include "fsdp/Planner/Hardware.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp::planner;

namespace {

const std::string good = R"(
name = "test"
launch_us = 1
[compute]
matrix = { f64 = 1, f32 = 100, bf16 = 200, f16 = 200 }
attention = { f64 = 1, f32 = 50, bf16 = 50, f16 = 50 }
vector = 10
[memory]
gbytes = 10
[link.node]
ranks = 8
all_gather = { latency_us = 10, rank_us = 1, gbytes = 2 }
reduce_scatter = { latency_us = 20, rank_us = 1, gbytes = 2 }
all_reduce = { latency_us = 30, rank_us = 1, gbytes = 2 }
)";

std::string replaced(std::string text, const std::string &from,
                     const std::string &to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// What the formulas say, by hand.
TEST(Hardware, DurationsFollowTheFormulas) {
  auto hardware = parseHardware(good, "t.toml");
  ASSERT_TRUE(hardware) << hardware.error().message;
  using Kind = Computation::Kind;
  // Bound by the product, then by memory.
  EXPECT_EQ(hardware->getDuration(
                Computation{Kind::Matrix, FloatType::F32, 1e6, 1e4}),
            1000 + 10000);
  EXPECT_EQ(hardware->getDuration(
                Computation{Kind::Matrix, FloatType::BF16, 1e6, 1e6}),
            1000 + 100000);
  EXPECT_EQ(
      hardware->getDuration(Computation{Kind::Vector, FloatType::F32, 1e6, 0}),
      1000 + 100000);
  EXPECT_EQ(
      hardware->getDuration(Communication{CollectiveKind::AllGather, 8000, 4}),
      10000 + 3 * 1000 + 8000 * 3 / 4 / 2);
  EXPECT_EQ(
      hardware->getDuration(Communication{CollectiveKind::AllReduce, 8000, 4}),
      30000 + 3 * 1000 + 2 * 8000 * 3 / 4 / 2);
  EXPECT_EQ(
      hardware->getDuration(Communication{CollectiveKind::AllReduce, 8000, 1}),
      0);
}

// A copy has a way of its own, and an update on the host a memory of its own;
// without them, there is nothing to copy to.
// covers: H2D
TEST(Hardware, HostsHaveAWayAndAMemory) {
  auto without = parseHardware(good, "t.toml");
  auto hardware = parseHardware(
      good + "[host]\nlatency_us = 5\nlink_gbytes = 4\ngbytes = 20\n",
      "t.toml");
  ASSERT_TRUE(hardware && without);
  EXPECT_EQ(without->host.bandwidth, 0);
  EXPECT_EQ(hardware->getDuration(Transfer{8000}), 5000 + 2000);
  Computation work{Computation::Kind::Vector, FloatType::F32, 0, 40000};
  EXPECT_EQ(hardware->getDuration(work), 1000 + 4000);
  work.isOnHost = true;
  EXPECT_EQ(hardware->getDuration(work), 1000 + 2000);
  auto bad = parseHardware(good + "[host]\nlatency_us = 5\n", "t.toml");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message,
            "t.toml: host.link_gbytes: expected a number from 0.001 to 1e+09, "
            "found nothing");
}

// Small enough for the cache, and large enough for the network.
TEST(Hardware, SizesChooseTheLink) {
  auto hardware = parseHardware(
      replaced(good, "gbytes = 10",
               "gbytes = 10\ncache_gbytes = 100\n"
               "cache_mbytes = 1") +
          "[link.network]\n"
          "all_gather = { latency_us = 70, rank_us = 0, gbytes = 1 }\n"
          "reduce_scatter = { latency_us = 80, rank_us = 0, gbytes = 1 }\n"
          "all_reduce = { latency_us = 90, rank_us = 0, gbytes = 1 }\n",
      "t.toml");
  ASSERT_TRUE(hardware) << hardware.error().message;
  using Kind = Computation::Kind;
  EXPECT_EQ(
      hardware->getDuration(Computation{Kind::Vector, FloatType::F32, 0, 1e6}),
      1000 + 10000);
  EXPECT_EQ(
      hardware->getDuration(Computation{Kind::Vector, FloatType::F32, 0, 2e6}),
      1000 + 200000);
  EXPECT_EQ(hardware->getDuration(
                Communication{CollectiveKind::ReduceScatter, 16000, 16}),
            80000 + 15000);
}

// The files of the repository are what is built in.
TEST(Hardware, BuiltInFilesAreRead) {
  for (const char *name : {"cpu", "h100"}) {
    auto hardware = loadHardware(name);
    ASSERT_TRUE(hardware) << hardware.error().message;
    EXPECT_EQ(hardware->name, name);
  }
  auto missing = loadHardware("/no/such.toml");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message.find("/no/such.toml: "), 0u);
}

// Each kind of damage has one sentence, which says where.
TEST(Hardware, RejectsBadFiles) {
  auto expect = [](const std::string &text, const std::string &sentence) {
    auto hardware = parseHardware(text, "t.toml");
    ASSERT_FALSE(hardware) << sentence;
    EXPECT_EQ(hardware.error().message, sentence);
  };
  expect("launch_us = ", "t.toml: line 1: Error while parsing key-value pair: "
                         "encountered end-of-file");
  expect("", "t.toml: name: expected a text");
  expect(
      std::string(70000, '#'),
      "t.toml: expected a hardware file of at most 65536 bytes, found 70000");
  expect(replaced(good, "launch_us = 1", "launch_us = -1"),
         "t.toml: launch_us: expected a number from 0 to 1e+09, found -1");
  expect(replaced(good, "launch_us = 1", "launch_us = nan"),
         "t.toml: launch_us: expected a number from 0 to 1e+09, found nan");
  expect(replaced(good, "launch_us = 1", "launch_us = '1'"),
         "t.toml: launch_us: expected a number from 0 to 1e+09, found "
         "something else");
  expect(replaced(good, "launch_us = 1", "launch_us = 1\nshared_core = 1"),
         "t.toml: shared_core: expected true or false");
  expect(replaced(good, "f32 = 100, ", ""),
         "t.toml: compute.matrix.f32: expected a number from 0.001 to 1e+09, "
         "found nothing");
  expect(replaced(good, "vector = 10", "vector = 0"),
         "t.toml: compute.vector: expected a number from 0.001 to 1e+09, found "
         "0");
  expect(replaced(good, "vector = 10", "vectors = 10"),
         "t.toml: compute: expected only matrix, attention, vector, found "
         "'vectors'");
  expect(replaced(good, "[memory]\ngbytes = 10", "[[memory]]\ngbytes = 10"),
         "t.toml: memory: expected a table");
  expect("[+]", "t.toml: expected TOML");
  expect("name = \"\xc3\xa4\"",
         "t.toml: expected ASCII text, found a byte of value 195");
  expect(replaced(good, "ranks = 8", "ranks = 0"),
         "t.toml: link.node.ranks: expected a number from 1 to 1e+09, found 0");
  expect(replaced(good, "gbytes = 2 }", "gbytes = inf }"),
         "t.toml: link.node.all_gather.gbytes: expected a number from 0.001 to "
         "1e+09, found inf");
  expect(replaced(good, "all_reduce", "all_to_all"),
         "t.toml: link.node: expected only ranks, all_gather, reduce_scatter, "
         "all_reduce, found 'all_to_all'");
}

// No work is negative, endless or undefined, whatever its sizes.
TEST(Hardware, DurationsAreFinite) {
  auto hardware = loadHardware("cpu");
  ASSERT_TRUE(hardware);
  EXPECT_TRUE(rc::check([&] {
    auto flops = *rc::gen::arbitrary<double>();
    auto bytes = *rc::gen::arbitrary<double>();
    auto ranks = *rc::gen::arbitrary<int64_t>();
    int64_t week = int64_t(7) * 24 * 3600 * 1000000000;
    for (int64_t duration :
         {hardware->getDuration(Computation{Computation::Kind::Matrix,
                                            FloatType::F32, flops, bytes}),
          hardware->getDuration(
              Communication{CollectiveKind::AllGather, bytes, ranks})}) {
      RC_ASSERT(duration >= 0);
      RC_ASSERT(duration <= week);
    }
  }));
}

// Whatever the bytes are, there is an answer.
TEST(Hardware, AnyTextHasAnAnswer) {
  EXPECT_TRUE(rc::check([] {
    std::string text = good;
    for (int damage = *rc::gen::inRange(1, 6); damage; --damage)
      text[*rc::gen::inRange<size_t>(0, text.size())] =
          char(*rc::gen::inRange(0, 256));
    auto hardware = parseHardware(text, "t.toml");
    if (!hardware)
      RC_ASSERT(hardware.error().message.find("t.toml: ") == 0u);
  }));
}

} // namespace
