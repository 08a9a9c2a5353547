//===- DataTest.cpp - Batches out of a file -------------------------------===//

#include "fsdp/Runtime/Data/Data.h"

#include "Files.h"
#include "Support/TestPlan.h"
#include "fsdp/Runtime/Data/Shuffle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

using namespace fsdp;
using planfile::DType;
using test::TestPlan;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

namespace {

/// A plan that does nothing with two inputs of `batch` x 3 tokens.
TestPlan makeTokenPlan(DType dtype = DType::I64, int64_t batch = 2,
                       uint64_t vocabulary = 10) {
  TestPlan plan;
  plan.mesh = {{"shard", 1}};
  plan.programs = {{"step", {}}};
  plan.tokenRows = vocabulary;
  plan.deviceBytes = 256;
  for (uint32_t i : {0, 1}) {
    TestPlan::Buffer input{
        planfile::BufferRole::Input, {batch, 3}, i * 128, dtype};
    input.index = i;
    plan.add(input);
  }
  return plan;
}

class DataTest : public testing::Test {
protected:
  Data open(const std::string &path, DataOptions options = {}) {
    auto file = plan.seal();
    if (!file)
      throw Error(file.error().message);
    return Data::open(path, *file, options);
  }

  std::string rejection(const std::string &path, DataOptions options = {}) {
    try {
      open(path, options);
    } catch (const Error &error) {
      EXPECT_EQ(error.exitCode(), 1);
      return files.withoutFolder(error.what());
    }
    return "accepted";
  }

  template <typename T = int64_t>
  static std::vector<int64_t> values(const TensorView &tensor) {
    std::vector<T> values(tensor.bytes.size() / sizeof(T));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return {values.begin(), values.end()};
  }

  /// The batch at a position in samples, which is the next one of rank 0.
  static TensorView at(Data &data, std::uint64_t position,
                       std::size_t index = 0) {
    data.seek(position);
    data.next(1);
    return data.input(0, index);
  }

  /// `count` batches of 2x3 tokens: 0 1 2 3 4 5, 1 2 3 4 5 6, ...
  static std::vector<int64_t> batches(int64_t count, int64_t first = 0) {
    std::vector<int64_t> result;
    for (int64_t batch = 0; batch != count; ++batch)
      for (int64_t i = 0; i != 6; ++i)
        result.push_back(first + batch + i);
    return result;
  }

  template <typename Token>
  std::string writeTokens(const std::vector<Token> &tokens,
                          const std::string &name = "tokens.bin") {
    return files.writeBytes(name,
                            {reinterpret_cast<const char *>(tokens.data()),
                             tokens.size() * sizeof(Token)});
  }

  template <typename Token>
  std::string writeNumPy(const std::string &descr, const std::string &shape,
                         const std::vector<Token> &tokens) {
    std::string header = "{'descr': '" + descr +
                         "', 'fortran_order': False, 'shape': " + shape +
                         ", }\n";
    std::string bytes("\x93NUMPY\1\0", 8);
    bytes += {static_cast<char>(header.size()), 0};
    bytes += header;
    bytes.append(reinterpret_cast<const char *>(tokens.data()),
                 tokens.size() * sizeof(Token));
    return files.writeBytes("tokens.npy", bytes);
  }

  /// Sequences of 3 tokens, each of which is the number of its sequence.
  std::string writeSequences(uint64_t number) {
    std::vector<uint16_t> tokens;
    for (uint64_t sequence = 0; sequence != number; ++sequence)
      tokens.insert(tokens.end(), 3, static_cast<uint16_t>(sequence));
    return writeTokens(tokens);
  }

