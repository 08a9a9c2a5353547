//===- PublishedRowsTest.cpp - Steps from dimensions, and measured ones ---===//

#include "fsdp/Planner/PublishedRows.h"

#include "Support/Replace.h"
#include "fsdp/Planner/Evaluator.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

using namespace fsdp::planner;
using fsdp::test::replace;

namespace {

const Transformer llama8B = {32, 4096, 14336, 32, 8, 128256, true, false};
const Transformer mpt7B = {32, 4096, 16384, 32, 32, 50368, false, true};

TrainingSetup makeSetup(TrainingSetup::Recompute recompute) {
  TrainingSetup setup;
  setup.ranks = 8;
  setup.sequence = 4096;
  setup.batch = 2;
  setup.recompute = recompute;
  return setup;
}

StepModel makeStep(const TrainingSetup &setup) {
  return makeTransformer(llama8B, setup, *loadHardware("h100"));
}

// As their authors count them, without norms and biases.
TEST(Transformer, HasTheParametersOfItsDimensions) {
  EXPECT_NEAR(double(llama8B.getNumParameters()), 8.03e9, 0.01e9);
  EXPECT_NEAR(double(mpt7B.getNumParameters()), 6.65e9, 0.01e9);
}

// What is left for the backward ends there, however much is recomputed; and
// what is, is there once.
TEST(Transformer, LeavesMemoryForTheBackward) {
  for (auto recompute :
       {TrainingSetup::Recompute::None, TrainingSetup::Recompute::Selective,
        TrainingSetup::Recompute::Full, TrainingSetup::Recompute::Whole}) {
    StepModel model = makeStep(makeSetup(recompute));
    EXPECT_EQ(check(model), "");
    const Program &program = model.programs.front();
    int64_t left = 0;
    for (const ComputeOp &op : program.ops)
      left += op.change;
    EXPECT_EQ(left, 0);
    for (const Life &life : program.lives) {
      uint32_t end = life.reads.empty() ? life.end : life.reads.front().op;
      EXPECT_EQ(program.ops[end].phase, Phase::Backward);
    }
  }
}

// Products, attention and nothing else are at least this: 6 operations for each
// parameter but the embedding's, and 14 for each pair of tokens.
TEST(Transformer, ComputesWhatItsDimensionsSay) {
  TrainingSetup setup = makeSetup(TrainingSetup::Recompute::None);
  Hardware machine = *loadHardware("h100");
  machine.launch = 0;
  machine.memory = machine.cache = 1e9;
  StepModel model = makeTransformer(llama8B, setup, machine);
  double time = 0, tokens = double(setup.getTokens());
  for (const ComputeOp &op : model.programs.front().ops)
    time += op.onlyIf == nobody ? double(op.duration) : 0;
  double products =
      6 * tokens *
      double(llama8B.getNumParameters() - llama8B.vocabulary * llama8B.hidden);
  double attention = 7 * tokens * 4096 * 4096 * 32;
  EXPECT_NEAR(time, products / 700e3 + attention / 205e3, 0.01 * time);
}

// To recompute more takes more time and less memory.
TEST(Transformer, RecomputesInFourWays) {
  Outcome outcomes[4];
  for (int i = 0; i != 4; ++i) {
    StepModel model = makeStep(makeSetup(TrainingSetup::Recompute(i)));
    outcomes[i] =
        evaluate(model, makeBaseline(model, Policy::Fsdp2, Keep::None,
                                     i ? Recompute::All : Recompute::None));
  }
  EXPECT_LT(outcomes[0].time, outcomes[1].time);
  EXPECT_LT(outcomes[1].time, outcomes[2].time);
  EXPECT_GT(outcomes[0].peakBytes, outcomes[1].peakBytes);
  EXPECT_GT(outcomes[1].peakBytes, outcomes[2].peakBytes);
  // The last product of a block is one of four.
  EXPECT_LT(outcomes[2].time, outcomes[3].time);
  EXPECT_EQ(outcomes[2].peakBytes, outcomes[3].peakBytes);
}

// What is read and written for each element, at the bandwidth of the memory.
TEST(Transformer, CopiesUnits) {
  TrainingSetup setup = makeSetup(TrainingSetup::Recompute::None);
  Hardware machine = *loadHardware("h100");
  machine.launch = 0;
  auto add = [&](int64_t gather, int64_t gradient) {
    int64_t time = 0;
    setup.gatherCopyBytes = gather;
    setup.gradientCopyBytes = gradient;
    StepModel model = makeTransformer(llama8B, setup, machine);
    for (const ComputeOp &op : model.programs.front().ops)
      time += op.onlyIf == nobody ? op.duration : 0;
    return time;
  };
  int64_t none = add(0, 0);
  double blocks = double(llama8B.getNumParameters() -
                         2 * llama8B.vocabulary * llama8B.hidden);
  EXPECT_NEAR(double(add(0, 10) - none), 10 * blocks / machine.memory, 1e3);
  EXPECT_NEAR(double(add(4, 0) - none), 8 * blocks / machine.memory, 1e3);
}

// Weights are updated once for all micro-batches.
TEST(Transformer, MicroBatchesShareAnUpdate) {
  TrainingSetup setup = makeSetup(TrainingSetup::Recompute::Full);
  setup.microBatches = 4;
  StepModel model = makeStep(setup);
  ASSERT_EQ(model.programs.size(), 2u);
  EXPECT_EQ(model.programs[0].count, 3);
  EXPECT_EQ(model.programs[0].ops.size() + model.units.size(),
            model.programs[1].ops.size());
}

const std::string goodRows = R"(version = 1
sources.paper = "A paper"
models.m = { layers = 2, hidden = 64, ffn = 256, heads = 4, kv_heads = 4, vocabulary = 100 }
rows = [
  { source = "paper", hardware = "h100", model = "m", ranks = 8, sequence = 128, batch = 2, policy = "fsdp1", reduce = "f32", recompute = "full", tokens = 5 },
  { source = "paper", hardware = "h100", model = "m", ranks = 8, sequence = 128, batch = 2, policy = "fsdp2", reduce = "bf16", recompute = "none", tokens = 7.5, gib = 2, micro_batches = 3, keep = true, compiled = true, fit = true },
]
)";

