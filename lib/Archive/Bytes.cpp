//===- Bytes.cpp - Numbers of bytes as people write them ------------------===//

#include "fsdp/Archive/Bytes.h"

#include <charconv>
#include <limits>

/// The bytes of a unit; 0 if there is none of that name.
static int64_t getUnit(std::string_view name) {
  constexpr std::pair<std::string_view, int64_t> units[] = {
      {"", 1},
      {"B", 1},
      {"KiB", int64_t(1) << 10},
      {"MiB", int64_t(1) << 20},
      {"GiB", int64_t(1) << 30},
      {"KB", 1'000},
      {"MB", 1'000'000},
      {"GB", 1'000'000'000}};
  for (auto [unit, bytes] : units)
    if (unit == name)
      return bytes;
  return 0;
}

std::optional<int64_t> fsdp::parseBytes(std::string_view text) {
  const char *place = text.data(), *end = place + text.size();
  int64_t whole = 0;
  auto read = std::from_chars(place, end, whole);
  if (read.ec != std::errc() || whole < 0)
    return std::nullopt;
  place = read.ptr;
  int64_t parts = 0, scale = 1; // the digits after the point
  bool hasPoint = place != end && *place == '.';
  if (hasPoint)
    for (++place; place != end && *place >= '0' && *place <= '9'; ++place)
      if (scale < 1'000'000'000) {
        parts = parts * 10 + (*place - '0');
        scale *= 10;
      }
  while (place != end && *place == ' ')
    ++place;
  int64_t unit = getUnit(text.substr(static_cast<size_t>(place - text.data())));
  if (unit == 0 || (hasPoint && (scale == 1 || unit == 1)) ||
      whole > (std::numeric_limits<int64_t>::max() - unit) / unit)
    return std::nullopt;
  return whole * unit + parts * unit / scale;
}
