//===- MappedFile.h - A file as read-only memory ----------------*- C++ -*-===//
//
// Weights of many gigabytes are looked at, never copied: a file is mapped
// read-only and everything else in this library points into the mapping. Who
// truncates a file while it is mapped kills the process with SIGBUS, as with
// any program that maps files.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_MAPPEDFILE_H
#define FSDP_ARCHIVE_MAPPEDFILE_H

#include "fsdp/Archive/Expected.h"

#include <string>
#include <string_view>

namespace fsdp::archive {

/// A whole regular file in memory, unmapped on destruction.
class MappedFile {
public:
  /// Maps `path`. Refuses whatever is not a regular file, and empty files.
  static Expected<MappedFile> open(const std::string &path);

  MappedFile(MappedFile &&other) noexcept;
  MappedFile &operator=(MappedFile &&other) noexcept;
  ~MappedFile();

  /// The content; valid, and at the same address, until the mapping (which
  /// may have been moved to another object) is destroyed.
  std::string_view bytes() const { return content; }

  /// The path as it was given to `open`.
  const std::string &path() const { return name; }

private:
  MappedFile(std::string name, std::string_view content)
      : name(std::move(name)), content(content) {}

  std::string name;
  std::string_view content;
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_MAPPEDFILE_H
