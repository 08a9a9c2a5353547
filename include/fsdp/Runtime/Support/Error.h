//===- Error.h - The one exception of the runtime ---------------*- C++ -*-===//
//
// Everything that goes wrong in the runtime is thrown as `fsdp::Error`: one
// sentence for people, and the exit code of the command line that it belongs
// to. Exceptions of ATen are caught where they arise and thrown again as this.
//
//===----------------------------------------------------------------------===//
#ifndef FSDP_RUNTIME_SUPPORT_ERROR_H
#define FSDP_RUNTIME_SUPPORT_ERROR_H

#include "fsdp/Archive/Expected.h"

#include <stdexcept>
#include <string>

namespace fsdp {

enum class Failure : int {
  Rejected = 1,    ///< Usage, input or plan; nothing has been trained.
  CheckFailed = 2, ///< A comparison with a reference, or a digest.
  RankFailed = 3   ///< A rank stopped, or output was lost, after the first
                   ///< step began.
};

class Error : public std::runtime_error {
public:
  explicit Error(const std::string &sentence, Failure kind = Failure::Rejected)
      : std::runtime_error(sentence), failure(kind) {}
  /// What prevented a file from being read.
  explicit Error(const archive::Error &error, Failure kind = Failure::Rejected)
      : std::runtime_error(error.message), failure(kind),
        damaged(error.isDamage) {}

  Failure kind() const { return failure; }
  int exitCode() const { return static_cast<int>(failure); }
  /// A file is not what was written; see `archive::Error`.
  bool isDamage() const { return damaged; }

private:
  Failure failure;
  bool damaged = false;
};

} // namespace fsdp

#endif // FSDP_RUNTIME_SUPPORT_ERROR_H
