//===- Bytes.h - Numbers of bytes as people read them -----------*- C++ -*-===//

#ifndef FSDP_ARCHIVE_BYTES_H
#define FSDP_ARCHIVE_BYTES_H

#include <cstdint>
#include <cstdio>
#include <string>

namespace fsdp {

/// "18.12 KiB": the same in every report and rejection.
inline std::string spellBytes(uint64_t bytes) {
  const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  unsigned unit = 0;
  for (; value >= 1024 && unit != 4; ++unit)
    value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", value,
                units[unit]);
  return text;
}

} // namespace fsdp

#endif // FSDP_ARCHIVE_BYTES_H
