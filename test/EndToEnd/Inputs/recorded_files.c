// What a program does to files, for LD_PRELOAD: each call that changes something below FSDP_RECORD_FOLDER, or makes it durable, is
// appended to FSDP_RECORD: a line with the call, its numbers and the length of each text that follows, and then these texts.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { mostFiles = 4096 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int record = -1;
static char isOpen[mostFiles];

static int isInside(const char *path) {
  const char *folder = getenv("FSDP_RECORD_FOLDER");
  return folder && strncmp(path, folder, strlen(folder)) == 0;
}

/// The path of a name relative to an open folder.
static const char *find(int folder, const char *path, char *buffer) {
  if (path[0] == '/' || folder == AT_FDCWD)
    return path;
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  ssize_t length = readlink(link, buffer, PATH_MAX - 1);
  buffer[length < 0 ? 0 : length] = 0;
  strncat(buffer, "/", PATH_MAX - strlen(buffer) - 1);
  return strncat(buffer, path, PATH_MAX - strlen(buffer) - 1);
}

static void note(const char *call, long number, const char *first, size_t firstLength, const char *second) {
  if (record < 0)
    record = REAL(open)(getenv("FSDP_RECORD"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  size_t length = strlen(second);
  char line[128];
  int size = snprintf(line, sizeof line, "%s %ld %zu %zu\n", call, number, firstLength, length);
  if (REAL(write)(record, line, (size_t)size) != size || REAL(write)(record, first, firstLength) != (ssize_t)firstLength ||
      REAL(write)(record, second, length) != (ssize_t)length)
    abort();
}

static int noteOpen(int file, const char *path, int flags) {
  if (file >= 0 && file < mostFiles && isInside(path)) {
    isOpen[file] = 1;
    note(flags & __O_TMPFILE & ~O_DIRECTORY ? "temporary" : flags & O_TRUNC ? "truncate" : "open", file, path, strlen(path), "");
  }
  return file;
}

int openat(int folder, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  char buffer[PATH_MAX];
  pthread_mutex_lock(&mutex);
  int file = noteOpen(REAL(openat)(folder, path, flags, mode), find(folder, path, buffer), flags);
  pthread_mutex_unlock(&mutex);
  return file;
}
int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  return openat(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = va_arg(arguments, int);
  va_end(arguments);
  return openat(AT_FDCWD, path, flags, mode);
}

int close(int file) {
  pthread_mutex_lock(&mutex);
  if (file >= 0 && file < mostFiles && isOpen[file]) {
    isOpen[file] = 0;
    note("close", file, "", 0, "");
  }
  int result = REAL(close)(file);
  pthread_mutex_unlock(&mutex);
  return result;
}

ssize_t write(int file, const void *from, size_t count) {
  pthread_mutex_lock(&mutex);
  ssize_t written = REAL(write)(file, from, count);
  if (written > 0 && file < mostFiles && isOpen[file])
    note("write", file, from, (size_t)written, "");
  pthread_mutex_unlock(&mutex);
  return written;
}

int fsync(int file) {
  pthread_mutex_lock(&mutex);
  int result = REAL(fsync)(file);
  if (result == 0 && file < mostFiles && isOpen[file])
    note("fsync", file, "", 0, "");
  pthread_mutex_unlock(&mutex);
  return result;
}

static int notePaths(int result, const char *call, const char *from, const char *to) {
  if (result == 0 && (isInside(from) || isInside(to)))
    note(call, 0, from, strlen(from), to);
  return result;
}

int linkat(int fromFolder, const char *from, int toFolder, const char *to, int flags) {
  char first[PATH_MAX], second[PATH_MAX];
  pthread_mutex_lock(&mutex);
  int result = notePaths(REAL(linkat)(fromFolder, from, toFolder, to, flags), "link", find(fromFolder, from, first), find(toFolder, to, second));
  pthread_mutex_unlock(&mutex);
  return result;
}

int rename(const char *from, const char *to) {
  pthread_mutex_lock(&mutex);
  int result = notePaths(REAL(rename)(from, to), "rename", from, to);
  pthread_mutex_unlock(&mutex);
  return result;
}

int mkdir(const char *path, mode_t mode) {
  pthread_mutex_lock(&mutex);
  int result = notePaths(REAL(mkdir)(path, mode), "mkdir", path, "");
  pthread_mutex_unlock(&mutex);
  return result;
}

int unlinkat(int folder, const char *path, int flags) {
  char buffer[PATH_MAX];
  pthread_mutex_lock(&mutex);
  int result = notePaths(REAL(unlinkat)(folder, path, flags), "unlink", find(folder, path, buffer), "");
  pthread_mutex_unlock(&mutex);
  return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
  int result = unlinkat(AT_FDCWD, path, 0);
  return result == 0 ? 0 : unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}
