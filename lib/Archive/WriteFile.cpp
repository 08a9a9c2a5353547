//===- WriteFile.cpp - What commands write, and where ---------------------===//

#include "fsdp/Archive/WriteFile.h"

#include "Descriptor.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>

using namespace fsdp::archive;

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
}
SignalsBlocked::~SignalsBlocked() {
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

namespace {

/// What a path leads to. The same file has the same device, number and name,
/// by whatever path; the name is empty where there is a file.
struct Target {
  bool exists = false;
  struct stat status = {};
  std::string path; ///< Links resolved.
  std::string folder;
  std::tuple<dev_t, ino_t, std::string> identity;

  bool isRegular() const { return !exists || S_ISREG(status.st_mode); }
};

} // namespace

static std::string getFolder(const std::string &path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "."
         : slash == 0               ? "/"
                                    : path.substr(0, slash);
}

/// Follows the links of a path at whose end there is no file. False, with
/// errno, if there is no end.
static bool followLinks(std::string &path) {
  for (int count = 0; count != 40; ++count) {
    char link[PATH_MAX];
    ssize_t length = ::readlink(path.c_str(), link, sizeof link);
    if (length < 0)
      return true;
    std::string next(link, static_cast<size_t>(length));
    path = next.front() == '/' ? next : getFolder(path) + "/" + next;
  }
  errno = ELOOP;
  return false;
}

/// False, with errno, where there is no way to `path`.
static bool resolve(const std::string &path, Target &target) {
  target.path = path;
  int found = path == "-" ? ::fstat(STDOUT_FILENO, &target.status)
                          : ::stat(path.c_str(), &target.status);
  if (found == 0) {
    target.exists = true;
    target.identity = {target.status.st_dev, target.status.st_ino, ""};
    // What /dev/stdout leads to may have no name.
    if (char *real = ::realpath(path.c_str(), nullptr)) {
      target.path = real;
      std::free(real);
    }
    target.folder = getFolder(target.path);
    return true;
  }
  if (errno != ENOENT || !followLinks(target.path))
    return false;
  target.folder = getFolder(target.path);
  std::string name = target.path.substr(target.path.rfind('/') + 1);
  struct stat folder;
  if (::stat(target.folder.c_str(), &folder) != 0)
    return false;
  errno = ENOENT;
  target.identity = {folder.st_dev, folder.st_ino, name};
  return !name.empty();
}

/// The standard stream that `target` is, or -1. A file that the output of this
/// process goes to must not be replaced by another.
static int findStream(const Target &target) {
  for (int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat status;
    if (target.exists && ::fstat(stream, &status) == 0 &&
        status.st_dev == target.status.st_dev &&
        status.st_ino == target.status.st_ino)
      return stream;
  }
  return -1;
}

static Error cannot(const std::string &path, const char *what) {
  return {path + ": cannot " + what + " the file: " + std::strerror(errno)};
}

//===----------------------------------------------------------------------===//
// Checking
//===----------------------------------------------------------------------===//

static std::optional<Error> checkWritable(const std::string &path,
                                          const Target &target) {
  if (S_ISDIR(target.status.st_mode)) {
    errno = EISDIR;
    return cannot(path, "write");
  }
  if (path == "-" || findStream(target) >= 0)
    return std::nullopt;
  if (target.exists && ::access(target.path.c_str(), W_OK) != 0)
    return cannot(path, "write");
  if (target.isRegular() && ::access(target.folder.c_str(), W_OK | X_OK) != 0)
    return cannot(path, "create");
  return std::nullopt;
}

std::optional<Error>
fsdp::archive::checkOutputs(const std::vector<NamedPath> &outputs,
                            const std::vector<NamedPath> &inputs) {
  if (outputs.empty())
    return std::nullopt; // Inputs may be many, of many processes.
  std::vector<std::pair<Target, std::string>> taken;
  for (const NamedPath &input : inputs) {
    Target target;
    if (input.path != "-" && resolve(input.path, target) && target.exists)
      taken.emplace_back(target, input.option);
  }
  for (const NamedPath &output : outputs) {
    Target target;
    if (!resolve(output.path, target))
      return cannot(output.path, "create");
    for (const auto &[other, option] : taken)
      if (target.identity == other.identity && !S_ISCHR(target.status.st_mode))
        return Error{output.path + ": expected a file of its own for " +
                     output.option + ", found that of " + option};
    if (auto error = checkWritable(output.path, target))
      return error;
    taken.emplace_back(target, output.option);
  }
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

/// False, with errno, where it fails.
static bool writeAll(int descriptor, std::string_view piece) {
  while (!piece.empty()) {
    ssize_t written = ::write(descriptor, piece.data(), piece.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return false;
    piece.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

/// What is written past the page cache: a multiple of it, from and to
/// multiples of the alignment that file systems ask for.
static constexpr size_t directBlock = size_t{1} << 20;
static constexpr size_t directAlignment = 4096;

namespace {

/// Writes an empty file that must be on the disk soon. What is large goes there
/// without copies in the page cache, which take the processor from a training
/// that goes on meanwhile: whole blocks with O_DIRECT. All calls return false,
/// with errno, where they fail.
class NewFile {
public:
  NewFile(int descriptor, uint64_t bytes) : descriptor(descriptor) {
    flags = ::fcntl(descriptor, F_GETFL);
    if (bytes < directBlock || flags < 0 ||
        ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0)
      return;
    buffer.reset(
        static_cast<char *>(std::aligned_alloc(directAlignment, directBlock)));
    if (!buffer)
      ::fcntl(descriptor, F_SETFL, flags);
  }

  bool write(std::string_view piece) {
    while (buffer && !piece.empty()) {
      size_t part = std::min(piece.size(), directBlock - held);
      std::memcpy(buffer.get() + held, piece.data(), part);
      piece.remove_prefix(part);
      held += part;
      if (held == directBlock && !writeBlock())
        return false;
    }
    return writeAll(descriptor, piece);
  }

  bool finish() { return !buffer || endDirect(); }

private:
  bool writeBlock() {
    if (writeAll(descriptor, {buffer.get(), held})) {
      held = 0;
      return true;
    }
    // Some file systems say at the first write that they cannot do it.
    return errno == EINVAL && ::lseek(descriptor, 0, SEEK_CUR) == 0 &&
           endDirect();
  }

  /// The rest, and what comes later, is written as any file is.
  bool endDirect() {
    bool isDone = ::fcntl(descriptor, F_SETFL, flags) == 0 &&
                  writeAll(descriptor, {buffer.get(), held});
    buffer.reset();
    return isDone;
  }

  int descriptor, flags;
  /// Null: the file is written as any is.
  std::unique_ptr<char, decltype(&std::free)> buffer{nullptr, &std::free};
  size_t held = 0; ///< Bytes in the buffer.
};

} // namespace

/// Makes a rename in `folder` survive a power failure.
static bool syncFolder(const std::string &folder) {
  Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return file.number >= 0 && ::fsync(file.number) == 0;
}

/// A name in the folder that is short, so that a path may be long.
static std::string getName(const Target &target, int count) {
  return target.folder + "/.fsdp-" + std::to_string(::getpid()) + "-" +
         std::to_string(count);
}

/// Puts the file without a name where it belongs. What takes no other's place
/// gets its name at once, so that nothing is left even by a kill.
static bool putInPlace(int number, const Target &target) {
  std::string file = "/proc/self/fd/" + std::to_string(number);
  auto link = [&](const std::string &path) {
    return ::linkat(AT_FDCWD, file.c_str(), AT_FDCWD, path.c_str(),
                    AT_SYMLINK_FOLLOW) == 0;
  };
  if (!target.exists && link(target.path))
    return true;
  for (int count = 0; count != 100; ++count) {
    std::string name = getName(target, count);
    if (!link(name)) {
      if (errno == EEXIST)
        continue;
      return false;
    }
    if (::rename(name.c_str(), target.path.c_str()) == 0)
      return true;
    int reason = errno;
    ::unlink(name.c_str());
    errno = reason;
    return false;
  }
  return false;
}

static std::optional<Error> replaceFile(const std::string &path,
                                        const Target &target, uint64_t bytes,
                                        const NextPiece &next) {
  // Without a name, nothing is left by a signal: the next piece may take long.
  std::optional<SignalsBlocked> whileTemporary;
  Descriptor file(
      ::open(target.folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
  std::string name; // where the file system knows no files without one
  if (file.number < 0)
    whileTemporary.emplace();
  for (int count = 0; file.number < 0 && count != 100; ++count) {
    name = getName(target, count);
    file.number =
        ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.number < 0 && errno != EEXIST)
      break;
  }
  if (file.number < 0)
    return cannot(path, "create");
  auto fail = [&](Error error) {
    if (!name.empty())
      ::unlink(name.c_str()); // Fails after a rename, as it should.
    return error;
  };
  NewFile content(file.number, bytes);
  for (;;) {
    Expected<std::string_view> piece = next();
    if (!piece)
      return fail(piece.error());
    if (piece->empty())
      break;
    if (!content.write(*piece))
      return fail(cannot(path, "write"));
  }
  if (!whileTemporary)
    whileTemporary.emplace();
  bool isWritten =
      content.finish() &&
      (!target.exists ||
       ::fchmod(file.number, target.status.st_mode & 07777) == 0) &&
      ::fsync(file.number) == 0 &&
      (name.empty() ? putInPlace(file.number, target)
                    : ::rename(name.c_str(), target.path.c_str()) == 0);
  if (isWritten && syncFolder(target.folder))
    return std::nullopt;
  return fail(cannot(path, "write"));
}

Expected<uint64_t>
fsdp::archive::writeFile(const std::string &path,
                         const std::vector<std::string_view> &pieces) {
  uint64_t bytes = 0;
  for (std::string_view piece : pieces)
    bytes += piece.size();
  auto piece = pieces.begin();
  return writeFile(path, bytes, [&]() -> Expected<std::string_view> {
    while (piece != pieces.end() && piece->empty())
      ++piece;
    return piece == pieces.end() ? std::string_view() : *piece++;
  });
}

Expected<uint64_t> fsdp::archive::writeFile(const std::string &path,
                                            uint64_t bytes,
                                            const NextPiece &next) {
  Target target;
  if (!resolve(path, target))
    return cannot(path, "create");
  if (S_ISDIR(target.status.st_mode)) {
    errno = EISDIR;
    return cannot(path, "write");
  }
  int stream = path == "-" ? STDOUT_FILENO : findStream(target);
  if (stream < 0 && target.isRegular()) {
    if (auto error = replaceFile(path, target, bytes, next))
      return *error;
    return bytes;
  }
  Descriptor file(stream >= 0
                      ? ::dup(stream)
                      : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (file.number < 0)
    return cannot(path, "write");
  for (;;) {
    Expected<std::string_view> piece = next();
    if (!piece)
      return piece.error();
    if (piece->empty())
      return bytes;
    if (!writeAll(file.number, *piece))
      return cannot(path, "write");
  }
}
