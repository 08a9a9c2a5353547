//===- SpansTest.cpp ------------------------------------------------------===//

#include "fsdp/Runtime/Tracing/Spans.h"

#include "Support/TestPlan.h"
#include "fsdp/Runtime/Processes/Agreement.h"

#include <gmock/gmock.h>

#include <random>

using namespace fsdp;
using testing::HasSubstr;
using testing::ThrowsMessage;

namespace {

planfile::PlanFile makePlan() {
  auto plan = test::makeSmallPlan(2).seal();
  EXPECT_TRUE(plan) << plan.error().message;
  return std::move(*plan);
}

std::vector<Span> makeSpans(const planfile::Plan &plan) {
  std::vector<Span> spans;
  for (std::uint32_t p = 0; p != plan.programs()->size(); ++p)
    for (std::uint32_t c = 0; c != plan.programs()->Get(p)->commands()->size();
         ++c)
      spans.push_back({1, p, c, c % 2 == 1, planfile::Stream::Compute, c + 1, c,
                       0.5 * c, 0.5 * c + 1});
  return spans;
}

} // namespace

TEST(Spans, AreReadAsTheyWereShown) {
  planfile::PlanFile plan = makePlan();
  std::vector<Span> spans = makeSpans(plan.plan());
  ASSERT_FALSE(spans.empty());
  std::vector<Span> found = decodeSpans(plan.plan(), 1, encodeSpans(spans));
  ASSERT_EQ(found.size(), spans.size());
  for (std::size_t i = 0; i != spans.size(); ++i) {
    EXPECT_EQ(found[i].rank, 1u);
    EXPECT_EQ(found[i].program, spans[i].program);
    EXPECT_EQ(found[i].command, spans[i].command);
    EXPECT_EQ(found[i].isDrain, spans[i].isDrain);
    EXPECT_EQ(found[i].run, spans[i].run);
    EXPECT_EQ(found[i].update, spans[i].update);
    EXPECT_EQ(found[i].begin, spans[i].begin);
    EXPECT_EQ(found[i].end, spans[i].end);
  }
}

// Whatever a peer shows, no command is asked for that the plan has not.
TEST(Spans, OfNoCommandAreRejected) {
  planfile::PlanFile plan = makePlan();
  const std::string good = encodeSpans(makeSpans(plan.plan()));
  std::mt19937 random(1);
  unsigned rejected = 0;
  for (int trial = 0; trial != 3000; ++trial) {
    std::string text = good.substr(0, random() % (good.size() + 1));
    for (unsigned i = random() % 4; i != 0 && !text.empty(); --i)
      text[random() % text.size()] = static_cast<char>(random());
    try {
      for (const Span &span : decodeSpans(plan.plan(), 1, text)) {
        ASSERT_LT(span.program, plan->programs()->size());
        ASSERT_LT(span.command,
                  plan->programs()->Get(span.program)->commands()->size());
        ASSERT_LE(span.begin, span.end);
      }
    } catch (const Error &error) {
      ASSERT_THAT(error.what(), HasSubstr("expected what it has run"));
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 1000u);
}

TEST(Agreement, TextsOfPeersAreCompared) {
  planfile::PlanFile plan = makePlan();
  std::string good = describeCollectives(plan.plan());
  checkCollectives("rank 1", plan.plan(), good);
  std::mt19937 random(1);
  for (int trial = 0; trial != 300; ++trial) {
    std::string text = good.substr(0, random() % good.size());
    if (trial % 2)
      text += "\n\n";
    EXPECT_THAT([&] { checkCollectives("rank 1", plan.plan(), text); },
                ThrowsMessage<Error>(HasSubstr("rank 1: expected ")));
  }
  for (const char *text : {"", "0", "9 what", "x"})
    EXPECT_EQ(decodeFailure(text).kind(), Failure::RankFailed);
  Error error = decodeFailure(encodeFailure(Error("no", Failure::CheckFailed)));
  EXPECT_EQ(error.kind(), Failure::CheckFailed);
  EXPECT_STREQ(error.what(), "no");
}
