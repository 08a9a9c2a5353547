//===- TensorBoard.cpp - Event files, by a process of Python --------------===//

#include "TensorBoard.h"

#include "fsdp/Runtime/Training/Processes.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace fsdp;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

static constexpr std::size_t mostPending = std::size_t{16} << 20;
static constexpr int startMilliseconds = 60'000;
static constexpr std::string_view ready = "ready\n";
/// For the process to write what it was told.
static constexpr auto farewell = 5s;

static void closePipe(int &end) {
  if (end >= 0)
    ::close(end);
  end = -1;
}

[[noreturn]] static void failToStart(int cause) {
  throw Error(std::string("--tensorboard: expected python3 on the PATH, with "
                          "the library tensorboard, found that it cannot be "
                          "started: ") +
              std::strerror(cause));
}

TensorBoard::TensorBoard(const std::string &folder) : folder(folder) {
  int input[2], output[2];
  if (::pipe2(input, O_CLOEXEC) != 0)
    failToStart(errno);
  lines = input[1];
  if (::pipe2(output, O_CLOEXEC) != 0) {
    int cause = errno;
    ::close(input[0]);
    closePipe(lines);
    failToStart(cause);
  }
  replies = output[0];

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDERR_FILENO);
  // In a group of its own, a signal to this run does not end it: the end of its
  // input does.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::string script = findLibrary("tensorboard_writer.py");
  const char *arguments[] = {"python3",      "-W",           "ignore",
                             script.c_str(), folder.c_str(), nullptr};
  int cause = ::posix_spawnp(&process, arguments[0], &actions, &attributes,
                             const_cast<char **>(arguments), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(input[0]);
  ::close(output[1]);
  if (cause != 0) {
    process = -1;
    closePipe(lines);
    closePipe(replies);
    failToStart(cause);
  }
  listen(startMilliseconds, ready);
  if (!said.starts_with(ready)) {
    std::string reply = lastLine();
    giveUp();
    throw Error("--tensorboard " + folder + ": " +
                (reply.empty() ? "expected python3 to be ready, found that it "
                                 "ended or took longer than 60 s"
                               : reply));
  }
  said.erase(0, ready.size());
  ::fcntl(lines, F_SETFL, O_NONBLOCK);
}

TensorBoard::~TensorBoard() {
  finish();
  giveUp();
}

/// Hears what it says until its output ends, it has said `awaited`, or it takes
/// too long.
void TensorBoard::listen(int milliseconds, std::string_view awaited) {
  auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  while (awaited.empty() || !said.starts_with(awaited)) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - Clock::now());
    pollfd each{replies, POLLIN, 0};
    char part[1024];
    int found = left < 0ms ? 0 : ::poll(&each, 1, int(left.count()));
    if (found < 0 && errno == EINTR)
      continue; // A signal asks for the end of the run, not of this process.
    if (found <= 0)
      return;
    ssize_t count = ::read(replies, part, sizeof part);
    if (count <= 0)
      return;
    said.append(part, static_cast<std::size_t>(count));
  }
}

/// Of what it has said.
std::string TensorBoard::lastLine() const {
  std::size_t end = said.find_last_not_of('\n') + 1;
  std::string line = said.substr(0, end);
  return line.substr(line.rfind('\n') + 1);
}

/// Ends the process, whatever it does.
void TensorBoard::giveUp() {
  closePipe(lines);
  closePipe(replies);
  if (process < 0)
    return;
  ::kill(process, SIGKILL);
  while (::waitpid(process, nullptr, 0) < 0 && errno == EINTR)
    ;
  process = -1;
}

/// Writes as much of what is pending as the pipe takes.
void TensorBoard::send() {
  while (lines >= 0 && !pending.empty()) {
    ssize_t count = ::write(lines, pending.data(), pending.size());
    if (count > 0) {
      pending.erase(0, static_cast<std::size_t>(count));
      continue;
    }
    if (errno == EINTR)
      continue;
    if (errno == EAGAIN)
      return;
    listen(100);
    std::string reply = lastLine();
    warning = "note: --tensorboard " + folder +
              ": the process that writes has ended, and the training goes on "
              "without it" +
              (reply.empty() ? "" : ": " + reply);
    giveUp();
  }
}

void TensorBoard::tell(const std::string &line) {
  if (lines < 0)
    return;
  if (pending.size() + line.size() > mostPending)
    ++lost;
  else
    pending += line;
  send();
}

void TensorBoard::finish() {
  auto end = Clock::now() + farewell;
  for (; lines >= 0 && !pending.empty() && Clock::now() < end; send()) {
    pollfd each{lines, POLLOUT, 0};
    ::poll(&each, 1, 100);
  }
  if (lines < 0)
    return;
  closePipe(lines);
  // Nothing but the last word of a process that fails.
  auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  listen(static_cast<int>(left.count()));
  int status = 0;
  bool hasEnded = false;
  while (!(hasEnded = ::waitpid(process, &status, WNOHANG) != 0) &&
         Clock::now() < end)
    std::this_thread::sleep_for(1ms);
  if (hasEnded)
    process = -1;
  if (lost != 0 || !hasEnded || status != 0)
    warning = "note: --tensorboard " + folder + ": " +
              (lost != 0 ? std::to_string(lost) + " lines were lost, since the "
                                                  "process that writes was slow"
               : hasEnded ? "the process that writes has failed: " + lastLine()
                          : "the process that writes did not end in time; its "
                            "last lines may be missing");
}

std::string TensorBoard::takeWarning() { return std::exchange(warning, {}); }
