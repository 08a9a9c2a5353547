//===- InputFile.cpp - A regular file opened for reading ------------------===//

#include "fsdp/Archive/InputFile.h"

#include "Descriptor.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <sys/stat.h>
#include <unistd.h>

using namespace fsdp::archive;

using SharedDescriptor = std::shared_ptr<Descriptor>;

/// A file that is open, or was.
class InputFile::Source : public std::enable_shared_from_this<Source> {
public:
  explicit Source(std::string name) : name(std::move(name)) {}

  /// Opens it for the first time.
  std::optional<Error> open();
  /// While it is held, it is not closed.
  Expected<SharedDescriptor> get();

  const std::string name;
  struct stat status = {}; ///< When it was opened first.

private:
  void keep(SharedDescriptor opened);

  /// Enough for who reads several files in turn; few of what a process has.
  static constexpr size_t mostOpen = 8;
  static std::mutex mutex;
  /// In the order in which they were opened.
  static std::deque<std::weak_ptr<Source>> latest;
  SharedDescriptor descriptor; ///< Null: closed.
};

std::mutex InputFile::Source::mutex;
std::deque<std::weak_ptr<InputFile::Source>> InputFile::Source::latest;

static const char *describe(mode_t mode) {
  if (S_ISDIR(mode))
    return "a directory";
  if (S_ISFIFO(mode))
    return "a pipe";
  if (S_ISSOCK(mode))
    return "a socket";
  return "a device";
}

static Error cannot(const char *what, const std::string &name) {
  return {name + ": cannot " + what + ": " + std::strerror(errno),
          /*isDamage=*/errno == ENOENT};
}

static Expected<SharedDescriptor> openFile(const std::string &name,
                                           struct stat &status) {
  // Without O_NONBLOCK, opening a pipe waits for somebody to write to it.
  int number =
      ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (number < 0)
    return cannot("open", name);
  auto opened = std::make_shared<Descriptor>(number);
  if (::fstat(number, &status) != 0)
    return cannot("read", name);
  return opened;
}

std::optional<Error> InputFile::Source::open() {
  Expected<SharedDescriptor> opened = openFile(name, status);
  if (!opened)
    return opened.error();
  if (!S_ISREG(status.st_mode))
    return Error::damage(name + ": expected a regular file, found " +
                         describe(status.st_mode));
  if (status.st_size == 0)
    return Error::damage(name +
                         ": expected at least one byte, found an empty file");
  keep(std::move(*opened));
  return std::nullopt;
}

Expected<SharedDescriptor> InputFile::Source::get() {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (descriptor)
      return descriptor;
  }
  struct stat now;
  Expected<SharedDescriptor> opened = openFile(name, now);
  if (!opened)
    return opened;
  // Some file systems of several machines number their files anew.
  if (now.st_size != status.st_size ||
      now.st_mtim.tv_sec != status.st_mtim.tv_sec ||
      now.st_mtim.tv_nsec != status.st_mtim.tv_nsec)
    return Error{name + ": expected the file that was opened before, found "
                        "that it has been changed while it was in use"};
  keep(*opened);
  return opened;
}

void InputFile::Source::keep(SharedDescriptor opened) {
  SharedDescriptor oldest; // Closed when the lock is free.
  std::lock_guard<std::mutex> lock(mutex);
  latest.erase(std::remove_if(latest.begin(), latest.end(),
                              [](const auto &each) { return each.expired(); }),
               latest.end());
  descriptor = std::move(opened);
  latest.push_back(weak_from_this());
  if (latest.size() <= mostOpen)
    return;
  if (std::shared_ptr<Source> source = latest.front().lock())
    oldest = std::move(source->descriptor);
  latest.pop_front();
}

InputFile::InputFile(std::shared_ptr<Source> source)
    : source(std::move(source)) {}
InputFile::InputFile(InputFile &&other) noexcept = default;
InputFile &InputFile::operator=(InputFile &&other) noexcept = default;
InputFile::~InputFile() = default;

uint64_t InputFile::size() const {
  return static_cast<uint64_t>(source->status.st_size);
}

const std::string &InputFile::path() const { return source->name; }

Expected<InputFile> InputFile::open(const std::string &path) {
  auto source = std::make_shared<Source>(path);
  if (auto error = source->open())
    return *error;
  return InputFile(std::move(source));
}

