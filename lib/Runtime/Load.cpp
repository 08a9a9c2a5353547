//===- Load.cpp - Libraries that are opened at run time -------------------===//
#include "fsdp/Runtime/Session.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <iterator>

#include <dlfcn.h>

using namespace fsdp;

/// Never closed: operators, tables and thread-locals point into it.
static void *open(const char *library) {
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw Error(std::string("cannot load ") + library + ": " + dlerror());
  return handle;
}

std::unique_ptr<Backend> fsdp::loadBackend(const char *library,
                                           unsigned ranks) {
  auto *make = reinterpret_cast<Backend *(*)(unsigned)>(
      dlsym(open(library), "fsdpMakeBackend"));
  if (!make)
    throw Error(std::string(library) + " is not a device library");
  return std::unique_ptr<Backend>(make(ranks));
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
  return added;
}