// Each key has its place.
TEST(PublishedRows, AreRead) {
  auto rows = readPublishedRows(goodRows, "r.toml");
  ASSERT_TRUE(rows) << rows.error().message;
  ASSERT_EQ(rows->size(), 2u);
  const PublishedRow &row = (*rows)[1];
  EXPECT_EQ(row.line, 6);
  EXPECT_EQ(row.getCluster(), "h100, paper");
  EXPECT_EQ(row.modelName, "m");
  EXPECT_EQ(row.hardware, "h100");
  EXPECT_EQ(row.model.ffn, 256);
  EXPECT_EQ(row.setup.microBatches, 3);
  EXPECT_EQ(row.setup.gradientBytes, 2);
  EXPECT_EQ(row.policy, Policy::Fsdp2);
  EXPECT_TRUE(row.keep && row.setup.isCompiled && row.isFitted);
  EXPECT_EQ(row.tokens, 7.5);
  EXPECT_EQ(row.gib, 2);
  EXPECT_EQ((*rows)[0].setup.recompute, TrainingSetup::Recompute::Full);
}

// Each kind of damage has one sentence, which says where.
TEST(PublishedRows, RejectBadFiles) {
  auto expect = [](const std::string &text, const std::string &sentence) {
    auto rows = readPublishedRows(text, "r.toml");
    ASSERT_FALSE(rows) << sentence;
    EXPECT_EQ(rows.error().message, sentence);
  };
  expect("", "r.toml: expected version = 1");
  expect("version = 1", "r.toml: expected a table [sources]");
  expect("version = 1\nmodels = {}\nsources = {}\nrows = 1",
         "r.toml: expected rows to be a list of tables");
  expect(replace(goodRows, "heads = 4", "heads = 65"),
         "r.toml: line 3: expected heads to be a whole number from 1 to 64, "
         "found 65");
  expect(replace(goodRows, "ranks = 8", "ranks = 0"),
         "r.toml: line 5: expected ranks to be a whole number from 1 to "
         "1048576, found 0");
  expect(replace(goodRows, "batch = 2, ", ""),
         "r.toml: line 5: expected batch to be a whole number from 1 to "
         "8388608, found nothing");
  expect(replace(goodRows, "\"fsdp1\"", "\"fsdp3\""),
         "r.toml: line 5: expected policy to be one of deepcompile-p, "
         "deepcompile-ps, deepcompile-s, fsdp1, fsdp2, inductor, "
         "manual-block, megatron, no-overlap, torchtitan-memory, xla-lhs; "
         "found 'fsdp3'");
  expect(replace(goodRows, "model = \"m\"", "model = \"n\""),
         "r.toml: line 5: expected model to be one of m; found 'n'");
  expect(replace(goodRows, "tokens = 5", "tokens = 'many'"),
         "r.toml: line 5: expected tokens to be a number from 0.001 to 1e+09, "
         "found something else");
  expect(replace(goodRows, "tokens = 5", "tokens = 5, fit = true"),
         "r.toml: line 6: expected one row to fit for h100, paper, found "
         "another in line 5");
  expect(replace(goodRows, "tokens = 5", "tokens = 5, attention = \"math\""),
         "r.toml: line 5: expected attention to be one of cudnn, flash, "
         "triton; found 'math'");
  expect(replace(goodRows, "tokens = 5", "tokens = 5, mfu = 40"),
         "r.toml: line 5: expected only source, model, hardware, ranks, "
         "sequence, batch, micro_batches, policy, keep, reduce, recompute, "
         "compiled, attention, tokens, gib, fit, found 'mfu'");
}

