//===- HelpTextTest.cpp ---------------------------------------------------===//

#include "fsdp/Archive/HelpText.h"

#include <cstdlib>
#include <gtest/gtest.h>

using namespace fsdp::archive;

class HelpText : public testing::Test {
protected:
  void SetUp() override { ::setenv("COLUMNS", "60", 1); }
  void TearDown() override { ::unsetenv("COLUMNS"); }
};

TEST_F(HelpText, ARowHasTwoColumns) {
  EXPECT_EQ(spellHelpRow("--steps N", "How many steps to train"),
            "  --steps N                   How many steps to train\n");
  EXPECT_EQ(spellHelpRow("--steps N", "How many steps there are to train"),
            "  --steps N                   How many steps there are to\n"
            "                              train\n");
}

TEST_F(HelpText, ALongOptionHasALineOfItsOwn) {
  EXPECT_EQ(spellHelpRow("--schedule fsdp1|fsdp2|inductor", "A schedule"),
            "  --schedule fsdp1|fsdp2|inductor\n"
            "                              A schedule\n");
  EXPECT_EQ(spellHelpRow("--schedule fsdp1|fsdp2|manual-block|inductor|list|a",
                         "A schedule"),
            "  --schedule fsdp1|fsdp2|manual-block|inductor|list|a\n"
            "                              A schedule\n");
  EXPECT_EQ(spellHelpRow(
                "--schedule fsdp1|fsdp2|manual-block|inductor|list|something",
                "A schedule"),
            "  --schedule fsdp1|fsdp2|manual-block|inductor|list|\n"
            "      something\n"
            "                              A schedule\n");
}

TEST_F(HelpText, LinesStayLinesAndAreNoLongerThanTheTerminal) {
  EXPECT_EQ(wrapHelp("One.\n\nTwo."), "One.\n\nTwo.\n");
  EXPECT_EQ(wrapHelp(std::string(70, 'a') + " b"),
            std::string(70, 'a') + "\nb\n");
}
