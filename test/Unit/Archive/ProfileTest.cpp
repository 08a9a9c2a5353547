//===- ProfileTest.cpp - Measured times, and files that are none ----------===//

#include "fsdp/Archive/Profile.h"

#include "Support/Replace.h"

#include <gtest/gtest.h>

using namespace fsdp::archive;
using Kind = Profile::Collective::Kind;

namespace {

const std::string good = R"({"device": "cpu",
"nodes": [{"node": "mm", "stream": "compute", "seconds": 2e-05},
          {"node": "mm", "stream": "copy", "seconds": 1}],
"collectives": [{"kind": "reduce_scatter", "bytes": 64, "ranks": 2, "seconds": 1e-6, "count": 3},
                {"kind": "all_gather", "bytes": 32, "ranks": 2, "seconds": 0}]})";

std::string replaced(const std::string &from, const std::string &to) {
  return fsdp::test::replace(good, from, to);
}

std::string getError(const std::string &text) {
  auto profile = Profile::parse(text, "p.json");
  return profile ? "no error" : profile.error().message;
}

// Other streams and members are not for the compiler.
TEST(Profile, ReadsWhatWasMeasured) {
  auto profile = Profile::parse(good, "p.json");
  ASSERT_TRUE(profile) << profile.error().message;
  ASSERT_EQ(profile->nodes.size(), 1u);
  EXPECT_EQ(profile->nodes[0].name, "mm");
  EXPECT_EQ(profile->nodes[0].duration, 20000);
  ASSERT_EQ(profile->collectives.size(), 2u);
  EXPECT_EQ(profile->collectives[0].kind, Kind::AllGather);
  EXPECT_EQ(profile->collectives[0].bytes, 32);
  EXPECT_EQ(profile->collectives[1].kind, Kind::ReduceScatter);
  EXPECT_EQ(profile->collectives[1].ranks, 2);
  EXPECT_EQ(profile->collectives[1].duration, 1000);
}

// A profile may come from anywhere.
TEST(Profile, RejectsWhatIsNone) {
  EXPECT_EQ(getError("{"),
            "p.json: expected JSON, found an error: The JSON document has an "
            "improper structure: missing or superfluous commas, braces, "
            "missing keys, etc.");
  EXPECT_EQ(getError("[]"), "p.json: expected an object, found an array");
  EXPECT_EQ(getError("{\"nodes\": 3}"),
            "p.json.nodes: expected an array, found 3");
  EXPECT_EQ(getError("{\"nodes\": []}"),
            "p.json: expected a member 'collectives', found none");
  EXPECT_EQ(getError(replaced("2e-05", "-1")),
            "p.json.nodes[0].seconds: expected seconds from 0 to 86400, found "
            "-1");
  EXPECT_EQ(getError(replaced("2e-05", "1e300")),
            "p.json.nodes[0].seconds: expected seconds from 0 to 86400, found "
            "1e+300");
  EXPECT_EQ(getError(replaced("2e-05", "\"long\"")),
            "p.json.nodes[0].seconds: expected a number, found 'long'");
  EXPECT_EQ(getError(replaced("\"copy\"", "\"compute\"")),
            "p.json.nodes: expected each node of the compute stream once, "
            "found 'mm' twice");
  EXPECT_EQ(getError(replaced("all_gather", "gather")),
            "p.json.collectives[1].kind: expected one of all_gather, "
            "reduce_scatter and all_reduce, found 'gather'");
  EXPECT_EQ(getError(replaced("\"ranks\": 2", "\"ranks\": 0")),
            "p.json.collectives[0].ranks: expected an integer of at least 1, "
            "found 0");
  EXPECT_EQ(getError(replaced("\"bytes\": 64", "\"bytes\": 0")),
            "p.json.collectives[0].bytes: expected an integer of at least 1, "
            "found 0");
  EXPECT_EQ(getError(replaced("reduce_scatter\", \"bytes\": 64",
                              "all_gather\", \"bytes\": 32")),
            "p.json.collectives: expected each kind, bytes and ranks once, "
            "found 32 bytes on 2 ranks twice");
  EXPECT_EQ(getError(std::string(5000, '[') + std::string(5000, ']')),
            "p.json: expected JSON, found an error: The JSON document was too "
            "deep (too many nested objects and arrays)");
}

} // namespace
