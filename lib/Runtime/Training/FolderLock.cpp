//===- FolderLock.cpp - A folder that one run writes to -------------------===//

#include "FolderLock.h"

#include "fsdp/Runtime/Support/Error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fsdp;

namespace {

/// A process of some machine, as the file names it.
struct Owner {
  std::string host;
  std::string boot; ///< Of the machine's kernel: another one after each start.
  long long process = 0;
  std::string begun; ///< Numbers of processes come again.

  bool operator==(const Owner &) const = default;
};

} // namespace

/// When a process began, in ticks of the kernel; empty if there is none.
static std::string findBegin(long long process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text, word;
  std::getline(file, text);
  // "12 (name) S ...", where the name may contain anything.
  std::size_t end = text.rfind(") ");
  if (end == std::string::npos)
    return {};
  std::istringstream fields(text.substr(end + 2));
  constexpr int beginField = 20; // of those after the name
  for (int i = 0; i != beginField; ++i)
    fields >> word;
  return word;
}

static Owner self() {
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return {host, boot, ::getpid(), findBegin(::getpid())};
}

/// What the file says; untrusted.
static Owner readOwner(int descriptor) {
  char text[1024];
  ssize_t size = ::pread(descriptor, text, sizeof text, 0);
  Owner owner;
  std::istringstream fields(
      std::string(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))));
  if (fields >> owner.host >> owner.boot >> owner.process >> owner.begun)
    return owner;
  return {};
}

[[noreturn]] static void fail(const char *deed, const std::string &path) {
  throw Error("--checkpoint: cannot " + std::string(deed) + " " + path + ": " +
              std::strerror(errno));
}

[[noreturn]] static void reject(const std::string &path, const Owner &owner,
                                const std::string &advice) {
  throw Error("--checkpoint: expected a folder of this training alone, found "
              "another run that writes to it: " +
              path + " is of process " + std::to_string(owner.process) +
              " on " + (owner.host.empty() ? "?" : owner.host) + advice);
}

FolderLock::FolderLock(const std::string &folder) : path(folder + "/.lock") {
  // Somebody else may take it over, or let it go, in between.
  constexpr int mostTries = 100;
  for (int i = 0; i != mostTries; ++i) {
    if (create())
      return;
    takeOver();
  }
  throw Error("--checkpoint: expected a folder of this training alone, found "
              "others that want to write to " +
              folder);
}

/// False if it is there.
bool FolderLock::create() {
  descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0 && errno == EEXIST)
    return false;
  if (descriptor < 0)
    fail("make", path);
  // Ends with the process; not all file systems have it.
  ::flock(descriptor, LOCK_EX | LOCK_NB);
  Owner owner = self();
  std::string text = owner.host + ' ' + owner.boot + ' ' +
                     std::to_string(owner.process) + ' ' + owner.begun + '\n';
  if (::write(descriptor, text.data(), text.size()) !=
          static_cast<ssize_t>(text.size()) ||
      ::fsync(descriptor) != 0) {
    int cause = errno;
    ::unlink(path.c_str());
    ::close(descriptor);
    errno = cause;
    fail("write", path);
  }
  return true;
}

/// Removes that of a process that has ended; throws if it may live.
void FolderLock::takeOver() {
  int other = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (other < 0 && errno == ENOENT)
    return;
  if (other < 0)
    fail("open", path);
  struct Closed {
    ~Closed() { ::close(number); }
    int number;
  } closed{other};
  Owner owner = readOwner(other), here = self();
  // In another container of this machine, a process is seen by its lock alone.
  bool isHeld = ::flock(other, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!isHeld && owner.boot != here.boot && owner.host != here.host)
    reject(path, owner,
           ", of which this machine does not know whether it has ended; if it "
           "has, remove the file");
  if (isHeld || (owner.boot == here.boot && !owner.begun.empty() &&
                 findBegin(owner.process) == owner.begun))
    reject(path, owner, "");
  // Who has taken it over first has another file there.
  struct stat mine, there;
  if (::fstat(other, &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
      mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
    ::unlink(path.c_str());
}

FolderLock::~FolderLock() {
  struct stat mine, there;
  if (::fstat(descriptor, &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
      mine.st_ino == there.st_ino)
    ::unlink(path.c_str());
  ::close(descriptor);
}
