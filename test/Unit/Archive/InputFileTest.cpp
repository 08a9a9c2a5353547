//===- InputFileTest.cpp --------------------------------------------------===//

#include "fsdp/Archive/InputFile.h"

#include "FewDescriptors.h"
#include "TempFolder.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <malloc.h>
#include <sys/stat.h>
#include <thread>

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

// A text that fills the memory is rejected before it is read.
TEST_F(InputFileTest, ReadsAWholeOfAtMostSoMuch) {
  write("a", "hello");
  EXPECT_EQ(*InputFile::readWhole(getPath("a"), 5), "hello");
  auto content = InputFile::readWhole(getPath("a"), 4);
  ASSERT_FALSE(content);
  EXPECT_EQ(content.error().message,
            getPath("a") + ": expected at most 4 bytes, found 5");
  EXPECT_FALSE(InputFile::readWhole(getPath("none")));
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

TEST_F(InputFileTest, ManyFilesNeedFewDescriptors) {
  constexpr size_t count = 500;
  std::vector<InputFile> files;
  test::FewDescriptors few(64);
  for (size_t i = 0; i != count; ++i) {
    auto file = InputFile::open(write(std::to_string(i), std::to_string(i)));
    ASSERT_TRUE(file) << file.error().message;
    files.push_back(std::move(*file));
  }
  // Each thread closes what another one reads.
  std::vector<std::thread> threads;
  std::atomic<size_t> good = 0;
  for (size_t first = 0; first != 4; ++first)
    threads.emplace_back([&, first] {
      for (size_t i = first; i < count; i += 4) {
        auto content = files[i].read();
        good += content && *content == std::to_string(i);
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(good, count);
}

TEST_F(InputFileTest, RejectsWhatWasReplacedWhileItWasClosed) {
  std::vector<InputFile> files;
  for (size_t i = 0; i != 20; ++i)
    files.push_back(std::move(*InputFile::open(write(std::to_string(i), "x"))));
  write("0", "longer");
  auto content = files[0].read();
  ASSERT_FALSE(content);
  EXPECT_EQ(content.error().message,
            getPath("0") + ": expected the file that was opened before, found "
                           "that it has been changed while it was in use");
  EXPECT_FALSE(content.error().isDamage);
}

// A file that cannot be read may be whole.
TEST_F(InputFileTest, OnlyWhatIsNotWhatWasWrittenIsDamage) {
  BlockSums sums = BlockSums::of({"hello"});
  auto isDamage = [&](const std::string &path) {
    auto file = InputFile::open(path, sums);
    auto content = file ? file->read() : Expected<std::string>(file.error());
    EXPECT_FALSE(content);
    return content.error().isDamage;
  };
  EXPECT_TRUE(isDamage(write("other", "jello")));
  EXPECT_TRUE(isDamage(write("longer", "hello!")));
  EXPECT_TRUE(isDamage(write("empty", "")));
  EXPECT_TRUE(isDamage(getPath("missing")));
  EXPECT_TRUE(isDamage(folder));
  EXPECT_FALSE(isDamage(getPath("other/below")));
  EXPECT_FALSE(isDamage(getPath(std::string(300, 'x'))));
  test::FewDescriptors none(0);
  auto file = InputFile::open(getPath("other"));
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().message,
            getPath("other") + ": cannot open: " + std::strerror(EMFILE));
  EXPECT_FALSE(file.error().isDamage);
}

// A block of each of ten thousand files would be ten gigabytes.
TEST_F(InputFileTest, FewBlocksAreKept) {
  std::string content(2 * BlockSums::blockBytes, 'x');
  BlockSums sums = BlockSums::of({content});
  std::string path = write("a", content);
  std::vector<InputFile> files;
  size_t before = ::mallinfo2().hblkhd + ::mallinfo2().uordblks;
  for (int i = 0; i != 100; ++i) {
    auto file = InputFile::open(path, sums);
    ASSERT_TRUE(file) << file.error().message;
    files.push_back(std::move(*file));
    EXPECT_EQ(*files.back().read(7, 3), "xxx");
  }
  size_t kept = ::mallinfo2().hblkhd + ::mallinfo2().uordblks - before;
  EXPECT_LT(kept, 12 * BlockSums::blockBytes);
  // What was let go is read again.
  for (const InputFile &file : files)
    EXPECT_EQ(*file.read(7, 3), "xxx");
}