Expected<InputFile> InputFile::open(const std::string &path, BlockSums sums) {
  Expected<InputFile> file = open(path);
  if (!file)
    return file;
  if (file->size() != sums.bytes)
    return Error::damage(path + ": expected the " + std::to_string(sums.bytes) +
                         " bytes that were written, found " +
                         std::to_string(file->size()) +
                         ": the file is damaged");
  file->checks = std::make_unique<Checks>();
  file->checks->sums = std::move(sums);
  return file;
}

std::optional<Error> InputFile::checkBlock(uint64_t block,
                                           const char *content) const {
  uint64_t begin = block * BlockSums::blockBytes;
  uint64_t size = std::min(BlockSums::blockBytes, this->size() - begin);
  uint64_t expected = checks->sums.sums[block];
  uint64_t found = checksum({content, size});
  if (found == expected)
    return std::nullopt;
  return Error::damage(path() + ": expected bytes " + std::to_string(begin) +
                       " to " + std::to_string(begin + size) +
                       " with checksum " + spellChecksum(expected) +
                       ", found " + spellChecksum(found) +
                       ": the file is damaged");
}

/// Of a block, of which more may be read soon.
std::optional<Error> InputFile::readFromBlock(uint64_t number, uint64_t size,
                                              uint64_t offset, char *to,
                                              uint64_t count) const {
  static std::mutex mutex; // Of all blocks that are kept.
  static std::deque<std::weak_ptr<Block>> kept;
  constexpr size_t mostKept = 8;
  std::lock_guard<std::mutex> lock(mutex);
  Block &block = *checks->latest;
  if (block.number != number) {
    if (block.number == UINT64_MAX)
      kept.push_back(checks->latest);
    block.content.resize(size);
    block.number = number;
    auto error =
        readPlain(number * BlockSums::blockBytes, block.content.data(), size);
    if (!error)
      error = checkBlock(number, block.content.data());
    if (error) {
      block.number = UINT64_MAX;
      return error;
    }
  }
  std::memcpy(to, block.content.data() + offset, count);
  kept.erase(std::remove_if(kept.begin(), kept.end(),
                            [](const auto &each) { return each.expired(); }),
             kept.end());
  for (; kept.size() > mostKept; kept.pop_front())
    if (auto oldest = kept.front().lock()) {
      std::string().swap(oldest->content);
      oldest->number = UINT64_MAX;
    }
  return std::nullopt;
}

std::optional<Error> InputFile::read(uint64_t offset, char *to,
                                     uint64_t count) const {
  if (!checks)
    return readPlain(offset, to, count);
  while (count != 0) {
    uint64_t number = offset / BlockSums::blockBytes;
    uint64_t begin = number * BlockSums::blockBytes;
    uint64_t size = std::min(BlockSums::blockBytes, this->size() - begin);
    uint64_t part = std::min(count, begin + size - offset);
    if (part == size) {
      if (auto error = readPlain(begin, to, size))
        return error;
      if (auto error = checkBlock(number, to))
        return error;
    } else if (auto error =
                   readFromBlock(number, size, offset - begin, to, part)) {
      return error;
    }
    offset += part;
    to += part;
    count -= part;
  }
  return std::nullopt;
}

std::optional<Error> InputFile::readPlain(uint64_t offset, char *to,
                                          uint64_t count) const {
  assert(offset <= size() && count <= size() - offset && "not in the file");
  if (count == 0)
    return std::nullopt;
  Expected<SharedDescriptor> descriptor = source->get();
  if (!descriptor)
    return descriptor.error();
  while (count != 0) {
    ssize_t found =
        ::pread((*descriptor)->number, to, count, static_cast<off_t>(offset));
    if (found < 0 && errno == EINTR)
      continue;
    if (found < 0)
      return cannot("read", path());
    if (found == 0)
      return Error{path() + ": expected the " + std::to_string(size()) +
                   " bytes that it had when it was opened, found " +
                   std::to_string(offset) +
                   ": it has been changed while it was in use"};
    to += found;
    offset += static_cast<uint64_t>(found);
    count -= static_cast<uint64_t>(found);
  }
  return std::nullopt;
}

Expected<std::string> InputFile::read(uint64_t offset, uint64_t count) const {
  std::string content;
  content.reserve(count + 64); // parsers want room after a text
  content.resize(count);
  if (auto error = read(offset, content.data(), count))
    return *error;
  return content;
}

Expected<std::string> InputFile::readWhole(const std::string &path,
                                           uint64_t most) {
  Expected<InputFile> file = open(path);
  if (!file)
    return file.error();
  if (file->size() > most)
    return Error{path + ": expected at most " + std::to_string(most) +
                 " bytes, found " + std::to_string(file->size())};
  return file->read();
}
