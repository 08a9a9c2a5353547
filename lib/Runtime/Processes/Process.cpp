//===- Process.cpp - Which process it is ----------------------------------===//

#include "fsdp/Runtime/Processes/Process.h"

#include "fsdp/Runtime/Support/Error.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

using namespace fsdp;

Process fsdp::ownProcess(const std::string &host) {
  std::error_code failed;
  std::string space =
      std::filesystem::read_symlink("/proc/self/ns/pid", failed).string();
  // "pid:[4026531836]"
  return {host, failed || space.empty() ? "?" : space, ::getpid()};
}

std::string fsdp::encodeProcess(const Process &process) {
  return std::to_string(process.number) + ' ' + process.space + ' ' +
         process.host;
}

Process fsdp::decodeProcess(const std::string &line) {
  Process process;
  std::istringstream text(line);
  if (!(text >> process.number >> process.space) || process.number < 1 ||
      text.get() != ' ')
    throw Error("expected a process to say which one it is, found '" +
                    line.substr(0, 40) + "'",
                Failure::RankFailed);
  std::getline(text, process.host);
  return process;
}

bool fsdp::isDead(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  if (!std::getline(file, text))
    return true;
  // "12 (name) Z ...", where the name may contain anything.
  std::size_t state = text.rfind(") ");
  return state == std::string::npos || text[state + 2] == 'Z' ||
         text[state + 2] == 'X';
}
