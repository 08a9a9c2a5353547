//===- FewDescriptors.h - A process with few of them ------------*- C++ -*-===//

#ifndef FSDP_TEST_UNIT_ARCHIVE_FEWDESCRIPTORS_H
#define FSDP_TEST_UNIT_ARCHIVE_FEWDESCRIPTORS_H

#include <sys/resource.h>

namespace fsdp::archive::test {

/// As `ulimit -n`, while it exists.
class FewDescriptors {
public:
  explicit FewDescriptors(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before);
    rlimit few = before;
    few.rlim_cur = most;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  FewDescriptors(const FewDescriptors &) = delete;
  FewDescriptors &operator=(const FewDescriptors &) = delete;
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before); }

private:
  rlimit before;
};

} // namespace fsdp::archive::test

#endif // FSDP_TEST_UNIT_ARCHIVE_FEWDESCRIPTORS_H
