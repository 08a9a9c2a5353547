//===- MappedFileTest.cpp -------------------------------------------------===//

#include "fsdp/Archive/MappedFile.h"

#include "TempFolder.h"

#include <sys/stat.h>

using namespace fsdp::archive;

namespace {
class MappedFileTest : public test::TempFolder {
protected:
  std::string getError(const std::string &path) {
    auto file = MappedFile::open(path);
    return file ? "" : file.error().message;
  }
};
} // namespace

TEST_F(MappedFileTest, ReadsAndMoves) {
  auto file = MappedFile::open(write("a", "hello"));
  ASSERT_TRUE(file);
  std::string_view bytes = file->bytes();
  EXPECT_EQ(bytes, "hello");
  MappedFile moved = std::move(*file);
  EXPECT_EQ(moved.bytes().data(), bytes.data());
  EXPECT_EQ(bytes, "hello");
  auto other = MappedFile::open(write("b", "world"));
  ASSERT_TRUE(other);
  moved = std::move(*other);
  EXPECT_EQ(moved.bytes(), "world");
  EXPECT_EQ(moved.path(), getPath("b"));
}

TEST_F(MappedFileTest, RefusesWhatIsNoFile) {
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
