//===- HardwareTest.cpp - Hardware files and the durations they give ------===//

#include "fsdp/Planner/Hardware.h"

#include "Support/Replace.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp::planner;
using fsdp::test::replace;

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

// A mask has rates of its own where the file has them.
TEST(Hardware, MasksSlowAttention) {
  Computation work{Computation::Kind::MaskedAttention, FloatType::F32, 1e6, 0};
  auto plain = parseHardware(good, "t.toml");
  auto slow = parseHardware(
      replace(good, "vector = 10",
              "masked_attention = { f64 = 1, f32 = 25, bf16 = 9, f16 = 9 }\n"
              "cudnn_attention = true\nvector = 10"),
      "t.toml");
  ASSERT_TRUE(plain && slow);
  EXPECT_EQ(plain->getDuration(work), 1000 + 20000);
  EXPECT_EQ(slow->getDuration(work), 1000 + 40000);
  EXPECT_TRUE(slow->hasCudnnAttention && !plain->hasCudnnAttention);
  EXPECT_EQ(write(*parseHardware(write(*slow), "again")), write(*slow));
}

// What its vendor states is not what a step is predicted by.
TEST(Hardware, PeaksAreKnownOrNot) {
  auto stated = parseHardware(
      replace(good, "vector = 10",
              "peak = { f64 = 1, f32 = 125, bf16 = 9, f16 = 9 }\nvector = 10"),
      "t.toml");
  ASSERT_TRUE(stated);
  EXPECT_EQ(stated->peak[size_t(FloatType::F32)], 125);
  EXPECT_EQ(parseHardware(write(*stated), "again")->peak, stated->peak);
  auto plain = parseHardware(good, "t.toml");
  EXPECT_EQ(plain->peak[size_t(FloatType::F32)], 0);
  for (auto kind : {Computation::Kind::Matrix, Computation::Kind::Attention}) {
    Computation work{kind, FloatType::F32, 1e6, 1e3};
    EXPECT_EQ(stated->getDuration(work), plain->getDuration(work));
  }
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

const std::string network = R"([link.network]
all_gather = { latency_us = 70, node_us = 6, gbytes = 0.5 }
reduce_scatter = { latency_us = 80, node_us = 0, gbytes = 0.125 }
all_reduce = { latency_us = 90, node_us = 0, gbytes = 1 }
)";

// Small enough for the cache, and large enough for the network.
TEST(Hardware, SizesChooseTheLink) {
  auto hardware = parseHardware(replace(good, "gbytes = 10",
                                        "gbytes = 10\ncache_gbytes = 100\n"
                                        "cache_mbytes = 1") +
                                    network,
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
            80000 + 14 * 1000 + 15000); // eight ways out of 0.125
}

// Two ranks in different nodes use the network, few as they are; and only those
// of the group that share a node share its ways out.
TEST(Hardware, DistancesChooseTheLink) {
  auto hardware = parseHardware(good + network, "t.toml");
  auto nodeOnly = parseHardware(good, "t.toml");
  ASSERT_TRUE(hardware && nodeOnly);
  auto time = [&](int64_t ranks, int64_t span) {
    return hardware->getDuration(Communication{
        CollectiveKind::AllGather, 1000.0 * double(ranks), ranks, 0, span});
  };
  int64_t node = 10000 + 1000 + 1000 / 2;
  EXPECT_EQ(time(2, 0), node);
  EXPECT_EQ(time(2, 2), node);
  EXPECT_EQ(time(2, 8), node);
  // One rank in each node: one way out of 0.5, and each step is a node's.
  EXPECT_EQ(time(2, 9), 70000 + 6000 + 1000 * 2);
  EXPECT_EQ(time(4, 25), 70000 + 3 * 6000 + 3000 * 2);
  // Every fourth rank: two in each node.
  EXPECT_EQ(time(4, 13), 70000 + 6000 + 2 * 1000 + 3000);
  // All of two nodes: the ways out together are faster than the node.
  EXPECT_EQ(time(16, 16), 70000 + 6000 + 14 * 1000 + 15000 / 2);
  // Whole nodes that are far apart.
  EXPECT_EQ(hardware->getDuration(
                Communication{CollectiveKind::AllGather, 16000, 16, 0, 72, 8}),
            time(16, 16));
  // Without a network, any group is in one node.
  EXPECT_EQ(nodeOnly->getDuration(
                Communication{CollectiveKind::AllGather, 2000, 2, 0, 1000}),
            node);
}