  TestPlan plan = makeTokenPlan();
  test::Files files;
};

TEST_F(DataTest, BatchesOfTensors) {
  files.add("in_0", {3, 2, 3}, batches(3));
  files.add("in_1", {3, 2, 3}, batches(3, -100));
  files.add("loss", {}, std::vector<float>{1});
  Data data = open(files.write("d.safetensors"));
  EXPECT_EQ(data.batches(), 3u);
  EXPECT_THAT(values(at(data, 1)), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values(at(data, 2, 1)),
              ElementsAre(-98, -97, -96, -95, -94, -93));
  EXPECT_THAT(values(at(data, 5)), ElementsAre(2, 3, 4, 5, 6, 7));
  EXPECT_THAT(at(data, 0).sizes, ElementsAre(2, 3));
}

TEST_F(DataTest, RejectsTensorsThatDoNotFit) {
  files.add("in_0", {3, 2, 3}, batches(3));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: expected in_1, 2x3xi64, found no such tensor");
  files.add("in_1", {2, 2, 3}, batches(2));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: in_1: expected 3 batches as in in_0, found 2");
  files.add("in_1", {6, 3}, batches(3));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: in_1: expected batches of 2x3xi64, found 6x3xi64");
  files.add("in_1", {0, 2, 3}, batches(0));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: in_1: expected batches of 2x3xi64, found "
            "0x2x3xi64");
  files.add("in_1", {3, 2, 3}, std::vector<int32_t>(18));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: in_1: expected batches of 2x3xi64, found "
            "3x2x3xi32");
  files.add("in_1", {3, 2, 3}, batches(3));
  files.add("in_2", {3, 2, 3}, batches(3));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: expected 2 inputs, found in_2");
}

TEST_F(DataTest, RejectsTokensOutsideOfTheVocabulary) {
  files.add("in_1", {5, 2, 3}, batches(5));
  files.add("in_0", {5, 2, 3}, batches(5, 1));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: in_0: expected tokens below 10, found 10 at place "
            "5 of batch 4");
  files.add("in_0", {5, 2, 3}, batches(5, -1));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: in_0: expected tokens below 10, found -1 at place "
            "0 of batch 0");
}

