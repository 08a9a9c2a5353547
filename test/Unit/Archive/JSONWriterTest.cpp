//===- JSONWriterTest.cpp - JSON that is always valid ---------------------===//

#include "fsdp/Archive/JSONWriter.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace fsdp::archive;
using Layout = JSONWriter::Layout;

namespace {

std::string write(Layout layout) {
  JSONWriter json;
  json.object(
      [&] {
        json.attribute("a", 1);
        json.attributeArray("none", [] {}, layout);
        json.attributeObject(
            "b",
            [&] {
              json.attribute("yes", true);
              json.attributeValues("c", std::vector<int>{1, 2}, layout);
            },
            layout);
        json.attributeArray("d", [&] { json.object([] {}, layout); });
      },
      layout);
  return json.take();
}

TEST(JSONWriter, Layouts) {
  EXPECT_EQ(write(Layout::Dense),
            R"({"a":1,"none":[],"b":{"yes":true,"c":[1,2]},"d":[{}]})");
  EXPECT_EQ(
      write(Layout::Spaced),
      R"({"a": 1, "none": [], "b": {"yes": true, "c": [1, 2]}, "d": [{}]})");
  EXPECT_EQ(write(Layout::Lines), R"({
  "a": 1,
  "none": [],
  "b": {
    "yes": true,
    "c": [
      1,
      2
    ]
  },
  "d": [{}]
})");
}

template <typename T> std::string write(const T &value) {
  JSONWriter json;
  json.value(value);
  return json.take();
}

TEST(JSONWriter, Values) {
  EXPECT_EQ(write("text"), R"("text")");
  EXPECT_EQ(write(std::string("te\"xt")), R"("te\"xt")");
  EXPECT_EQ(write(false), "false");
  EXPECT_EQ(write(INT64_MIN), "-9223372036854775808");
  EXPECT_EQ(write(UINT64_MAX), "18446744073709551615");
  EXPECT_EQ(write(uint8_t{65}), "65");
}

TEST(JSONWriter, Numbers) {
  EXPECT_EQ(write(1.0), "1");
  EXPECT_EQ(write(0.1), "0.1");
  EXPECT_EQ(write(-0.0), "-0");
  EXPECT_EQ(write(1e-5), "1e-05");
  EXPECT_EQ(write(JSONWriter::Fixed{1e-5, 9}), "0.000010000");
  EXPECT_EQ(write(JSONWriter::Fixed{DBL_MAX, 0}).size(), 309u);
  EXPECT_EQ(write(JSONWriter::Rounded{1.0 / 3, 9}), "0.333333333");
  EXPECT_EQ(write(JSONWriter::Rounded{1e22, 6}), "1e+22");
  for (double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    EXPECT_EQ(write(value), "null");
    EXPECT_EQ(write(JSONWriter::Fixed{value, 2}), "null");
    EXPECT_EQ(write(JSONWriter::Rounded{value, 2}), "null");
  }
  for (double value : {DBL_MAX, DBL_MIN, DBL_TRUE_MIN, 1.0 / 3, 2e-308, 1e23}) {
    simdjson::dom::parser parser;
    EXPECT_EQ(double(parser.parse(write(value))), value);
  }
}

// Names and texts are of others.
TEST(JSONWriter, HostileTextIsReadAsWhatItWas) {
  using namespace std::string_view_literals;
  for (std::string_view text :
       {""sv, "\""sv, "\\"sv, "\\\""sv, "\0"sv, "a\nb\r\t\x1b[2J\x7f"sv,
        "\", \"admin\": \"yes"sv, "\\u0022"sv, "é 漢 😀"sv, "\u202e\u2028"sv,
        "</script>"sv}) {
    JSONWriter json;
    json.object([&] { json.attribute(text, text); });
    simdjson::dom::parser parser;
    simdjson::dom::object object;
    std::string written = json.take();
    ASSERT_FALSE(parser.parse(written).get(object)) << written;
    ASSERT_EQ(object.size(), 1u) << written;
    for (auto [key, value] : object) {
      EXPECT_EQ(key, text);
      EXPECT_EQ(std::string_view(value), text);
    }
  }
  // Alone, overlong, a surrogate, too large, cut off.
  for (const char *bytes :
       {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "a\xe6\xbc"}) {
    simdjson::dom::parser parser;
    simdjson::dom::element element;
    std::string written = write(bytes);
    EXPECT_FALSE(parser.parse(written).get(element)) << written;
    EXPECT_NE(written.find("\\ufffd"), std::string::npos);
  }
}

} // namespace
