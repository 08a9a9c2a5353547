//===- RankLog.cpp - What each process notes for itself -------------------===//

#include "fsdp/Runtime/Training/RankLog.h"

#include "fsdp/Runtime/Support/Error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

using namespace fsdp;

RankLog::RankLog(const std::string &folder, unsigned rank) {
  if (folder.empty())
    return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path = folder + "/rank-" + std::to_string(rank) + ".log";
  file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0)
    throw Error("--log: " + path + ": cannot open: " + std::strerror(errno));
}

RankLog::~RankLog() {
  if (isOpen())
    ::close(file);
}

void RankLog::write(std::string_view line) const {
  if (!isOpen())
    return;
  std::string text(line);
  text += '\n';
  if (::write(file, text.data(), text.size()) !=
      static_cast<ssize_t>(text.size()))
    throw Error("--log: " + path + ": cannot write: " + std::strerror(errno),
                Failure::RankFailed);
}
