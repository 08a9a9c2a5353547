//===- ForkServer.cpp - One start of a program for many runs --------------===//
//
// Preloaded, it stops a program ahead of `main`, with all libraries loaded and
// initialized, and forks it for each run that somebody asks for. PyTorch takes
// 0.2 s to register its operators, which is longer than most runs of a test.
//
// Asked on the socket whose number is FSDP_FORK_SERVER, by one packet: the
// folder, the number of arguments, them, and the environment, each ending in a
// NUL; with it come two files, its output and its errors. It answers with the
// process and, once this has ended, with its status as of waitpid(2): an int
// each.
//
//===----------------------------------------------------------------------===//

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using Main = int (*)(int, char **, char **);

namespace {
constexpr const char *channelName = "FSDP_FORK_SERVER";
constexpr size_t mostBytes = 1 << 18;
constexpr size_t fileCount = 2;

Main programMain;

struct Request {
  std::vector<char> text = std::vector<char>(mostBytes);
  int files[fileCount];
};

[[noreturn]] void fail(const char *what) {
  std::perror(what);
  _exit(127);
}

/// False once nobody is left who could ask.
bool receive(int channel, Request &request) {
  iovec part = {request.text.data(), request.text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(request.files))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size;
  do
    size = recvmsg(channel, &message, 0);
  while (size < 0 && errno == EINTR);
  if (size <= 0)
    return false;
  const cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_len != CMSG_LEN(sizeof(request.files)) ||
      (message.msg_flags & MSG_TRUNC) || request.text[size - 1] != '\0') {
    errno = EBADMSG;
    fail("fork server: expected one packet of words with two files");
  }
  std::memcpy(request.files, CMSG_DATA(header), sizeof(request.files));
  request.text.resize(size);
  return true;
}

/// In a process of its own. Never returns: what it is asked for lives as long
/// as the process.
[[noreturn]] void run(Request &request) {
  for (size_t i = 0; i != fileCount; ++i) {
    if (dup2(request.files[i], int(STDOUT_FILENO + i)) < 0)
      fail("fork server: dup2");
    close(request.files[i]);
  }
  std::vector<char *> words;
  const char *end = request.text.data() + request.text.size();
  for (char *word = request.text.data(); word != end;
       word += std::strlen(word) + 1)
    words.push_back(word);
  int count = std::atoi(words[1]);
  if (chdir(words[0]) != 0)
    fail(words[0]);
  std::vector<char *> arguments(words.begin() + 2, words.begin() + 2 + count);
  std::vector<char *> variables(words.begin() + 2 + count, words.end());
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  environ = variables.data();
  std::exit(programMain(count, arguments.data(), environ));
}

template <typename T> bool send(int channel, T value) {
  return ::send(channel, &value, sizeof(value), MSG_NOSIGNAL) == sizeof(value);
}

int serve(int count, char **arguments, char **environment) {
  const char *name = std::getenv(channelName);
  if (!name) // a program that one of ours has started
    return programMain(count, arguments, environment);
  int channel = std::atoi(name);
  for (;;) {
    Request request;
    if (!receive(channel, request))
      _exit(0);
    pid_t process = fork();
    if (process < 0)
      fail("fork server: fork");
    if (process == 0) {
      close(channel);
      run(request);
    }
    for (int file : request.files)
      close(file);
    int status;
    if (!send(channel, process))
      _exit(0);
    while (waitpid(process, &status, 0) < 0)
      if (errno != EINTR)
        fail("fork server: waitpid");
    if (!send(channel, status))
      _exit(0);
  }
}
} // namespace

/// glibc's, which calls `main`.
extern "C" int __libc_start_main(Main main, int count, char **arguments,
                                 void (*init)(), void (*fini)(),
                                 void (*linkerFini)(), void *stackEnd) {
  using Start =
      int (*)(Main, int, char **, void (*)(), void (*)(), void (*)(), void *);
  programMain = main;
  auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(serve, count, arguments, init, fini, linkerFini, stackEnd);
}
