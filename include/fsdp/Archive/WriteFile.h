//===- WriteFile.h - What commands write, and where -------------*- C++ -*-===//
//
// The one way in which files are written. A reader of a regular file sees what
// was there before or all of the new content, also after a signal or a power
// failure: the content is written under another name in the same folder,
// synchronised, renamed, and the folder synchronised, while signals wait.
// Symbolic links are followed and stay. A device or a pipe is written to and
// never replaced, and `-` is the standard output.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_WRITEFILE_H
#define FSDP_ARCHIVE_WRITEFILE_H

#include "fsdp/Archive/Expected.h"

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::archive {

/// A file that a command reads or writes, and the option that names it.
struct NamedPath {
  std::string option, path;
};

/// Why one of `outputs` can't be written, before any work is done: it is also
/// read or written under another option, by whatever path or link; or it is a
/// folder, or where nothing can be made. A character device may be named
/// twice.
std::optional<Error> checkOutputs(const std::vector<NamedPath> &outputs,
                                  const std::vector<NamedPath> &inputs);

/// Writes the pieces one after another; returns the number of bytes. Where it
/// fails, a regular file at `path` is untouched and nothing is left behind.
Expected<uint64_t> writeFile(const std::string &path,
                             const std::vector<std::string_view> &pieces);

/// The same of pieces that are made one after the other, `bytes` in all; each
/// is valid until the next one is asked for, and an empty one is the end.
using NextPiece = std::function<Expected<std::string_view>()>;
Expected<uint64_t> writeFile(const std::string &path, uint64_t bytes,
                             const NextPiece &next);

/// Signals wait for this thread while it exists. A thread that is started
/// meanwhile never gets any.
class SignalsBlocked {
public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked &) = delete;
  SignalsBlocked &operator=(const SignalsBlocked &) = delete;

private:
  sigset_t before;
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_WRITEFILE_H
