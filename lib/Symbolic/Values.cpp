//===- Values.cpp - Numbers that stand for values -------------------------===//
//
// The algebra. A vector v has a number; a content is a sum of parts, each of
// which says at which positions, and on which ranks, it steps through which
// vector. What is done to contents changes either the positions of parts or the
// numbers of their vectors:
//
//   positions (ValuePositions.cpp)         elements (ValueElements.cpp)
//   select, slice, place   compose          cast        #(cast, v, dtype)
//   scatter   a cut by the rank's digit     reinterpret #(bits, v, dtype)
//   gather    its inverse                   sum         #(reduce, v, axes, ...)
//   pack      #(pack, content)
//
// where # is the hash. The equations that hold beside those of functions:
//
//   gather(scatter(x)) = x                  unpack(pack(x)) = x
//   cast(0) = sum(0) = bits(0) = 0          bits(bits(x)) = x, there and back
//   f(pack(x)) = pack(f(x)) for whatever is done to each element alike
//   sum along A of (sum along B) = sum along A and B, with no division between
//   cast(v) = w where that is defined, as of a parameter that is stored in both
//
// Whatever has no equation is unknown: a vector with a number of its own.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <xxhash.h>

namespace fsdp::symbolic {

Number hashText(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

Number hashDouble(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

Key::Key(std::string_view name) { add(hashText(name)); }

void Key::fold() {
  words[0] = number();
  count = 1;
}

Number Key::number() const {
  return XXH3_64bits(words.data(), count * sizeof(uint64_t));
}

//===----------------------------------------------------------------------===//
// Equal elements
//===----------------------------------------------------------------------===//

static bool isFloat(DType dtype) {
  switch (dtype) {
  case DType::F16:
  case DType::BF16:
  case DType::F32:
  case DType::F64:
  case DType::C64:
  case DType::C128:
    return true;
  default:
    return false;
  }
}

uint64_t getUniformBits(int64_t value, DType dtype) {
  if (isFloat(dtype))
    return hashDouble(static_cast<double>(value));
  return dtype == DType::Bool ? value != 0 : static_cast<uint64_t>(value);
}

uint64_t getUniformBits(double value, DType dtype) {
  if (isFloat(dtype))
    return hashDouble(value);
  if (dtype == DType::Bool)
    return value != 0;
  // As a cast to an integer does it, where it is defined.
  bool fits = std::abs(value) < 9.2e18;
  return fits ? static_cast<uint64_t>(static_cast<int64_t>(value))
              : hashDouble(value);
}

static Content uniformOf(Number base, uint64_t size) {
  Content content;
  if (size == 0)
    return content;
  Part &part = content.parts.emplace_back();
  part.base = base;
  part.same = everywhere;
  part.add({size, 1, 0});
  return content;
}

Content Values::uniform(uint64_t bits, DType dtype, uint64_t size) {
  return uniformOf(Key("uniform", bits, dtype).number(), size);
}

bool Values::isZeroNumber(Number number) {
  static const auto zeros = [] {
    std::array<Number, static_cast<size_t>(DType::MAX) + 1> result{};
    for (size_t i = 0; i != result.size(); ++i)
      result[i] = Key("uniform", 0, i).number();
    return result;
  }();
  return std::find(zeros.begin(), zeros.end(), number) != zeros.end();
}

bool Values::isZero(const Content &content) {
  return std::all_of(content.parts.begin(), content.parts.end(),
                     [](const Part &part) { return isZeroNumber(part.base); });
}

uint64_t Values::getSame(const Content &content) {
  uint64_t same = everywhere;
  for (const Part &part : content.parts)
    same &= part.same & ~part.axes;
  return same;
}

Content Values::unknown(Number base, uint64_t size, std::string_view reason) {
  std::string &text = unknowns[base];
  if (text.empty())
    text = (maker + " needs ").append(reason);
  return Content::vector(base, size);
}

} // namespace fsdp::symbolic
