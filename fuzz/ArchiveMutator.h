//===- ArchiveMutator.h - Damages what lies in a .pt2 archive ---*- C++ -*-===//
//
// Takes the archive apart, changes an entry (mostly JSON, by its structure),
// and puts it together with the right checksums.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_FUZZ_ARCHIVEMUTATOR_H
#define FSDP_FUZZ_ARCHIVEMUTATOR_H

#include "Random.h"

#include <string>

namespace fsdp::fuzz {

/// `file`: a whole archive, or anything else.
std::string mutateArchive(const std::string &file, Random &random,
                          size_t maxSize);

/// `file` with pieces of the program in `other`, if both are archives.
std::string spliceArchive(const std::string &file, const std::string &other,
                          Random &random);

} // namespace fsdp::fuzz

#endif // FSDP_FUZZ_ARCHIVEMUTATOR_H
