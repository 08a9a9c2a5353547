//===- WeightsTest.cpp - Parameters and buffers out of a file -------------===//

#include "fsdp/Runtime/Checkpoints/Weights.h"

#include "Files.h"
#include "Support/TestPlan.h"
#include "Support/Zip.h"
#include "fsdp/Runtime/Checkpoints/NameRegex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace fsdp;
using test::TestPlan;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

namespace {

class WeightsTest : public testing::Test {
protected:
  planfile::PlanFile seal() {
    auto file = plan.seal();
    if (!file)
      throw Error(file.error().message);
    return std::move(*file);
  }

  /// Writes the tensors and returns what matches, as "name[0]=value".
  std::vector<std::string> match() {
    Weights weights = Weights::open(files.write("w.safetensors"));
    std::vector<std::string> result;
    for (const Weights::Match &match : weights.match(seal())) {
      float first = 0;
      HostTensor value = weights.read(*match.value);
      if (value.type == planfile::DType::F32)
        std::memcpy(&first, value.bytes.data(), sizeof first);
      result.push_back(match.name + "=" + std::to_string(int(first)));
    }
    return result;
  }

  std::string rejection() {
    try {
      match();
    } catch (const Error &error) {
      EXPECT_EQ(error.exitCode(), 1);
      return files.withoutFolder(error.what());
    }
    return "accepted";
  }

