//===- Compare.cpp - What two models differ in ----------------------------===//

#include "Compare.h"

#include <cmath>
#include <cstring>
#include <limits>

using namespace fsdp;
using archive::DType;

/// What is in memory at a time.
static constexpr std::uint64_t partBytes = std::uint64_t{4} << 20;

template <typename T> static double load(const char *from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<double>(value);
}

/// Nothing for types that are no numbers of one kind.
static double toDouble(DType type, const char *from) {
  switch (type) {
  case DType::F64:
    return load<double>(from);
  case DType::F32:
    return load<float>(from);
  case DType::F16:
    return load<_Float16>(from);
  case DType::BF16: {
    char wide[4] = {0, 0, from[0], from[1]};
    return load<float>(wide);
  }
  case DType::I64:
    return load<std::int64_t>(from);
  case DType::I32:
    return load<std::int32_t>(from);
  case DType::I16:
    return load<std::int16_t>(from);
  case DType::I8:
    return load<std::int8_t>(from);
  case DType::U8:
  case DType::Bool:
    return load<std::uint8_t>(from);
  default:
    return std::numeric_limits<double>::quiet_NaN();
  }
}

archive::Expected<Difference>
fsdp::compare(const archive::TensorPieces &left,
              const archive::TensorPieces &right) {
  Difference result;
  std::uint64_t item = archive::getItemSize(left.dtype);
  std::string one, two;
  for (const archive::Box &part :
       archive::split(archive::Box::whole(left.shape), partBytes / item)) {
    one.resize(part.numel() * item);
    two.resize(one.size());
    if (auto error = archive::readBox(left, part, one.data()))
      return *error;
    if (auto error = archive::readBox(right, part, two.data()))
      return *error;
    result.elements += part.numel();
    if (one == two)
      continue;
    for (std::size_t at = 0; at != one.size(); at += item) {
      if (std::memcmp(&one[at], &two[at], item) == 0)
        continue;
      ++result.different;
      double value = toDouble(left.dtype, &one[at]);
      double most = std::abs(value - toDouble(left.dtype, &two[at]));
      // What cannot be compared is as different as can be.
      if (!(most <= result.most))
        result.most = std::isnan(most) ? HUGE_VAL : most;
    }
  }
  return result;
}
