//===- MappedFile.cpp - A file as read-only memory ------------------------===//

#include "fsdp/Archive/MappedFile.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
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

Expected<MappedFile> MappedFile::open(const std::string &path) {
  // Without O_NONBLOCK, opening a pipe waits for somebody to write to it.
  int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return Error{path + ": cannot open: " + std::strerror(errno)};

  auto mapFile = [&]() -> Expected<MappedFile> {
    struct stat status;
    if (::fstat(file, &status) != 0)
      return Error{path + ": cannot read: " + std::strerror(errno)};
    if (!S_ISREG(status.st_mode))
      return Error{path + ": expected a regular file, found " +
                   describe(status.st_mode)};
    if (status.st_size == 0)
      return Error{path + ": expected at least one byte, found an empty file"};
    size_t size = static_cast<size_t>(status.st_size);
    void *data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED)
      return Error{path + ": cannot map: " + std::strerror(errno)};
    return MappedFile(path, {static_cast<const char *>(data), size});
  };
  Expected<MappedFile> result = mapFile();
  ::close(file);
  return result;
}

MappedFile::MappedFile(MappedFile &&other) noexcept
    : name(std::move(other.name)), content(std::exchange(other.content, {})) {}

MappedFile &MappedFile::operator=(MappedFile &&other) noexcept {
  std::swap(name, other.name);
  std::swap(content, other.content);
  return *this;
}

MappedFile::~MappedFile() {
  if (!content.empty())
    ::munmap(const_cast<char *>(content.data()), content.size());
}
