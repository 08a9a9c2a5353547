//===- IndexMap.cpp - Layouts as functions of an index --------------------===//

#include "fsdp/Symbolic/IndexMap.h"

#include <algorithm>
#include <limits>

namespace fsdp::symbolic {

IndexMap IndexMap::range(uint64_t offset, uint64_t size) {
  IndexMap map;
  map.offset = offset;
  map.append(size, 1);
  return map;
}

std::optional<IndexMap> IndexMap::get(size_t rank, const int64_t *sizes,
                                      const int64_t *strides) {
  IndexMap map;
  for (size_t i = rank; i-- != 0;)
    if (!map.append(static_cast<uint64_t>(sizes[i]),
                    static_cast<uint64_t>(strides[i])))
      return std::nullopt;
  return map;
}

bool IndexMap::append(uint64_t size, uint64_t stride) {
  if (size == 1)
    return true;
  if (count != 0 && stride == modes[count - 1].size * modes[count - 1].stride) {
    modes[count - 1].size *= size;
    return true;
  }
  if (count == maxModes)
    return false;
  modes[count++] = {size, stride};
  return true;
}

bool IndexMap::operator==(const IndexMap &other) const {
  return offset == other.offset && count == other.count &&
         std::equal(begin(), end(), other.begin(),
                    [](const Mode &left, const Mode &right) {
                      return left.size == right.size &&
                             left.stride == right.stride;
                    });
}

PlaceMap PlaceMap::ofIndices(const IndexMap &map) {
  PlaceMap result;
  result.offset = map.getOffset();
  for (const IndexMap::Mode &mode : map)
    result.digits[result.count++] = {mode.size, mode.size, mode.stride};
  return result;
}

std::optional<PlaceMap> PlaceMap::invert(const IndexMap &map) {
  struct Step {
    uint64_t stride, size, index; // place, how often, running index
  };
  std::array<Step, IndexMap::maxModes> steps{};
  size_t numSteps = 0;
  uint64_t index = 1;
  for (const IndexMap::Mode &mode : map) {
    size_t at = numSteps++; // sorted by stride
    for (; at != 0 && steps[at - 1].stride > mode.stride; --at)
      steps[at] = steps[at - 1];
    steps[at] = {mode.stride, mode.size, index};
    index *= mode.size;
  }
  PlaceMap result;
  result.start = map.getOffset();
  uint64_t place = 1;
  for (size_t i = 0; i != numSteps; ++i) {
    const Step &step = steps[i];
    if (step.stride < place || step.stride % place != 0)
      return std::nullopt;
    // What lies between two elements is not an element.
    if (step.stride != place && i == 0)
      result.digits[result.count++] = {step.stride, 1, 0};
    uint64_t radix = step.size;
    if (i + 1 != numSteps) {
      uint64_t next = steps[i + 1].stride;
      if (next % step.stride != 0 || next / step.stride < step.size)
        return std::nullopt;
      radix = next / step.stride;
    }
    result.digits[result.count++] = {radix, step.size, step.index};
    place = step.stride * radix;
  }
  return result;
}

std::optional<IndexMap> PlaceMap::operator()(const IndexMap &first) const {
  if (first.getOffset() < start)
    return std::nullopt;
  // How far each digit goes, and where it starts.
  std::array<uint64_t, 2 * IndexMap::maxModes> reach{};
  uint64_t rest = first.getOffset() - start, shift = offset;
  for (uint32_t k = 0; k != count; ++k) {
    bool isLast = k + 1 == count;
    reach[k] = isLast ? rest : rest % digits[k].radix;
    shift += reach[k] * digits[k].stride;
    rest /= digits[k].radix;
  }
  if (count == 0 && rest != 0)
    return std::nullopt;

  IndexMap result = IndexMap().shifted(shift);
  for (auto [size, stride] : first) {
    if (stride == 0) {
      if (!result.append(size, 0))
        return std::nullopt;
      continue;
    }
    uint32_t k = 0;
    while (k + 1 < count && stride % digits[k].radix == 0)
      stride /= digits[k++].radix;
    for (uint64_t left = size; left > 1; ++k, stride = 1) {
      if (k >= count)
        return std::nullopt;
      const Digit &digit = digits[k];
      uint64_t here = left; // how many steps this digit takes
      if (k + 1 != count && digit.radix % stride == 0 &&
          digit.radix / stride < left)
        here = digit.radix / stride;
      if (left % here != 0 || here - 1 > digit.limit / stride ||
          !result.append(here, stride * digit.stride))
        return std::nullopt;
      reach[k] += (here - 1) * stride;
      left /= here;
      if (left == 1)
        break;
    }
  }
  for (uint32_t k = 0; k != count; ++k)
    if (reach[k] >= digits[k].limit)
      return std::nullopt;
  return result;
}

} // namespace fsdp::symbolic