TEST_F(DataTest, FileOfTokens) {
  std::vector<uint16_t> tokens = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2};
  Data data = open(writeTokens(tokens));
  EXPECT_EQ(data.batches(), 2u); // the last token is left over
  EXPECT_THAT(values(at(data, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(at(data, 0, 1)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(at(data, 6, 1)), ElementsAre(6, 7, 8, 9, 0, 1));

  Data wide = open(writeTokens(std::vector<uint32_t>{9, 8, 7, 6, 5, 4}),
                   {.tokenBits = 32});
  EXPECT_THAT(values(at(wide, 14)), ElementsAre(9, 8, 7, 6, 5, 4));

  plan = makeTokenPlan(DType::I32);
  Data narrow = open(writeTokens(tokens));
  EXPECT_THAT(values<int32_t>(at(narrow, 2)), ElementsAre(6, 7, 8, 9, 0, 1));
}

TEST_F(DataTest, RejectsBadFilesOfTokens) {
  std::string few = writeTokens(std::vector<uint16_t>{0, 1, 2, 3, 4});
  EXPECT_EQ(rejection(few), "tokens.bin: expected at least 6 tokens, found 5");
  EXPECT_EQ(rejection(few, {.tokenBits = 32}),
            "tokens.bin: expected tokens of 32 bits, found 10 bytes");
  EXPECT_EQ(rejection(writeTokens(std::vector<uint16_t>{0, 1, 2, 3, 4, 10})),
            "tokens.bin: expected tokens below 10, found 10 at place 5 of "
            "batch 0");
  std::string text = writeTokens(std::vector<uint16_t>(6), "t.txt");
  EXPECT_EQ(rejection(text),
            "t.txt: expected batches (.safetensors) or tokens (.npy, .bin), "
            "found a file of another name; --token-bits 16 or 32 reads it as "
            "raw tokens");
  EXPECT_EQ(open(text, {.tokenBits = 16}).batches(), 1u);
  plan.tokenRows = 0;
  EXPECT_EQ(rejection(writeTokens(std::vector<uint16_t>(6))),
            "tokens.bin: expected a plan over tokens and labels of one shape, "
            "found one with other inputs: give it a .safetensors file");
}

TEST_F(DataTest, InputsByTheirNames) {
  plan.buffers[0].name = "input_ids";
  plan.buffers[1].name = "labels";
  files.add("labels", {3, 2, 3}, batches(3, 1));
  files.add("input_ids", {3, 2, 3}, batches(3));
  Data data = open(files.write("d.safetensors"));
  EXPECT_THAT(values(at(data, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(at(data, 0, 1)), ElementsAre(1, 2, 3, 4, 5, 6));

  files.add("attention_mask", {3, 2, 3}, batches(3));
  EXPECT_EQ(rejection(files.write("more.safetensors")),
            "more.safetensors: expected the inputs input_ids, labels (or in_0, "
            "in_1), found attention_mask, input_ids, labels");
  files.remove("labels");
  EXPECT_EQ(rejection(files.write("other.safetensors")),
            "other.safetensors: expected the inputs input_ids, labels (or "
            "in_0, in_1), found attention_mask, input_ids");
  files.add("in_0", {3, 2, 3}, batches(3));
  files.add("in_1", {3, 2, 3}, batches(3));
  EXPECT_EQ(rejection(files.write("both.safetensors")),
            "both.safetensors: expected inputs called either input_ids, labels "
            "or in_0, in_1, found both");
  files.remove("input_ids");
  EXPECT_EQ(rejection(files.write("numbers.safetensors")), "accepted");
}

TEST_F(DataTest, ABatchIsOfWholeSequencesOfEachFile) {
  std::filesystem::create_directory(files.path("shards"));
  writeTokens<uint16_t>({6, 7, 8, 0, 0}, "shards/b.bin"); // 0 0: left over
  writeTokens<uint16_t>({0, 1, 2, 3, 4, 5}, "shards/a.bin");
  writeTokens<uint16_t>({9}, "shards/c.bin");
  writeTokens<uint16_t>({60000}, "shards/notes.txt");
  Data data = open(files.path("shards"));
  EXPECT_EQ(data.batches(), 1u);
  EXPECT_THAT(values(at(data, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(at(data, 1)), ElementsAre(3, 4, 5, 6, 7, 8));
  // The last batch of an epoch goes on in the next one.
  EXPECT_THAT(values(at(data, 2)), ElementsAre(6, 7, 8, 0, 1, 2));
}

TEST_F(DataTest, RejectsFoldersWithoutTokens) {
  std::filesystem::create_directory(files.path("shards"));
  EXPECT_EQ(rejection(files.path("shards")),
            "shards: expected files of tokens, *.bin or *.npy, found none");
  writeTokens<uint16_t>({0, 1, 2, 3, 4}, "shards/a.bin");
  EXPECT_EQ(rejection(files.path("shards")),
            "shards: expected at least 6 tokens, found 5");
  writeTokens<uint16_t>({0, 1, 2, 3, 4, 10}, "shards/b.bin");
  EXPECT_EQ(rejection(files.path("shards")),
            "shards/b.bin: expected tokens below 10, found 10 at place 5 of "
            "batch 0");
}

// Those of numpy.save, which reads them in test_data.py, too.
TEST_F(DataTest, FileOfNumPy) {
  Data data = open(writeNumPy<int32_t>("<i4", "(7,)", {0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(data.batches(), 1u);
  EXPECT_THAT(values(at(data, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  Data rows = open(writeNumPy<int64_t>("<i8", "(2, 3)", {9, 8, 7, 6, 5, 4}));
  EXPECT_THAT(values(at(rows, 1)), ElementsAre(6, 5, 4, 9, 8, 7));
  EXPECT_EQ(rejection(writeNumPy<int64_t>("<i8", "(6,)", {0, 1, 2, 3, -1, 5})),
            "tokens.npy: expected tokens below 10, found -1 at place 4 of "
            "batch 0");
  EXPECT_EQ(
      rejection(writeNumPy<uint16_t>("<u2", "(3, 2)", {0, 1, 2, 3, 4, 5})),
      "tokens.npy: expected rows of 3 tokens, one sequence of the plan "
      "each, found rows of 2");
}

// So that the first step does not wait for all of a disk.
TEST_F(DataTest, LargeFilesAreCheckedAsTheyAreRead) {
  std::string path = writeTokens<uint16_t>({0, 1, 2, 3, 4, 5, 6, 7, 60000});
  EXPECT_NE(rejection(path), "accepted");
  std::filesystem::resize_file(path, 65 << 20);
  Data data = open(path);
  EXPECT_THAT(values(at(data, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT([&] { at(data, 1); },
              ThrowsMessage<Error>(HasSubstr("expected tokens below 10, found "
                                             "60000 at place 2 of batch 1")));
}

// What is wrong with a batch is said when it is wanted, not while the one
// before is.
TEST_F(DataTest, ErrorsWaitForTheirBatch) {
  plan.mesh = {{"shard", 2}};
  std::vector<uint16_t> tokens(36, 3);
  std::string path = writeTokens(tokens);
  Data data = open(path);
  tokens[30] = 10;
  writeTokens(tokens);
  data.next(2);
  data.next(2);
  EXPECT_EQ(data.position(), 8u);
  EXPECT_THROW(data.next(2), Error);
  // Nor does it matter where nobody wants it.
  data.seek(4);
  EXPECT_NO_THROW(data.next(2));
  EXPECT_NO_THROW(data.seek(0));
}

/// The threads of this process.
static std::set<std::string> listThreads() {
  std::set<std::string> names;
  for (const auto &each :
       std::filesystem::directory_iterator("/proc/self/task"))
    names.insert(each.path().filename());
  return names;
}

// To start one takes longer than a small step.
TEST_F(DataTest, OneThreadReadsAllBatches) {
  std::string path = writeTokens(std::vector<uint16_t>(3600, 3));
  std::size_t before = listThreads().size();
  Data data = open(path);
  data.next(1);
  std::set<std::string> first = listThreads();
  EXPECT_EQ(first.size(), before + 1);
  for (int step = 0; step != 100; ++step) {
    if (step % 10 == 9)
      data.seek(static_cast<std::uint64_t>(step));
    data.next(1);
    EXPECT_EQ(listThreads(), first);
  }
}

// One process for each rank reads what one process for all of them does.
TEST_F(DataTest, RanksReadTheirOwn) {
  plan = makeTokenPlan(DType::I64, 2, 100);
  plan.mesh = {{"shard", 3}};
  std::string path = writeSequences(20);
  Data all = open(path, {.shuffleSeed = 7}),
       one = open(path, {.shuffleSeed = 7});
  for (int step = 0; step != 8; ++step) {
    all.next(3);
    one.next({1, 1});
    EXPECT_EQ(values(all.input(1, 0)), values(one.input(1, 0)));
    EXPECT_EQ(values(all.input(1, 1)), values(one.input(1, 0)));
  }
}

// However often a training goes on with other ranks and sizes of a batch.
TEST_F(DataTest, EachEpochHasEverySequenceOnce) {
  EXPECT_TRUE(rc::check([&] {
    auto sequences = *rc::gen::inRange<uint64_t>(16, 60);
    std::optional<uint64_t> seed;
    if (*rc::gen::inRange(0, 4) != 0)
      seed = *rc::gen::arbitrary<uint64_t>();
    std::string path = writeSequences(sequences);
    std::vector<int64_t> taken;
    std::uint64_t position = 0;
    while (taken.size() < 3 * sequences) {
      auto ranks = *rc::gen::inRange<unsigned>(1, 4);
      auto rows = *rc::gen::inRange<int64_t>(1, 4);
      plan = makeTokenPlan(DType::I64, rows, 100);
      plan.mesh = {{"shard", ranks}};
      Data data = open(path, {.shuffleSeed = seed});
      data.seek(position);
      for (int steps = *rc::gen::inRange(1, 9); steps != 0; --steps) {
        data.next(ranks);
        for (unsigned rank = 0; rank != ranks; ++rank) {
          std::vector<int64_t> batch = values(data.input(rank, 0));
          for (int64_t row = 0; row != rows; ++row)
            taken.push_back(batch[static_cast<size_t>(row) * 3]);
        }
      }
      position = data.position();
      RC_ASSERT(position == taken.size());
    }
    std::vector<int64_t> all(sequences);
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::vector<int64_t>> epochs;
    for (auto begin = taken.begin(); epochs.size() != 3;
         begin += static_cast<int64_t>(sequences)) {
      epochs.emplace_back(begin, begin + static_cast<int64_t>(sequences));
      RC_ASSERT((epochs.back() == all) == !seed);
    }
    RC_ASSERT((epochs[0] == epochs[1]) == !seed);
    for (std::vector<int64_t> &epoch : epochs) {
      std::ranges::sort(epoch);
      RC_ASSERT(epoch == all);
    }
  }));
}

// Of 5 samples, each is at each place in a fifth of 20,000 epochs: 4,000, with
// a standard deviation of 57.
TEST(ShuffleTest, AllPlacesAreAlike) {
  for (std::uint64_t seed : {0, 1}) {
    std::array<std::array<int, 5>, 5> found{};
    for (std::uint64_t epoch = 0; epoch != 20000; ++epoch)
      for (std::uint64_t place = 0; place != 5; ++place)
        ++found[place][shuffle(place, 5, seed, epoch)];
    for (const auto &counts : found)
      for (int count : counts)
        EXPECT_NEAR(count, 4000, 350);
  }
}

TEST(ShuffleTest, OneSampleAndVeryMany) {
  EXPECT_EQ(shuffle(0, 1, 3, 4), 0u);
  std::set<std::uint64_t> found;
  constexpr std::uint64_t size = (std::uint64_t(1) << 63) + 1;
  for (std::uint64_t place = 0; place != 1000; ++place)
    found.insert(shuffle(place, size, 3, 4));
  EXPECT_EQ(found.size(), 1000u);
  EXPECT_LT(*found.rbegin(), size);
}

// Today's batch of one rank must not silently be another's, too.
TEST_F(DataTest, FewerBatchesThanRanks) {
  plan.mesh = {{"shard", 4}};
  files.add("in_0", {3, 2, 3}, batches(3));
  files.add("in_1", {3, 2, 3}, batches(3));
  EXPECT_EQ(rejection(files.write("d.safetensors")),
            "d.safetensors: expected at least 4 batches, one for each rank, "
            "found 3");
}

// A mapping would be a bus error.
TEST_F(DataTest, AFileThatShrinksWhileItIsUsed) {
  std::vector<uint16_t> tokens(6000, 3);
  std::string path = writeTokens(tokens);
  Data data = open(path);
  std::filesystem::resize_file(path, 100);
  EXPECT_NO_THROW(at(data, 2));
  try {
    at(data, 1800);
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(files.withoutFolder(error.what()),
              "tokens.bin: expected the 12000 bytes that it had when it was "
              "opened, found 10800: it has been changed while it was in use");
  }
  // Nor can it bring in tokens that the model does not have.
  tokens[0] = 60000;
  writeTokens(tokens);
  EXPECT_THAT(
      [&] { at(data, 0); },
      ThrowsMessage<Error>(HasSubstr(
          "expected tokens below 10, found 60000 at place 0 of batch 0")));
}

} // namespace
