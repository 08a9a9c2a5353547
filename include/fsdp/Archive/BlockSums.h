//===- BlockSums.h - What the blocks of a file add up to --------*- C++ -*-===//
//
// A checksum of each block of a file, so that who reads a part of it checks
// that part alone.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_ARCHIVE_BLOCKSUMS_H
#define FSDP_ARCHIVE_BLOCKSUMS_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::archive {

/// The xxHash3-64 of some bytes.
uint64_t checksum(std::string_view bytes);

/// 16 digits in hexadecimal.
std::string spellChecksum(uint64_t sum);

struct BlockSums {
  /// Of a block; the last one may be shorter.
  static constexpr uint64_t blockBytes = uint64_t{1} << 20;

  uint64_t bytes = 0; ///< Of the file.
  std::vector<uint64_t> sums;

  /// Of a file that consists of these pieces.
  static BlockSums of(const std::vector<std::string_view> &pieces);
};

} // namespace fsdp::archive

#endif // FSDP_ARCHIVE_BLOCKSUMS_H
