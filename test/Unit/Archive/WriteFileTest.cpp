//===- WriteFileTest.cpp --------------------------------------------------===//

#include "fsdp/Archive/WriteFile.h"

#include "TempFolder.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace fsdp::archive;

// A file system that takes O_DIRECT, and no write with it: this function takes
// the place of the C library's.
static bool rejectsDirect = false;
static unsigned rejected = 0;

extern "C" ssize_t write(int descriptor, const void *bytes, size_t count) {
  if (rejectsDirect && (::fcntl(descriptor, F_GETFL) & O_DIRECT)) {
    ++rejected;
    errno = EINVAL;
    return -1;
  }
  return ::syscall(SYS_write, descriptor, bytes, count);
}

namespace {

constexpr size_t mebi = size_t{1} << 20;

class WriteFileTest : public test::TempFolder {
protected:
  std::string check(const std::vector<NamedPath> &outputs,
                    const std::vector<NamedPath> &inputs = {}) {
    auto error = checkOutputs(outputs, inputs);
    std::string text = error ? error->message : "fine";
    for (size_t at; (at = text.find(folder + "/")) != std::string::npos;)
      text.erase(at, folder.size() + 1);
    return text;
  }
  size_t countFiles() {
    auto files = std::filesystem::directory_iterator(folder);
    return static_cast<size_t>(std::distance(files, {}));
  }
};

TEST_F(WriteFileTest, ReplacesWhatWasThere) {
  std::string path = write("f", "longer than what follows");
  auto size = writeFile(path, {"new ", "", "content"});
  ASSERT_TRUE(size) << size.error().message;
  EXPECT_EQ(*size, 11u);
  EXPECT_EQ(test::readFile(path), "new content");
}

// A folder cannot be replaced; the temporary file must not stay behind.
TEST_F(WriteFileTest, LeavesNothingAfter) {
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

// Blocks of 1 MiB go around the page cache: pieces, files and the last block
// end anywhere.
TEST_F(WriteFileTest, WritesWhatIsLarge) {
  for (bool rejects : {false, true})
    for (size_t size : {mebi - 1, mebi, mebi + 1, 3 * mebi, 3 * mebi + 4097}) {
      SCOPED_TRACE(size);
      std::string content(size, '\0');
      for (size_t i = 0; i != size; ++i)
        content[i] = static_cast<char>(i * 2654435761u >> 24);
      std::string_view rest = content;
      std::vector<std::string_view> pieces;
      for (size_t length : {size_t{0}, size_t{7}, mebi / 2 + 1, size}) {
        pieces.push_back(rest.substr(0, length));
        rest.remove_prefix(pieces.back().size());
      }
      rejectsDirect = rejects;
      rejected = 0;
      auto written = writeFile(getPath("f"), pieces);
      rejectsDirect = false;
      ASSERT_TRUE(written) << written.error().message;
      EXPECT_EQ(*written, size);
      EXPECT_TRUE(test::readFile(getPath("f")) == content);
      EXPECT_EQ(rejected, rejects && size >= mebi ? 1u : 0u);
    }
}

TEST_F(WriteFileTest, FollowsLinksAndKeepsPermissions) {
  std::filesystem::create_directory(getPath("sub"));
  write("sub/target", "old");
  ::chmod(getPath("sub/target").c_str(), 0640);
  std::filesystem::create_symlink("sub/target", getPath("link"));
  std::filesystem::create_symlink("link", getPath("link2"));
  ASSERT_TRUE(writeFile(getPath("link2"), {"new"}));
  EXPECT_TRUE(std::filesystem::is_symlink(getPath("link2")));
  EXPECT_TRUE(std::filesystem::is_symlink(getPath("link")));
  EXPECT_EQ(test::readFile(getPath("sub/target")), "new");
  struct stat status;
  ASSERT_EQ(::stat(getPath("sub/target").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);

  std::filesystem::create_symlink("sub/fresh", getPath("dangling"));
  ASSERT_TRUE(writeFile(getPath("dangling"), {"first"}));
  EXPECT_TRUE(std::filesystem::is_symlink(getPath("dangling")));
  EXPECT_EQ(test::readFile(getPath("sub/fresh")), "first");

  std::filesystem::create_symlink("b", getPath("a"));
  std::filesystem::create_symlink("a", getPath("b"));
  EXPECT_FALSE(writeFile(getPath("a"), {"x"}));
  EXPECT_TRUE(std::filesystem::is_symlink(getPath("a")));
}

// As root, a rename would replace the node of a device.
TEST_F(WriteFileTest, WritesToWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo(getPath("fifo").c_str(), 0600), 0);
  std::string found;
  std::thread reader([&] { found = test::readFile(getPath("fifo")); });
  EXPECT_TRUE(writeFile(getPath("fifo"), {"through ", "a pipe"}));
  reader.join();
  EXPECT_EQ(found, "through a pipe");
  EXPECT_TRUE(std::filesystem::is_fifo(getPath("fifo")));
  EXPECT_EQ(countFiles(), 1u);

  std::filesystem::create_symlink("/dev/full", getPath("full"));
  auto size = writeFile(getPath("full"), {"x"});
  ASSERT_FALSE(size);
  EXPECT_EQ(size.error().message, getPath("full") + ": cannot write the file: "
                                                    "No space left on device");
  EXPECT_TRUE(writeFile("/dev/null", {"x"}));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(WriteFileTest, ANameMayBeAsLongAsTheSystemHasThem) {
  std::string path = getPath(std::string(255, 'n'));
  EXPECT_TRUE(writeFile(path, {"x"}));
  EXPECT_EQ(test::readFile(path), "x");
}

// Where a temporary file exists, signals wait.
TEST_F(WriteFileTest, SignalsLeaveNoTemporaryFile) {
  std::string content(64 << 20, 'x'), path = getPath("f");
  for (int delay : {0, 500, 2000, 8000}) {
    write("f", "old");
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;)
        if (!writeFile(path, {content}))
          ::_exit(1);
    }
    ::usleep(static_cast<useconds_t>(delay));
    ::kill(child, SIGTERM);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(countFiles(), 1u) << delay;
    std::uintmax_t size = std::filesystem::file_size(path);
    EXPECT_TRUE(size == 3 || size == content.size()) << size;
  }
}

TEST_F(WriteFileTest, RejectsOutputsThatAreInputs) {
  std::string w = write("w", "weights");
  std::filesystem::create_symlink("w", getPath("link"));
  std::filesystem::create_hard_link(w, getPath("hard"));
  for (const char *name : {"w", "link", "hard", "./w"})
    EXPECT_EQ(check({{"-o", getPath(name)}}, {{"--weights", w}}),
              std::string(name) +
                  ": expected a file of its own for -o, found that of "
                  "--weights");
  EXPECT_EQ(check({{"-o", getPath("other")}}, {{"--weights", w}}), "fine");
  // An input that is not there is rejected where it is opened.
  EXPECT_EQ(check({{"-o", w}}, {{"--weights", getPath("none")}}), "fine");
  EXPECT_EQ(test::readFile(w), "weights");
}

TEST_F(WriteFileTest, RejectsOutputsThatAreTheSame) {
  std::filesystem::create_symlink("new", getPath("dangling"));
  for (const char *name : {"new", "./new", "dangling"})
    EXPECT_EQ(check({{"-o", getPath("new")}, {"--trace", getPath(name)}}),
              std::string(name) +
                  ": expected a file of its own for --trace, found that of -o");
  EXPECT_EQ(check({{"-o", "/dev/null"}, {"--trace", "/dev/null"}}), "fine");
  EXPECT_EQ(check({{"-o", getPath("a")}, {"--trace", getPath("b")}}), "fine");
}

TEST_F(WriteFileTest, RejectsWhatCannotBeWritten) {
  EXPECT_EQ(check({{"-o", folder}}).substr(folder.size()),
            ": cannot write the file: Is a directory");
  EXPECT_EQ(check({{"-o", getPath("no/file")}}),
            "no/file: cannot create the file: No such file or directory");
  EXPECT_EQ(check({{"-o", ""}}),
            ": cannot create the file: No such file or directory");
  EXPECT_EQ(check({{"-o", getPath("new/")}}),
            "new/: cannot create the file: No such file or directory");
}

} // namespace
