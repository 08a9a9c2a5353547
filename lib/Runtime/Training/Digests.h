//===- Digests.h - Numbers for what is in files -----------------*- C++ -*-===//
//
// By which processes compare what they are given, and a training that goes on
// with what it was. Throw `fsdp::Error` where a file cannot be read.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_RUNTIME_TRAINING_DIGESTS_H
#define FSDP_LIB_RUNTIME_TRAINING_DIGESTS_H

#include <string>

namespace fsdp {

/// A number for the bytes of a file.
std::string digestFile(const std::string &path);
/// A number for what a file or a folder of tensors has where: not for the
/// values.
std::string digestTables(const std::string &path);
/// A number for the values, too: of a file, all; of a folder, up to 192 KiB of
/// each tensor, since it may be larger than a machine reads in minutes.
std::string digestContents(const std::string &path);
/// Tells files from others: their numbers in the file system, sizes and times.
/// Two machines that see the same file say the same.
std::string identifyFiles(const std::string &path);

} // namespace fsdp

#endif // FSDP_LIB_RUNTIME_TRAINING_DIGESTS_H
