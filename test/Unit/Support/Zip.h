//===- Zip.h - Archives made by a test --------------------------*- C++ -*-===//

#ifndef FSDP_TEST_UNIT_SUPPORT_ZIP_H
#define FSDP_TEST_UNIT_SUPPORT_ZIP_H

#include <cstdint>
#include <string>
#include <vector>
#include <zlib.h>

namespace fsdp::test {

/// `value` as `count` bytes, little end first.
inline std::string littleEndian(uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i != count; ++i)
    bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

/// An entry of a zip file, with what may be wrong about it.
struct ZipEntry {
  std::string name, bytes;
  uint16_t method = 0;      // stored
  int64_t falseSize = -1;   // said instead of the right one, in the directory
  uint32_t damage = 0;      // added to the checksum
  uint16_t flags = 1 << 11; // names are UTF-8
};

/// Writes zip files as PyTorch does: sizes in the directory only, bytes at
/// multiples of 64.
inline std::string makeZip(const std::vector<ZipEntry> &entries) {
  std::string file, directory;
  for (const ZipEntry &entry : entries) {
    auto *data = reinterpret_cast<const Bytef *>(entry.bytes.data());
    uint32_t checksum = crc32(0, data, entry.bytes.size()) + entry.damage;
    uint64_t size = entry.falseSize < 0 ? entry.bytes.size() : entry.falseSize;
    size_t offset = file.size();
    size_t padding = -(offset + 30 + entry.name.size() + 4) % 64;
    std::string start = littleEndian(20, 2) + // version
                        littleEndian(entry.flags | 8, 2) +
                        littleEndian(entry.method, 2) + littleEndian(0, 4);
    file += "PK\3\4" + start + std::string(12, '\0') +
            littleEndian(entry.name.size(), 2) + littleEndian(4 + padding, 2) +
            entry.name + "FB" + littleEndian(padding, 2) +
            std::string(padding, 'Z') + entry.bytes;
    // The data descriptor, that flag 8 announces.
    file += "PK\7\10" + littleEndian(checksum, 4) + littleEndian(size, 4) +
            littleEndian(size, 4);
    directory += "PK\1\2" + littleEndian(20, 2) + start +
                 littleEndian(checksum, 4) + littleEndian(size, 4) +
                 littleEndian(size, 4) + littleEndian(entry.name.size(), 2) +
                 std::string(12, '\0') + littleEndian(offset, 4) + entry.name;
  }
  std::string end =
      std::string("PK\5\6\0\0\0\0", 8) + littleEndian(entries.size(), 2) +
      littleEndian(entries.size(), 2) + littleEndian(directory.size(), 4) +
      littleEndian(file.size(), 4) + std::string(2, '\0');
  return file + directory + end;
}

} // namespace fsdp::test

#endif // FSDP_TEST_UNIT_SUPPORT_ZIP_H