// Whatever the bytes are, there is an answer, and a prediction or a sentence.
TEST(PublishedRows, AnyTextHasAnAnswer) {
  EXPECT_TRUE(rc::check([] {
    std::string text = goodRows;
    for (int damage = *rc::gen::inRange(1, 6); damage; --damage)
      text[*rc::gen::inRange<size_t>(0, text.size())] =
          char(*rc::gen::inRange<int>('0', '9' + 1));
    auto rows = readPublishedRows(text, "r.toml");
    if (!rows) {
      RC_ASSERT(rows.error().message.find("r.toml: ") == 0u);
      return;
    }
    for (const PublishedRow &row : *rows)
      (void)predict(row, *loadHardware("h100"));
  }));
}

// Where computations are all that counts, their factor is that of the time; and
// it is found again from what it gave.
TEST(PublishedRows, AFactorIsFitted) {
  PublishedRow row;
  row.model = mpt7B;
  row.setup = makeSetup(TrainingSetup::Recompute::None);
  Hardware machine = *loadHardware("h100");
  double tokens = predict(row, machine)->tokens;
  row.tokens = predict(row, machine, 1.7)->tokens;
  EXPECT_NEAR(row.tokens, tokens / 1.7, 0.02 * row.tokens);
  EXPECT_NEAR(*fitFactor(row, machine), 1.7, 1e-3);
  row.tokens = 1e9; // nothing is as fast
  EXPECT_NEAR(*fitFactor(row, machine), 1.0 / 16, 1e-4);
}

// FSDP1 casts and divides gradients of float32, FSDP2 does both as it copies.
// An older kernel for attention takes longer.
TEST(PublishedRows, ArePredictedAsTheyRan) {
  Hardware machine = *loadHardware("h100");
  PublishedRow row;
  row.model = mpt7B;
  row.setup = makeSetup(TrainingSetup::Recompute::None);
  auto time = [&](Policy policy, int64_t gradientBytes) {
    row.policy = policy;
    row.setup.gradientBytes = gradientBytes;
    return 1 / predict(row, machine)->tokens;
  };
  double plain = time(Policy::ManualBlock, 4);
  EXPECT_GT(time(Policy::Fsdp2, 4), 1.005 * plain);
  EXPECT_GT(time(Policy::Fsdp1, 4), 1.02 * plain);
  EXPECT_LT(time(Policy::Fsdp1, 2), 0.99 * time(Policy::Fsdp1, 4));
  double flash = time(Policy::ManualBlock, 4);
  row.setup.attention = TrainingSetup::Attention::Triton;
  EXPECT_GT(time(Policy::ManualBlock, 4), 1.05 * flash);
}

// The largest dimensions that are read overflow nothing.
TEST(PublishedRows, LargeRowsAreRejectedOrPredicted) {
  std::string text =
      replace(goodRows,
              "hidden = 64, ffn = 256, heads = 4, kv_heads = 4, "
              "vocabulary = 100",
              "hidden = 262144, ffn = 1048576, heads = 1, kv_heads = 1, "
              "vocabulary = 4194304");
  text = replace(text, "sequence = 128, batch = 2",
                 "sequence = 16777216, batch = 64");
  auto rows = readPublishedRows(text, "r.toml");
  ASSERT_TRUE(rows) << rows.error().message;
  auto prediction = predict(rows->front(), *loadHardware("h100"));
  if (prediction)
    EXPECT_GT(prediction->tokens, 0);
  else
    EXPECT_EQ(prediction.error().message.find("line 5: "), 0u);
}

} // namespace
