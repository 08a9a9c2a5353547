//===- DataTest.cpp - Batches out of a file -------------------------------===//

#include "fsdp/Runtime/Data.h"

#include "Files.h"
#include "Support/TestPlan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

using namespace fsdp;
using planfile::DType;
using test::TestPlan;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

namespace {

/// A plan that does nothing with two inputs of 2x3 tokens below 10.
TestPlan makeTokenPlan(DType dtype = DType::I64) {
  TestPlan plan;
  plan.mesh = {{"shard", 1}};
  plan.programs = {{"step", {}}};
  plan.tokenRows = 10;
  plan.deviceBytes = 128;
  for (uint32_t i : {0, 1}) {
    TestPlan::Buffer input{planfile::BufferRole::Input, {2, 3}, i * 64, dtype};
    input.index = i;
    plan.add(input);
  }
  return plan;
}

class DataTest : public testing::Test {
protected:
  Data open(const std::string &path, unsigned tokenBits = 16) {
    auto file = plan.seal();
    if (!file)
      throw Error(file.error().message);
    return Data::open(path, *file, tokenBits);
  }

  std::string rejection(const std::string &path, unsigned tokenBits = 16) {
    try {
      open(path, tokenBits);
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

  /// `count` batches of 2x3 tokens: 0 1 2 3 4 5, 1 2 3 4 5 6, ...
  static std::vector<int64_t> batches(int64_t count, int64_t first = 0) {
    std::vector<int64_t> result;
    for (int64_t batch = 0; batch != count; ++batch)
      for (int64_t i = 0; i != 6; ++i)
        result.push_back(first + batch + i);
    return result;
  }

  template <typename Token>
  std::string writeTokens(const std::vector<Token> &tokens) {
    return files.writeBytes("tokens.bin",
                            {reinterpret_cast<const char *>(tokens.data()),
                             tokens.size() * sizeof(Token)});
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
  EXPECT_THAT(values(data.input(0, 1)), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(values(data.input(1, 2)),
              ElementsAre(-98, -97, -96, -95, -94, -93));
  EXPECT_THAT(values(data.input(0, 5)), ElementsAre(2, 3, 4, 5, 6, 7));
  EXPECT_THAT(data.input(0, 0).sizes, ElementsAre(2, 3));
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
  EXPECT_THAT(values(data.input(0, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(data.input(1, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(data.input(1, 3)), ElementsAre(6, 7, 8, 9, 0, 1));

  Data wide = open(writeTokens(std::vector<uint32_t>{9, 8, 7, 6, 5, 4}), 32);
  EXPECT_THAT(values(wide.input(0, 7)), ElementsAre(9, 8, 7, 6, 5, 4));

  plan = makeTokenPlan(DType::I32);
  Data narrow = open(writeTokens(tokens));
  EXPECT_THAT(values<int32_t>(narrow.input(0, 1)),
              ElementsAre(6, 7, 8, 9, 0, 1));
}

TEST_F(DataTest, RejectsBadFilesOfTokens) {
  std::string few = writeTokens(std::vector<uint16_t>{0, 1, 2, 3, 4});
  EXPECT_EQ(rejection(few), "tokens.bin: expected at least 6 tokens, found 5");
  EXPECT_EQ(rejection(few, 32),
            "tokens.bin: expected tokens of 32 bits, found 10 bytes");
  EXPECT_EQ(rejection(writeTokens(std::vector<uint16_t>{0, 1, 2, 3, 4, 10})),
            "tokens.bin: expected tokens below 10, found 10 at place 5 of "
            "batch 0");
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
  EXPECT_THAT(values(data.input(0, 0)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(values(data.input(1, 0)), ElementsAre(1, 2, 3, 4, 5, 6));

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
  EXPECT_NO_THROW(data.input(0, 1));
  try {
    data.input(0, 900);
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
      [&] { data.input(0, 0); },
      ThrowsMessage<Error>(HasSubstr(
          "expected tokens below 10, found 60000 at place 0 of batch 0")));
}

} // namespace
