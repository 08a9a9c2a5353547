//===- Load.cpp - Libraries that are opened at run time -------------------===//
#include "fsdp/Runtime/Execution/Session.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include <dlfcn.h>
#include <link.h>

using namespace fsdp;

/// The loader maps what the headers promise; a file that is shorter would kill
/// the process where it is first touched.
static bool isTruncated(const char *path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file)
    return false; // The loader searches for it, or says why not.
  auto size = static_cast<std::uint64_t>(file.tellg());
  auto read = [&](std::uint64_t offset, auto &value) {
    return bool(file.seekg(static_cast<std::streamoff>(offset))) &&
           file.read(reinterpret_cast<char *>(&value), sizeof value);
  };
  ElfW(Ehdr) header;
  if (!read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return false; // No such library: the loader looks at this itself.
  for (unsigned i = 0; i != header.e_phnum; ++i) {
    ElfW(Phdr) segment;
    if (!read(header.e_phoff + i * sizeof segment, segment))
      return true;
    if (segment.p_type == PT_LOAD &&
        (segment.p_offset > size || segment.p_filesz > size - segment.p_offset))
      return true;
  }
  return false;
}

/// Never closed: operators, tables and thread-locals point into it.
static void *open(const char *library) {
  std::string name = library;
  if (isTruncated(library))
    throw Error(name + ": cannot load the library: the file is truncated");
  if (void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL))
    return handle;
  std::string reason = dlerror();
  if (reason.starts_with(name + ": "))
    reason.erase(0, name.size() + 2);
  throw Error(name + ": cannot load the library: " + reason);
}

std::unique_ptr<Backend> fsdp::loadBackend(const char *library,
                                           const BackendOptions &options) {
  auto *make = reinterpret_cast<Backend *(*)(const BackendOptions &)>(
      dlsym(open(library), "fsdpMakeBackend"));
  if (!make)
    throw Error(std::string(library) + " is not a device library");
  return std::unique_ptr<Backend>(make(options));
}

static std::vector<std::string> operatorNames() {
  std::vector<std::string> names;
  for (const auto &name : c10::Dispatcher::singleton().getAllOpNames())
    names.push_back(c10::toString(name));
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> fsdp::loadOperators(const char *library) {
  std::vector<std::string> before = operatorNames(), added;
  open(library);
  std::ranges::set_difference(operatorNames(), before,
                              std::back_inserter(added));
  if (added.empty())
    throw Error(std::string(library) + ": expected a library that registers "
                                       "new operators, found none in it");
  return added;
}
