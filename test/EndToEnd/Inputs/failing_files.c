// A file system that fails, for LD_PRELOAD: calls CALL ("open", "pread", "openat" or "fsync") on a path that ends with PATH fail with
// the error NUMBER, or take -NUMBER seconds, where FSDP_FAIL is "CALL NUMBER PATH".

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(const char *call, const char *path) {
  const char *wanted = getenv("FSDP_FAIL");
  char name[16], end[256];
  int number;
  if (!wanted || sscanf(wanted, "%15s %d %255s", name, &number, end) != 3 || strcmp(name, call) != 0)
    return 0;
  size_t length = strlen(path), suffix = strlen(end);
  if (length < suffix || strcmp(path + length - suffix, end) != 0)
    return 0;
  if (number < 0)
    sleep(-number);
  errno = number;
  return number > 0;
}

int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  if (fails("open", path))
    return -1;
  return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  return open(path, flags, mode);
}

// What lists a folder opens it so.
int openat(int folder, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  if (fails("openat", path))
    return -1;
  return ((int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat"))(folder, path, flags, mode);
}

static int fails_on(const char *call, int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length < 0 ? 0 : length] = 0;
  return fails(call, path);
}

int fsync(int file) {
  if (fails_on("fsync", file))
    return -1;
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

ssize_t pread(int file, void *to, size_t count, off_t offset) {
  if (fails_on("pread", file))
    return -1;
  return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(file, to, count, offset);
}
ssize_t pread64(int file, void *to, size_t count, off64_t offset) { return pread(file, to, count, offset); }
