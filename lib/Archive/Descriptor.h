//===- Descriptor.h - A file that is open -----------------------*- C++ -*-===//
#ifndef FSDP_LIB_ARCHIVE_DESCRIPTOR_H
#define FSDP_LIB_ARCHIVE_DESCRIPTOR_H

#include <cerrno>
#include <unistd.h>

namespace fsdp::archive {

/// The number of an open file, closed on destruction; below 0: of none.
struct Descriptor {
  explicit Descriptor(int number) : number(number) {}
  Descriptor(const Descriptor &) = delete;
  Descriptor &operator=(const Descriptor &) = delete;
  ~Descriptor() {
    int cause = errno; // which a caller may be about to spell
    if (number >= 0)
      ::close(number);
    errno = cause;
  }
  int number;
};

} // namespace fsdp::archive

#endif // FSDP_LIB_ARCHIVE_DESCRIPTOR_H
