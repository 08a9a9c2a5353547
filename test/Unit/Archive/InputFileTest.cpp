//===- InputFileTest.cpp --------------------------------------------------===//

#include "fsdp/Archive/InputFile.h"

#include "TempFolder.h"

#include <sys/stat.h>

using namespace fsdp::archive;

namespace {
class InputFileTest : public test::TempFolder {
protected:
  std::string getError(const std::string &path) {
    auto file = InputFile::open(path);
    return file ? "" : file.error().message;
  }
};
} // namespace

TEST_F(InputFileTest, ReadsAndMoves) {
  auto file = InputFile::open(write("a", "hello"));
  ASSERT_TRUE(file);
  EXPECT_EQ(file->size(), 5u);
  EXPECT_EQ(*file->read(), "hello");
  EXPECT_EQ(*file->read(1, 3), "ell");
  InputFile moved = std::move(*file);
  EXPECT_EQ(*moved.read(), "hello");
  auto other = InputFile::open(write("b", "world!"));
  ASSERT_TRUE(other);
  moved = std::move(*other);
  EXPECT_EQ(*moved.read(), "world!");
  EXPECT_EQ(moved.path(), getPath("b"));
}

// A mapping would kill the process.
TEST_F(InputFileTest, RejectsWhatHasShrunk) {
  auto file = InputFile::open(write("a", std::string(10000, 'x')));
  ASSERT_TRUE(file);
  std::filesystem::resize_file(getPath("a"), 5000);
  EXPECT_EQ(file->read(0, 5000)->size(), 5000u);
  auto content = file->read(4000, 2000);
  ASSERT_FALSE(content);
  EXPECT_EQ(content.error().message,
            getPath("a") +
                ": expected the 10000 bytes that it had when it was opened, "
                "found 5000: it has been changed while it was in use");
}

TEST_F(InputFileTest, RejectsWhatIsNoFile) {
  EXPECT_EQ(getError(folder),
            folder + ": expected a regular file, found a directory");
  ASSERT_EQ(mkfifo(getPath("fifo").c_str(), 0600), 0);
  EXPECT_EQ(getError(getPath("fifo")),
            getPath("fifo") + ": expected a regular file, found a pipe");
  EXPECT_EQ(getError("/dev/null"),
            "/dev/null: expected a regular file, found a device");
  EXPECT_EQ(getError(getPath("none")),
            getPath("none") + ": cannot open: No such file or directory");
  EXPECT_EQ(getError(write("empty", "")),
            getPath("empty") +
                ": expected at least one byte, found an empty file");
}
