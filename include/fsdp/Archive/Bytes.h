//===- Bytes.h - Numbers of bytes as people read them -----------*- C++ -*-===//

#ifndef FSDP_ARCHIVE_BYTES_H
#define FSDP_ARCHIVE_BYTES_H

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

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

/// The bytes of "1048576", "1024KiB", "1.5 GiB" or "500 MB", as every option
/// and file of people has them; parts of a byte are dropped. Nothing for other
/// text, or for more bytes than 63 bits hold.
std::optional<int64_t> parseBytes(std::string_view text);

} // namespace fsdp

#endif // FSDP_ARCHIVE_BYTES_H
