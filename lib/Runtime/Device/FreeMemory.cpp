//===- FreeMemory.cpp - How much memory can be taken ----------------------===//
#include "FreeMemory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

using namespace fsdp;

/// The number after `key` in a file of keys and numbers; without a key, the
/// first number.
static std::optional<std::uint64_t> readNumber(const std::string &path,
                                               std::string_view key = "") {
  std::ifstream file(path);
  std::string word;
  std::uint64_t number = 0;
  while (!key.empty() && file >> word && word != key)
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  return file >> number ? std::optional(number) : std::nullopt;
}

namespace {
/// What a version of control groups calls its files.
struct GroupFiles {
  const char *folder, *limit, *usage, *cache;
};
} // namespace

/// What the limits of a group, and of those around it, leave. Pages of files
/// are dropped before a limit is enforced.
static std::uint64_t freeInGroup(const std::string &root, std::string group,
                                 const GroupFiles &files) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (;; group.erase(group.rfind('/'))) {
    std::string folder = root + files.folder + group + "/";
    auto limit = readNumber(folder + files.limit); // "max" is no number
    auto usage = readNumber(folder + files.usage);
    if (limit && usage) {
      std::uint64_t used =
          *usage -
          std::min(*usage,
                   readNumber(folder + "memory.stat", files.cache).value_or(0));
      least = std::min(least, *limit - std::min(*limit, used));
    }
    if (group.find('/') == std::string::npos)
      return least;
  }
}

std::uint64_t fsdp::freeMemory(const std::string &root) {
  std::uint64_t free = std::numeric_limits<std::uint64_t>::max();
  if (auto kib = readNumber(root + "proc/meminfo", "MemAvailable:"))
    free = *kib * 1024;
  // Lines of number:controllers:path; version 2 has no controllers.
  std::ifstream groups(root + "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (path == "/")
      path.clear();
    if (controllers.empty())
      free = std::min(free, freeInGroup(root, path,
                                        {"sys/fs/cgroup", "memory.max",
                                         "memory.current", "inactive_file"}));
    else if (("," + controllers + ",").find(",memory,") != std::string::npos)
      free = std::min(
          free, freeInGroup(root, path,
                            {"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                             "memory.usage_in_bytes", "total_inactive_file"}));
  }
  return free;
}
