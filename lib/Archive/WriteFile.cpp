//===- WriteFile.cpp - Files that appear whole or not at all --------------===//

#include "fsdp/Archive/WriteFile.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

using namespace fsdp::archive;

namespace {

/// An open file under a temporary name, closed and removed on destruction.
class TemporaryFile {
public:
  explicit TemporaryFile(std::string name)
      : path(std::move(name)),
        descriptor(::open(path.c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                          0666)) {}
  TemporaryFile(const TemporaryFile &) = delete;
  TemporaryFile &operator=(const TemporaryFile &) = delete;
  ~TemporaryFile() {
    if (descriptor < 0)
      return;
    ::close(descriptor);
    ::unlink(path.c_str()); // Fails after a rename, as it should.
  }

  bool isOpen() const { return descriptor >= 0; }

  bool write(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR)
        continue;
      if (written <= 0)
        return false;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return true;
  }

  bool renameTo(const std::string &target) {
    return ::fsync(descriptor) == 0 &&
           ::rename(path.c_str(), target.c_str()) == 0;
  }

private:
  std::string path;
  int descriptor;
};

} // namespace

/// Makes a rename in the folder of `path` survive a power failure.
static bool syncFolder(const std::string &path) {
  size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "."
                       : slash == 0               ? "/"
                                                  : path.substr(0, slash);
  int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0)
    return false;
  bool synced = ::fsync(file) == 0;
  int cause = errno;
  ::close(file);
  errno = cause;
  return synced;
}

Expected<uint64_t>
fsdp::archive::writeFile(const std::string &path,
                         const std::vector<std::string_view> &pieces) {
  auto refuse = [&](const char *what) {
    return Error{path + ": cannot " + what +
                 " the file: " + std::strerror(errno)};
  };
  TemporaryFile file(path + ".tmp" + std::to_string(::getpid()));
  if (!file.isOpen())
    return refuse("create");
  uint64_t size = 0;
  for (std::string_view piece : pieces) {
    if (!file.write(piece))
      return refuse("write");
    size += piece.size();
  }
  if (!file.renameTo(path) || !syncFolder(path))
    return refuse("write");
  return size;
}
