//===- WriteFile.h - Files that appear whole or not at all ------*- C++ -*-===//
//
// A reader of `path` sees what was there before or all of the new content,
// also after a power failure: the content is written under another name in the
// same folder, synchronised, renamed, and the folder synchronised.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_WRITEFILE_H
#define FSDP_ARCHIVE_WRITEFILE_H

#include "fsdp/Archive/Expected.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::archive {

/// Writes the pieces one after another; returns the file's size in bytes.
/// Where it fails, what was at `path` is untouched and nothing is left behind.
Expected<uint64_t> writeFile(const std::string &path,
                             const std::vector<std::string_view> &pieces);

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_WRITEFILE_H