// A group in a node takes nothing of the network, and one with a rank in each
// node nothing of the links in them. All of several nodes are as fast as the
// slower ones of both, and take a part of the others.
TEST(Hardware, KnowsWhatCollectivesTakeOfLinks) {
  auto getLinks = [](const char *factors, int64_t ranks, int64_t span) {
    auto hardware = loadHardware("h100", factors);
    EXPECT_TRUE(hardware);
    Communication work = {CollectiveKind::AllGather, 1e9, ranks, 0, span};
    if (span == ranks)
      work.block = ranks;
    return hardware->getLinks(work);
  };
  EXPECT_EQ(getLinks("", 8, 8), (LinkUse{1024, 0}));
  EXPECT_EQ(getLinks("", 8, 57), (LinkUse{0, 1024}));
  EXPECT_EQ(getLinks("", 64, 64), (LinkUse{1024, 960})); // 360 of 8 x 48 GB/s
  const char *slow = "link.network.all_gather.gbytes=0.125x";
  EXPECT_EQ(getLinks(slow, 64, 64), (LinkUse{137, 1024})); // 8 x 6 of 360 GB/s
  EXPECT_EQ(getLinks("", 1, 1), LinkUse());
  auto alone = parseHardware(good, "t.toml"); // where nothing shares links
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->getLinks({CollectiveKind::AllGather, 1e9, 8}), LinkUse());
}

// What a call takes is its two parts, and its copies.
TEST(Hardware, CallsHaveTwoParts) {
  auto hardware = parseHardware(good, "t.toml");
  ASSERT_TRUE(hardware);
  Communication work = {CollectiveKind::AllReduce, 8000, 4, 500};
  CollectiveCost cost = hardware->getCost(work);
  EXPECT_EQ(cost.latency, 33000 * 1000);
  EXPECT_EQ(cost.transfer, (6000 + 50) * 1000);
  EXPECT_EQ(hardware->getDuration(work), 33000 + 6000 + 50);
}

// The files of the repository are what is built in.
TEST(Hardware, BuiltInFilesAreRead) {
  std::vector<std::string_view> names = getBuiltinHardware();
  EXPECT_EQ(names, (std::vector<std::string_view>{
                       "a100-40", "a100-80", "b200", "cpu", "gb200-nvl72",
                       "h100-500w", "h100", "h200"}));
  for (std::string_view name : names) {
    auto hardware = loadHardware(std::string(name));
    ASSERT_TRUE(hardware) << hardware.error().message;
    EXPECT_EQ(hardware->name, name);
  }
  auto missing = loadHardware("/no/such.toml");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message.find("/no/such.toml: "), 0u);
}

// A digit too many or too few breaks an order that every machine has.
TEST(Hardware, BuiltInFilesAreSane) {
  for (std::string_view name : getBuiltinHardware()) {
    SCOPED_TRACE(name);
    Hardware machine = *loadHardware(std::string(name));
    auto at = [](const auto &rates, FloatType type) {
      return rates[size_t(type)];
    };
    if (name != "cpu") { // without instructions for 16 bits
      EXPECT_GE(at(machine.matrix, FloatType::BF16),
                at(machine.matrix, FloatType::F32));
      EXPECT_GT(machine.capacity, double(1ll << 35));
      EXPECT_LT(machine.capacity, double(1ll << 38));
      EXPECT_TRUE(machine.hasNetwork);
    }
    for (size_t type = 0; type != numFloatTypes; ++type)
      EXPECT_GE(machine.matrix[type] * 20, machine.attention[type]);
    EXPECT_GE(machine.matrix[0] * 3, machine.vector);
    EXPECT_GE(machine.cache, machine.memory);
    EXPECT_GT(machine.memory, machine.host.bandwidth);
    EXPECT_GE(machine.host.memory, machine.host.bandwidth / 2);
    for (size_t kind = 0; kind != numCollectiveKinds; ++kind)
      EXPECT_GE(machine.node[kind].bandwidth, machine.network[kind].bandwidth);
  }
}

