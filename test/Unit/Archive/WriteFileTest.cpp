//===- WriteFileTest.cpp - Files that appear whole or not at all ----------===//

#include "fsdp/Archive/WriteFile.h"

#include "TempFolder.h"

#include <gtest/gtest.h>

using namespace fsdp::archive;

namespace {

class WriteFileTest : public test::TempFolder {};

TEST_F(WriteFileTest, ReplacesWhatWasThere) {
  std::string path = write("f", "longer than what follows");
  auto size = writeFile(path, {"new ", "", "content"});
  ASSERT_TRUE(size) << size.error().message;
  EXPECT_EQ(*size, 11u);
  EXPECT_EQ(test::readFile(path), "new content");
}

// A folder cannot be replaced; the temporary file must not stay behind.
TEST_F(WriteFileTest, LeavesNothingBehind) {
  std::filesystem::create_directory(getPath("folder"));
  auto size = writeFile(getPath("folder"), {"content"});
  ASSERT_FALSE(size);
  EXPECT_EQ(size.error().message,
            getPath("folder") + ": cannot write the file: Is a directory");
  size_t count = 0;
  for (const auto &entry : std::filesystem::directory_iterator(getPath("")))
    count += entry.exists();
  EXPECT_EQ(count, 1u);
}

} // namespace
