//===- InputFile.cpp - A regular file opened for reading ------------------===//

#include "fsdp/Archive/InputFile.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fsdp::archive;

static const char *describe(mode_t mode) {
  if (S_ISDIR(mode))
    return "a directory";
  if (S_ISFIFO(mode))
    return "a pipe";
  if (S_ISSOCK(mode))
    return "a socket";
  return "a device";
}

Expected<InputFile> InputFile::open(const std::string &path) {
  // Without O_NONBLOCK, opening a pipe waits for somebody to write to it.
  int descriptor =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0)
    return Error{path + ": cannot open: " + std::strerror(errno)};
  InputFile file(path, descriptor, 0);
  struct stat status;
  if (::fstat(descriptor, &status) != 0)
    return Error{path + ": cannot read: " + std::strerror(errno)};
  if (!S_ISREG(status.st_mode))
    return Error{path + ": expected a regular file, found " +
                 describe(status.st_mode)};
  if (status.st_size == 0)
    return Error{path + ": expected at least one byte, found an empty file"};
  file.bytes = static_cast<uint64_t>(status.st_size);
  return file;
}

Expected<InputFile> InputFile::open(const std::string &path, BlockSums sums) {
  Expected<InputFile> file = open(path);
  if (!file)
    return file;
  if (file->bytes != sums.bytes)
    return Error{path + ": expected the " + std::to_string(sums.bytes) +
                 " bytes that were written, found " +
                 std::to_string(file->bytes) + ": the file is damaged"};
  file->checks = std::make_unique<Checks>();
  file->checks->sums = std::move(sums);
  return file;
}

InputFile::InputFile(InputFile &&other) noexcept
    : name(std::move(other.name)),
      descriptor(std::exchange(other.descriptor, -1)), bytes(other.bytes),
      checks(std::move(other.checks)) {}

InputFile &InputFile::operator=(InputFile &&other) noexcept {
  std::swap(name, other.name);
  std::swap(descriptor, other.descriptor);
  std::swap(bytes, other.bytes);
  std::swap(checks, other.checks);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor >= 0)
    ::close(descriptor);
}

std::optional<Error> InputFile::checkBlock(uint64_t block,
                                           const char *content) const {
  uint64_t begin = block * BlockSums::blockBytes;
  uint64_t size = std::min(BlockSums::blockBytes, bytes - begin);
  uint64_t expected = checks->sums.sums[block];
  uint64_t found = checksum({content, size});
  if (found == expected)
    return std::nullopt;
  return Error{name + ": expected bytes " + std::to_string(begin) + " to " +
               std::to_string(begin + size) + " with checksum " +
               spellChecksum(expected) + ", found " + spellChecksum(found) +
               ": the file is damaged"};
}

std::optional<Error> InputFile::read(uint64_t offset, char *to,
                                     uint64_t count) const {
  if (!checks)
    return readPlain(offset, to, count);
  while (count != 0) {
    uint64_t number = offset / BlockSums::blockBytes;
    uint64_t begin = number * BlockSums::blockBytes;
    uint64_t size = std::min(BlockSums::blockBytes, bytes - begin);
    uint64_t part = std::min(count, begin + size - offset);
    if (part == size) {
      if (auto error = readPlain(begin, to, size))
        return error;
      if (auto error = checkBlock(number, to))
        return error;
    } else {
      std::string &block = checks->block;
      if (checks->number != number) {
        checks->number = UINT64_MAX;
        block.resize(size);
        if (auto error = readPlain(begin, block.data(), size))
          return error;
        if (auto error = checkBlock(number, block.data()))
          return error;
        checks->number = number;
      }
      std::memcpy(to, block.data() + (offset - begin), part);
    }
    offset += part;
    to += part;
    count -= part;
  }
  return std::nullopt;
}

std::optional<Error> InputFile::readPlain(uint64_t offset, char *to,
                                          uint64_t count) const {
  assert(offset <= bytes && count <= bytes - offset && "not in the file");
  while (count != 0) {
    ssize_t found = ::pread(descriptor, to, count, static_cast<off_t>(offset));
    if (found < 0 && errno == EINTR)
      continue;
    if (found < 0)
      return Error{name + ": cannot read: " + std::strerror(errno)};
    if (found == 0)
      return Error{name + ": expected the " + std::to_string(bytes) +
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