// More bytes, more ranks or ranks further away never take less time.
TEST(Hardware, BuiltInDurationsGrow) {
  for (std::string_view name : getBuiltinHardware()) {
    SCOPED_TRACE(name);
    Hardware machine = *loadHardware(std::string(name));
    for (CollectiveKind kind :
         {CollectiveKind::AllGather, CollectiveKind::ReduceScatter,
          CollectiveKind::AllReduce}) {
      for (int64_t ranks = 2, before = 0; ranks <= 16384; ranks *= 2) {
        int64_t time = machine.getDuration(Communication{kind, 1e9, ranks});
        EXPECT_GE(time, before) << ranks;
        EXPECT_GE(machine.getDuration(Communication{kind, 2e9, ranks}), time);
        EXPECT_GE(machine.getDuration(
                      Communication{kind, 1e9, ranks, 0, 128 * ranks}),
                  time);
        before = time;
      }
    }
  }
}

// What others have measured, in microseconds: their tables of gathers, and
// nccl-tests (nccl/issues/1047; CoreWeave).
TEST(Hardware, CollectivesAreAsPublished) {
  constexpr double MiB = 1 << 20;
  struct Row {
    const char *name;
    CollectiveKind kind;
    int64_t ranks, span;
    double mebibytes, microseconds, tolerance;
  };
  constexpr auto gather = CollectiveKind::AllGather,
                 scatter = CollectiveKind::ReduceScatter,
                 reduce = CollectiveKind::AllReduce;
  for (const Row &row : {
           Row{"h100", gather, 8, 8, 8, 49.5, 0.07},
           Row{"h100", gather, 8, 8, 64, 195.3, 0.03},
           Row{"h100", gather, 8, 8, 8192, 20911, 0.01},
           Row{"h100", scatter, 8, 8, 128, 377.2, 0.06},
           Row{"h100", scatter, 8, 8, 8192, 20754, 0.02},
           Row{"h100", gather, 8, 57, 8, 239.7, 0.03},
           Row{"h100", gather, 16, 121, 16, 497.7, 0.03},
           Row{"h100", gather, 32, 249, 32768, 693900, 0.03},
           Row{"h100", reduce, 64, 64, 512, 2984.6, 0.06},
           Row{"h100", reduce, 64, 64, 8192, 43980, 0.03},
           Row{"gb200-nvl72", reduce, 72, 72, 512, 1806.7, 0.06},
           Row{"gb200-nvl72", reduce, 72, 72, 8192, 20299, 0.06},
           Row{"gb200-nvl72", reduce, 144, 144, 16384, 42067, 0.06},
       }) {
    double time = double(loadHardware(row.name)->getDuration(Communication{
                      row.kind, row.mebibytes * MiB, row.ranks, 0, row.span})) /
                  1e3;
    EXPECT_NEAR(time, row.microseconds, row.tolerance * row.microseconds)
        << row.name << ", " << row.mebibytes << " MiB, " << row.ranks;
  }
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
  expect(replace(good, "launch_us = 1", "launch_us = -1"),
         "t.toml: launch_us: expected a number from 0 to 1e+09, found -1");
  expect(replace(good, "launch_us = 1", "launch_us = nan"),
         "t.toml: launch_us: expected a number from 0 to 1e+09, found nan");
  expect(replace(good, "launch_us = 1", "launch_us = '1'"),
         "t.toml: launch_us: expected a number from 0 to 1e+09, found "
         "something else");
  expect(replace(good, "launch_us = 1", "launch_us = 1\nshared_core = 1"),
         "t.toml: shared_core: expected true or false");
  expect(replace(good, "f32 = 100, ", ""),
         "t.toml: compute.matrix.f32: expected a number from 0.001 to 1e+09, "
         "found nothing");
  expect(replace(good, "vector = 10", "vector = 0"),
         "t.toml: compute.vector: expected a number from 0.001 to 1e+09, found "
         "0");
  expect(replace(good, "vector = 10", "vectors = 10"),
         "t.toml: compute: expected only matrix, attention, masked_attention, "
         "flash_attention, cudnn_attention, vector, peak, found 'vectors'");
  expect(replace(good, "[memory]\ngbytes = 10", "[[memory]]\ngbytes = 10"),
         "t.toml: memory: expected a table");
  expect("[+]", "t.toml: expected TOML");
  expect("name = \"\xc3\xa4\"",
         "t.toml: expected ASCII text, found a byte of value 195");
  expect(replace(good, "ranks = 8", "ranks = 0"),
         "t.toml: link.node.ranks: expected a number from 1 to 1e+09, found 0");
  expect(replace(good, "gbytes = 2 }", "gbytes = inf }"),
         "t.toml: link.node.all_gather.gbytes: expected a number from 0.001 to "
         "1e+09, found inf");
  expect(replace(good, "[compute]", "[compute]\ncudnn_attention = 1"),
         "t.toml: compute.cudnn_attention: expected true or false");
  expect(replace(good, "[compute]", "[compute]\nmasked_attention = 1"),
         "t.toml: compute.masked_attention: expected a table");
  expect(replace(good, "launch_us = 1", "launch_us = 1\ncontention = 19"),
         "t.toml: contention: expected a number from 0 to 8, found 19");
  expect(replace(good, "launch_us = 1",
                 "launch_us = 1\nshared_core = true\ncontention = 0.2"),
         "t.toml: contention: expected none beside shared_core = true, where "
         "nothing runs beside a collective");
  expect(replace(good, "launch_us = 1",
                 "launch_us = 1\nshared_core = true\nshared_link = true"),
         "t.toml: shared_link: expected none beside shared_core = true, where "
         "nothing runs beside a collective");
  expect(replace(good, "launch_us = 1", "launch_us = 1\nshared_link = 1"),
         "t.toml: shared_link: expected true or false");
  expect(replace(good, "gbytes = 10", "gbytes = 10\ngib = 0"),
         "t.toml: memory.gib: expected a number from 0.001 to 1.04858e+06, "
         "found 0");
  expect(good + replace(network, "node_us", "rank_us"),
         "t.toml: link.network.all_gather: expected only latency_us, node_us, "
         "gbytes, found 'rank_us'");
  expect(replace(good, "all_reduce", "all_to_all"),
         "t.toml: link.node: expected only ranks, all_gather, reduce_scatter, "
         "all_reduce, found 'all_to_all'");
}

// No work is negative, endless or undefined, whatever its sizes.
TEST(Hardware, DurationsAreFinite) {
  auto hardware = loadHardware("cpu");
  ASSERT_TRUE(hardware);
  constexpr int64_t week = int64_t(7) * 24 * 3600 * 1000000000;
  // Both parts of a call together are no longer.
  EXPECT_EQ(hardware->getDuration(Communication{CollectiveKind::AllGather, 1e30,
                                                int64_t(1) << 39}),
            week);
  EXPECT_TRUE(rc::check([&] {
    auto flops = *rc::gen::arbitrary<double>();
    auto bytes = *rc::gen::arbitrary<double>();
    auto ranks = *rc::gen::arbitrary<int64_t>();
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
