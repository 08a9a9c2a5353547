//===- EscapeTest.cpp -----------------------------------------------------===//

#include "fsdp/Archive/Escape.h"

#include <gtest/gtest.h>
#include <simdjson.h>

using namespace fsdp::archive;

TEST(Escape, LeavesWordsAlone) {
  EXPECT_EQ(escape(""), "");
  EXPECT_EQ(escape("h.0 \"quoted\" \\ é 漢 😀"), "h.0 \"quoted\" \\ é 漢 😀");
}

TEST(Escape, DisarmsWhatSteersATerminal) {
  EXPECT_EQ(escape("\x1b[2J\r\n\t\x7f"), "\\x1b[2J\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(escape("\xc2\x9b"), "\\x9b"); // a control sequence in one character
  EXPECT_EQ(escape("a\xe2\x80\xae"
                   "b\xef\xbb\xbf"),
            "a\\u202eb\\ufeff");
  EXPECT_EQ(escape(std::string_view("\0", 1)), "\\x00");
}

TEST(Escape, BytesThatAreNoText) {
  // Alone, overlong, a surrogate, too large, cut off.
  EXPECT_EQ(escape("\xff\x80"), "\\xff\\x80");
  EXPECT_EQ(escape("\xc0\xaf"), "\\xc0\\xaf");
  EXPECT_EQ(escape("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(escape("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
  EXPECT_EQ(escape("a\xe6\xbc"), "a\\xe6\\xbc");
}

// Whatever the bytes are.
TEST(Escape, JSONIsAlwaysValid) {
  EXPECT_EQ(quoteJSON("a\"\\\n\xff é"), R"("a\"\\\u000a\ufffd é")");
  unsigned state = 1;
  for (int trial = 0; trial != 2000; ++trial) {
    std::string text;
    for (int i = 0; i != trial % 9; ++i) {
      state = state * 1664525 + 1013904223;
      text += static_cast<char>(state >> 24);
    }
    simdjson::dom::parser parser;
    simdjson::dom::element element;
    std::string quoted = quoteJSON(text);
    EXPECT_FALSE(parser.parse(quoted).get(element)) << quoted;
    EXPECT_TRUE(simdjson::validate_utf8(escape(text)));
  }
}
