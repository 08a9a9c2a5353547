//===- FolderLock.h - A folder that one run writes to -----------*- C++ -*-===//
//
// A file `.lock` in the folder, created exclusively, which works on file
// systems of several machines, too. It says which process of which machine has
// made it. That of a process of this machine that has ended is taken over; of
// another machine, nobody can tell.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_FOLDERLOCK_H
#define FSDP_LIB_RUNTIME_TRAINING_FOLDERLOCK_H

#include <string>

namespace fsdp {

class FolderLock {
public:
  /// Throws if another run has it, or if it cannot be made.
  explicit FolderLock(const std::string &folder);
  ~FolderLock();
  FolderLock(const FolderLock &) = delete;
  FolderLock &operator=(const FolderLock &) = delete;

private:
  bool create();
  void takeOver();

  std::string path;
  int descriptor = -1;
};

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_FOLDERLOCK_H
