//===- DecisionsFileTest.cpp - Decisions as text --------------------------===//

#include "StepModels.h"
#include "Transformers.h"

#include <gtest/gtest.h>

using namespace fsdp::planner;
using namespace fsdp::planner::test;

namespace {

StepModel makeModel() {
  Random random(1);
  StepModel model = makeRandomModel(random, 1, true);
  model.units.resize(1);
  model.units.push_back(model.units.front());
  model.units.back().name = "say \"hi\"\\ \n\xc3\xa9";
  return model;
}

std::string getError(const std::string &text) {
  auto decisions = readDecisions(makeModel(), text, "d.toml");
  return decisions ? "" : decisions.error().message;
}

TEST(DecisionsFile, GoesRoundTrip) {
  Random random(2);
  for (int i = 0; i != 100; ++i) {
    StepModel model = i ? makeRandomModel(random, 5, i % 2) : makeModel();
    Decisions decisions = makeRandomDecisions(random, model);
    std::string text = write(model, decisions);
    auto again = readDecisions(model, text, "d.toml");
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_TRUE(*again == decisions) << text;
  }
}

TEST(DecisionsFile, SaysLittleOfWhatIsAsAlways) {
  StepModel model = makeModel();
  auto decisions = readDecisions(model, R"(version = 2
[programs.middle.units]
"h.0" = { keep = true, backward = { ahead = 3 } }
)",
                                 "d.toml");
  ASSERT_TRUE(decisions);
  Decisions expected = makeDecisions(model);
  expected.programs[1].units[0].keep = Keep::All;
  expected.programs[1].units[0][Phase::Backward].ahead = 3;
  EXPECT_TRUE(*decisions == expected);
}

// A module is recomputed in one way.
TEST(DecisionsFile, NamesWhatIsCheapToRecompute) {
  StepModel model = makeTransformer(gpt2);
  Decisions decisions = makeDecisions(model);
  decisions.programs[0].recompute[3] = Recompute::Cheap;
  decisions.programs[0].recompute[5] = Recompute::All;
  std::string text = write(model, decisions);
  EXPECT_NE(text.find("recompute = [\"h.5\"]\nrecompute_cheap = [\"h.3\"]\n"),
            std::string::npos);
  auto read = [&](const std::string &lists) {
    return readDecisions(model, "version = 2\n[programs.step]\n" + lists,
                         "d.toml");
  };
  auto again = read("recompute = [\"h.5\"]\nrecompute_cheap = [\"h.3\"]");
  ASSERT_TRUE(again);
  EXPECT_TRUE(*again == decisions);
  EXPECT_EQ(read("recompute = [\"h.3\"]\nrecompute_cheap = [\"h.3\"]")
                .error()
                .message,
            "d.toml: line 4: expected a module that is not in recompute as "
            "well, found 'h.3'");
  model.programs[0].cheap.clear();
  EXPECT_EQ(read("recompute_cheap = [\"h.3\"]").error().message,
            "d.toml: line 3: expected a module of which something is cheap to "
            "compute again, found 'h.3'");
}

TEST(DecisionsFile, RejectsInOneSentence) {
  EXPECT_EQ(getError(""),
            "d.toml: line 1: expected version = 2, found nothing");
  EXPECT_EQ(getError("version = 3"),
            "d.toml: line 1: expected version 2, found 3");
  EXPECT_EQ(getError("version = 2\nresident = [\"h.7\"]"),
            "d.toml: line 2: expected a unit of the step, found 'h.7'");
  EXPECT_EQ(getError("version = 2\nresident = true"),
            "d.toml: line 2: expected resident to be a list of names, found "
            "true");
  EXPECT_EQ(getError("version = 2\n[programs.eval]\n"),
            "d.toml: line 2: expected a program of the step, found 'eval'");
  EXPECT_EQ(getError("version = 2\n[programs.last]\nrecompute = [\"x\"]"),
            "d.toml: line 3: expected a module of the step, found 'x'");
  EXPECT_EQ(getError("version = 2\n[programs.last]\nremat = []"),
            "d.toml: line 3: expected only recompute, recompute_cheap, units, "
            "found 'remat'");
  auto getUnitError = [](const std::string &unit) {
    return getError("version = 2\n[programs.last.units]\n\"h.0\" = " + unit);
  };
  EXPECT_EQ(
      getUnitError("{ keep = 3 }"),
      "d.toml: line 3: expected keep to be true, false or \"piece\", found 3");
  EXPECT_EQ(getUnitError("{ keep = 'piece' }"),
            "d.toml: line 3: expected keep to be true or false, since no unit "
            "may keep a piece here (--reshard-after-forward N), found "
            "'piece'");
  EXPECT_EQ(getUnitError("{ forward = { ahead = -1 } }"),
            "d.toml: line 3: expected ahead to be a whole number from 0 to "
            "4096, found -1");
  EXPECT_EQ(getUnitError("{ reduction = { wait = 0.5 } }"),
            "d.toml: line 3: expected wait to be a whole number from 0 to "
            "4096, found something else");
  EXPECT_EQ(getUnitError("[]"),
            "d.toml: line 3: expected a table for the unit, found a list");
  EXPECT_EQ(getUnitError("{ offload = true }"),
            "d.toml: line 3: expected only keep, forward, backward, reduction, "
            "found 'offload'");
  EXPECT_EQ(getError("version = \xff"),
            "d.toml: expected ASCII text, found a byte of value 255");
  EXPECT_NE(getError("version = [+]"), "");
}

TEST(DecisionsFile, SurvivesDamage) {
  Random random(3);
  StepModel model = makeModel();
  std::string text = write(model, makeRandomDecisions(random, model));
  for (int i = 0; i != 4000; ++i) {
    std::string damaged = text;
    for (int64_t n = random.get(1, 3); n != 0; --n) {
      auto at = size_t(random.get(0, int64_t(damaged.size()) - 1));
      switch (random.get(0, 2)) {
      case 0:
        damaged[at] = char(random.get(0, 127));
        break;
      case 1:
        damaged.erase(at, size_t(random.get(1, 20)));
        break;
      default:
        damaged.insert(
            at, damaged.substr(
                    size_t(random.get(0, int64_t(damaged.size()) - 1)), 8));
      }
      if (damaged.empty())
        break;
    }
    auto decisions = readDecisions(model, damaged, "d.toml");
    if (decisions) {
      ASSERT_EQ(decisions->programs.size(), model.programs.size());
      continue;
    }
    const std::string &message = decisions.error().message;
    ASSERT_EQ(message.rfind("d.toml: ", 0), 0u) << message;
    ASSERT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

} // namespace