  TestPlan plan = test::makeSmallPlan();
  test::Files files;
};

TEST_F(WeightsTest, ByName) {
  files.add("w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  files.add("other", {4}, std::vector<float>(4, 7));
  EXPECT_THAT(match(), ElementsAre("w=3", "b=5"));
}

TEST_F(WeightsTest, ByAlias) {
  files.add("tied.w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_THAT(match(), ElementsAre("w=3", "b=5"));
}

TEST_F(WeightsTest, EqualAliasesAreFine) {
  files.add("w", {4, 4}, std::vector<float>(16, 3));
  files.add("tied.w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_THAT(match(), ElementsAre("w=3", "b=5"));
}

/// The same, where the names of tensors are changed.
TEST_F(WeightsTest, TensorsAreRenamedOneRuleAfterTheOther) {
  files.add("model.layer0_w", {4, 4}, std::vector<float>(16, 3));
  files.add("model.layer0_b", {4}, std::vector<float>(4, 5));
  std::string path = files.write("w.safetensors");
  Weights weights =
      Weights::open(path, {"^model\\.layer([0-9])_=\\1.", "^0\\.="});
  std::vector<std::string> unused;
  EXPECT_EQ(weights.match(seal(), nullptr, &unused).size(), 2u);
  EXPECT_THAT(unused, testing::IsEmpty());
  auto rejection = [&](std::vector<std::string> renames) {
    try {
      Weights::open(path, renames);
    } catch (const Error &error) {
      return files.withoutFolder(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(rejection({".*w=x", ".*b=x"}),
            "--rename '.*b=x': w.safetensors: expected names of their own, "
            "found two tensors that become x");
  EXPECT_EQ(rejection({"nothing=x"}),
            "--rename 'nothing=x': expected the name of a tensor of "
            "w.safetensors to match, found none");
  EXPECT_EQ(rejection({"w"}), "--rename: expected 'regex=text', found 'w'");
  EXPECT_THAT(rejection({"(=x"}),
              testing::StartsWith("--rename: expected a regular expression, "
                                  "found '(': "));
}

TEST(NameRegex, ReplacesEachMatch) {
  auto replace = [](const char *regex, const char *text, const char *name) {
    return NameRegex("", regex).replace(name, text);
  };
  EXPECT_EQ(replace("a", "b", "banana"), "bbnbnb");
  EXPECT_EQ(replace("^m\\.", "", "m.m.w"), "m.w");
  EXPECT_EQ(replace("(.)(n)", "\\2\\1", "banana"), "bnanaa");
  EXPECT_EQ(replace("$", ".weight", "w"), "w.weight");
  EXPECT_EQ(replace("x*", "-", "ab"), "-a-b-");
  EXPECT_EQ(replace("(x)?a", "[\\1]", "a"), "[]");
  EXPECT_EQ(replace("a", "\\", "a"), "\\");
}

TEST_F(WeightsTest, NamesWithoutUseAreListed) {
  files.add("w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  files.add("other", {4}, std::vector<float>(4, 7));
  files.add("tied.w", {4, 4}, std::vector<float>(16, 3));
  Weights weights = Weights::open(files.write("w.safetensors"));
  std::vector<std::string> unused;
  weights.match(seal(), nullptr, &unused);
  EXPECT_THAT(unused, ElementsAre("other"));
  EXPECT_THAT(weights.describeUnused(unused),
              testing::EndsWith(": 1 tensors are not of the plan: other"));
}

// covers: ties that change
TEST_F(WeightsTest, DifferentAliasesAreRejected) {
  files.add("w", {4, 4}, std::vector<float>(16, 3));
  files.add("tied.w", {4, 4}, std::vector<float>(16, 4));
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_EQ(rejection(),
            "w.safetensors: expected w and tied.w, which are one parameter, to "
            "be equal, found different values");
}

TEST_F(WeightsTest, FileLacksThePrefixOfThePlan) {
  plan.units[0].parameters[0].name = "m.w";
  plan.units[0].parameters[0].aliases = {"m.tied.w"};
  plan.units[0].parameters[1].name = "m.b";
  files.add("tied.w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_THAT(match(), ElementsAre("m.w=3", "m.b=5"));
}

TEST_F(WeightsTest, PlanLacksThePrefixOfTheFile) {
  files.add("m.w", {4, 4}, std::vector<float>(16, 3));
  files.add("m.b", {4}, std::vector<float>(4, 5));
  EXPECT_THAT(match(), ElementsAre("w=3", "b=5"));
}

TEST_F(WeightsTest, APrefixOfSomeNamesIsNone) {
  plan.units[0].parameters[0].name = "m.w";
  plan.units[0].parameters[0].aliases = {};
  files.add("w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_EQ(rejection(), "w.safetensors: expected a value for each of 2 "
                         "parameters and buffers, found none for 1: m.w; "
                         "unused there, and 4x4xf32 as m.w: w");
}

TEST_F(WeightsTest, MissingOnesAreNamed) {
  for (int i = 0; i != 3; ++i)
    plan.units[0].parameters.push_back(
        {"c" + std::to_string(i), {1}, uint64_t(20 + i)});
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_EQ(rejection(),
            "w.safetensors: expected a value for each of 5 parameters and "
            "buffers, found none for 4: w, c0, c1, c2");
}

// What is left of another checkpoint says how it is to be renamed.
TEST_F(WeightsTest, UnusedTensorsThatFitAMissingOneAreNamed) {
  files.add("net.0.w", {4, 4}, std::vector<float>(16, 3));
  files.add("net.0.b", {4}, std::vector<float>(4, 5));
  files.add("head", {4, 4}, std::vector<float>(16, 3));
  EXPECT_EQ(rejection(),
            "w.safetensors: expected a value for each of 2 parameters and "
            "buffers, found none for 2: w, b; unused there, and 4x4xf32 as w: "
            "head, net.0.w; --rename '^net\\.0\\.=' would fit");
  files.remove("net.0.b");
  EXPECT_EQ(rejection(),
            "w.safetensors: expected a value for each of 2 parameters and "
            "buffers, found none for 2: w, b; unused there, and 4x4xf32 as w: "
            "head, net.0.w");
}

// covers: a parameter replaced by one of another shape
TEST_F(WeightsTest, OtherSizesAreRejected) {
  files.add("w", {4, 2}, std::vector<float>(8, 3));
  EXPECT_EQ(rejection(), "w.safetensors: w: expected 4x4xf32, found 4x2xf32");
}

TEST_F(WeightsTest, ValuesMayWiden) {
  files.addBytes("w", {4, 4}, archive::DType::BF16, std::string(32, '\0'));
  files.addBytes("b", {4}, archive::DType::F16, std::string(8, '\0'));
  EXPECT_THAT(match(), ElementsAre("w=0", "b=0"));
}

// Rounding is what a narrower storage dtype asks for, but it must be said.
TEST_F(WeightsTest, ValuesMayNarrowWithANote) {
  auto describe = [&] {
    std::string path = files.write("w.safetensors");
    Weights weights = Weights::open(path);
    return files.withoutFolder(weights.describeRounding(weights.match(seal())));
  };
  files.addBytes("w", {4, 4}, archive::DType::F64, std::string(128, '\0'));
  files.addBytes("b", {4}, archive::DType::BF16, std::string(8, '\0'));
  EXPECT_EQ(describe(), "w.safetensors: rounded from f64 to f32, as the plan "
                        "stores them: w");
  files.addBytes("w", {4, 4}, archive::DType::F16, std::string(32, '\0'));
  EXPECT_EQ(describe(), "");
}

TEST_F(WeightsTest, IntegersAreNoWeights) {
  files.addBytes("w", {4, 4}, archive::DType::I32, std::string(64, '\0'));
  EXPECT_EQ(rejection(), "w.safetensors: w: expected 4x4xf32, found 4x4xi32");
}

// covers: a buffer that is not known
TEST_F(WeightsTest, ModelBuffers) {
  plan.buffers[3].role = planfile::BufferRole::ModelBuffer;
  plan.buffers[3].name = "mean";
  files.add("w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_EQ(rejection(), "w.safetensors: expected a value for each of 3 "
                         "parameters and buffers, found none for 1: mean");
  files.add("mean", {2, 4}, std::vector<float>(8, 9));
  EXPECT_THAT(match(), ElementsAre("w=3", "b=5", "mean=9"));
}

TEST_F(WeightsTest, EmbeddedModelBuffersMayBeMissing) {
  plan.buffers[3].role = planfile::BufferRole::ModelBuffer;
  plan.buffers[3].name = "mean";
  plan.buffers[3].bytes = std::string(32, '\0');
  files.add("w", {4, 4}, std::vector<float>(16, 3));
  files.add("b", {4}, std::vector<float>(4, 5));
  EXPECT_THAT(match(), ElementsAre("w=3", "b=5"));
}

TEST_F(WeightsTest, OutOfAnArchive) {
  plan.units[0].parameters = {
      {"m.transformer.h.0.ln_1.weight", {32}, 0, {}},
  };
  Weights weights = Weights::open(FSDP_FIXTURES "/gpt2.pt2");
  std::vector<Weights::Match> matches = weights.match(seal());
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(weights.read(*matches[0].value).bytes.size(), 128u);
  EXPECT_EQ(matches[0].value->type, planfile::DType::F32);

  plan.units[0].parameters[0].name = "transformer.h.0.ln_1.weight";
  EXPECT_EQ(weights.match(seal()).size(), 1u);
}

// An archive says the strides of axes with one element, too: they mean nothing.
TEST_F(WeightsTest, StridesOfAnAxisWithOneElementMayBeAnything) {
  const float values[] = {1, 2, 3, 4};
  std::string config =
      R"({"config":{"w":{"path_name":"weight_0","is_param":true,
          "use_pickle":false,"tensor_meta":{"dtype":7,"sizes":[{"as_int":2},
          {"as_int":1},{"as_int":2}],"requires_grad":true,"device":{"type":
          "cpu","index":null},"strides":[{"as_int":1},
          {"as_int":9223372036854775807},{"as_int":2}],
          "storage_offset":{"as_int":0},"layout":7}}}})";
  std::string archive = test::makeZip(
      {{"m/archive_format", "pt2"},
       {"m/archive_version", "0"},
       {"m/byteorder", "little"},
       {"m/models/model.json", "{}"},
       {"m/data/weights/weight_0",
        {reinterpret_cast<const char *>(values), sizeof values}},
       {"m/data/weights/model_weights_config.json", config},
       {"m/data/constants/model_constants_config.json", "{\"config\":{}}"}});
  plan.units[0].parameters = {{"w", {2, 1, 2}, 0, {}}};
  Weights weights = Weights::open(files.writeBytes("w.pt2", archive));
  std::vector<Weights::Match> matches = weights.match(seal());
  ASSERT_EQ(matches.size(), 1u);
  float read[4];
  HostTensor tensor = weights.read(*matches[0].value);
  ASSERT_EQ(tensor.bytes.size(), sizeof read);
  std::memcpy(read, tensor.bytes.data(), sizeof read);
  EXPECT_THAT(read, ElementsAre(1, 3, 2, 4));
}

// A file of tensors begins with the length of its header, which may spell "PK".
TEST_F(WeightsTest, ALengthMayLookLikeAnArchive) {
  std::string header =
      R"({"w":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]},)"
      R"("b":{"dtype":"F32","shape":[4],"data_offsets":[64,80]}})";
  header.resize('P' + ('K' << 8), ' ');
  std::string path =
      files.writeBytes("w.safetensors", test::littleEndian(header.size(), 8) +
                                            header + std::string(80, '\0'));
  Weights weights = Weights::open(path);
  EXPECT_EQ(weights.match(seal()).size(), 2u);
}

TEST_F(WeightsTest, NoFile) {
  EXPECT_THAT([&] { Weights::open("/nonexistent.safetensors"); },
              ThrowsMessage<Error>(HasSubstr("/nonexistent.safetensors: ")));
}

} // namespace
