//===- Content.cpp - What a tensor holds, element by element --------------===//

#include "fsdp/Symbolic/Content.h"

#include <algorithm>
#include <xxhash.h>

namespace fsdp::symbolic {

//===----------------------------------------------------------------------===//
// Ranks
//===----------------------------------------------------------------------===//

std::optional<Ranks> Ranks::get(const std::vector<uint64_t> &sizes) {
  Ranks ranks;
  unsigned shift = elementBits;
  for (uint64_t size : sizes) {
    // One bit more than is needed: modes of two axes never look like one.
    unsigned bits = 1;
    for (uint64_t rest = size; rest > 1; rest >>= 1)
      ++bits;
    if (shift + bits > 62)
      return std::nullopt;
    ranks.sizes.push_back(size);
    ranks.shifts.push_back(shift);
    shift += bits;
  }
  ranks.shifts.push_back(shift);
  return ranks;
}

uint64_t Ranks::getBits(uint64_t axes) const {
  uint64_t bits = 0;
  for (unsigned axis = 0; axis != sizes.size(); ++axis)
    if (axes >> axis & 1)
      bits |= (uint64_t(1) << shifts[axis + 1]) - (uint64_t(1) << shifts[axis]);
  return bits;
}

//===----------------------------------------------------------------------===//
// Parts
//===----------------------------------------------------------------------===//

Part Part::range(uint64_t size, uint64_t index) {
  Part part;
  part.index = index;
  part.add({size, 1, 1});
  return part;
}

bool Part::add(Mode mode) {
  if (mode.size == 1)
    return true;
  size_t at = count;
  while (at != 0 && modes[at - 1].weight > mode.weight)
    --at;
  auto continues = [](const Mode &low, const Mode &high) {
    return high.weight == low.weight * low.size &&
           high.stride == low.stride * low.size;
  };
  if (at != 0 && continues(modes[at - 1], mode)) {
    modes[at - 1].size *= mode.size;
    --at;
  } else {
    if (count == maxModes)
      return false;
    std::copy_backward(modes.begin() + at, modes.begin() + count,
                       modes.begin() + count + 1);
    modes[at] = mode;
    ++count;
  }
  if (at + 1 != count && continues(modes[at], modes[at + 1])) {
    modes[at].size *= modes[at + 1].size;
    std::copy(modes.begin() + at + 2, modes.begin() + count,
              modes.begin() + at + 1);
    --count;
  }
  return true;
}

std::optional<Part> Part::layout(size_t rank, const int64_t *sizes,
                                 const int64_t *strides) {
  Part part;
  uint64_t weight = 1;
  for (size_t i = rank; i-- != 0;) {
    auto size = static_cast<uint64_t>(sizes[i]);
    if (!part.add({size, weight, static_cast<uint64_t>(strides[i])}))
      return std::nullopt;
    weight *= size;
  }
  return part;
}

std::optional<Part> Part::invert() const {
  Part inverse;
  inverse.position = index;
  inverse.index = position;
  for (const Mode &mode : *this)
    if (mode.stride == 0 || !inverse.add({mode.size, mode.stride, mode.weight}))
      return std::nullopt;
  // Each digit reaches farther than all below it together.
  uint64_t reach = 0;
  for (const Mode &mode : inverse) {
    if (mode.weight <= reach)
      return std::nullopt;
    reach += (mode.size - 1) * mode.weight;
  }
  return inverse;
}

uint64_t Part::getNumel() const {
  uint64_t numel = 1;
  for (const Mode &mode : *this)
    numel *= mode.size;
  return numel;
}

bool Part::isAt(const Part &other) const {
  return position == other.position && index == other.index &&
         axes == other.axes && count == other.count &&
         std::equal(begin(), end(), other.begin(),
                    [](const Mode &left, const Mode &right) {
                      return left.size == right.size &&
                             left.weight == right.weight &&
                             left.stride == right.stride;
                    });
}

Content Content::vector(Number base, uint64_t size, uint64_t same) {
  Content content;
  if (size == 0)
    return content;
  Part &part = content.parts.emplace_back(Part::range(size));
  part.base = base;
  part.same = same;
  return content;
}

void Content::add(const Content &other) {
  for (const Part &part : other.parts) {
    auto opposite =
        std::find_if(parts.begin(), parts.end(), [&](const Part &own) {
          return own.sign == -part.sign && own.base == part.base &&
                 own.isAt(part);
        });
    if (opposite == parts.end())
      parts.push_back(part);
    else
      parts.erase(opposite);
  }
}

//===----------------------------------------------------------------------===//
// Composition
//===----------------------------------------------------------------------===//

namespace {

/// Looks for all digits of two boxes that lead to the same place, from the
/// greatest step down. What one box can not say is said by several.
class Composer {
public:
  Composer(const Part &first, const Part &second, uint64_t passing,
           Content &result)
      : result(result), made(second) {
    made.count = 0;
    made.sign *= first.sign;
    made.axes |= first.axes;
    for (const Part::Mode &mode : first)
      if (mode.stride == 0)
        isTooMuch |= !made.add({mode.size, mode.weight, 0});
      else
        own.insert({mode.size, mode.stride, mode.weight});
    for (const Part::Mode &mode : second)
      if (mode.weight & passing)
        isTooMuch |= !made.add(mode);
      else
        other.insert({mode.size, mode.weight, mode.stride});
    position = first.position + (second.position & passing);
    distance = static_cast<int64_t>(first.index) -
               static_cast<int64_t>(second.position & ~passing);
  }

  bool run() {
    if (!isTooMuch)
      search(own, other, distance, position, made.index);
    return !isTooMuch;
  }

private:
  /// Steps of `place`; `effect` is what else a step does.
  struct Step {
    uint64_t size, place, effect;
  };
  /// Steps from the greatest down, in an array of someone else.
  struct Steps {
    const Step *first, *last;
    bool isEmpty() const { return first == last; }
    uint64_t place() const { return isEmpty() ? 0 : first->place; }
    Steps rest() const { return {first + 1, last}; }
    int64_t reach() const {
      uint64_t sum = 0;
      for (const Step *step = first; step != last; ++step)
        sum += (step->size - 1) * step->place;
      return static_cast<int64_t>(sum);
    }
    /// Whether the first step goes past `place`, and can be cut there.
    bool isCut(uint64_t at) const {
      return !isEmpty() && at % place() == 0 && first->size > at / place();
    }
  };
  struct StepList {
    std::array<Step, 2 * Part::maxModes> list;
    uint32_t count = 0;
    operator Steps() const { return {list.data(), list.data() + count}; }
    void insert(Step step) {
      uint32_t at = count++;
      for (; at != 0 && list[at - 1].place < step.place; --at)
        list[at] = list[at - 1];
      list[at] = step;
    }
  };
  static constexpr unsigned maxSearches = 1 << 14;

  static int64_t floorDiv(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && a < 0);
  }
  static int64_t ceilDiv(int64_t a, int64_t b) { return -floorDiv(-a, b); }

  /// From these steps on, of which the own ones start `distance` ahead.
  void search(Steps own, Steps other, int64_t distance, uint64_t position,
              uint64_t index) {
    if (distance > other.reach() || distance + own.reach() < 0)
      return;
    isTooMuch |= ++numSearches > maxSearches;
    if (isTooMuch)
      return;
    if (own.isEmpty() && other.isEmpty())
      return emit(position, index);
    uint64_t ownPlace = own.place(), otherPlace = other.place();
    if (ownPlace == otherPlace)
      return stepTogether(own, other, distance, position, index);
    if (ownPlace > otherPlace) {
      if (other.isCut(ownPlace))
        return cut(other, ownPlace,
                   [&](Steps steps, uint64_t place, uint64_t effect) {
                     search(own, steps, distance - static_cast<int64_t>(place),
                            position, index + effect);
                   });
      return stepThrough(own, distance, other.reach(), [&](int64_t digit) {
        search(own.rest(), other,
               distance + digit * static_cast<int64_t>(ownPlace),
               position + static_cast<uint64_t>(digit) * own.first->effect,
               index);
      });
    }
    if (own.isCut(otherPlace))
      return cut(own, otherPlace,
                 [&](Steps steps, uint64_t place, uint64_t effect) {
                   search(steps, other, distance + static_cast<int64_t>(place),
                          position + effect, index);
                 });
    stepThrough(other, -distance, own.reach(), [&](int64_t digit) {
      search(own, other.rest(),
             distance - digit * static_cast<int64_t>(otherPlace), position,
             index + static_cast<uint64_t>(digit) * other.first->effect);
    });
  }

  /// Both step alike: the digits differ by what lower ones make up for.
  void stepTogether(Steps own, Steps other, int64_t distance, uint64_t position,
                    uint64_t index) {
    auto place = static_cast<int64_t>(own.place());
    auto ownSize = static_cast<int64_t>(own.first->size),
         otherSize = static_cast<int64_t>(other.first->size);
    int64_t low = std::max(ceilDiv(distance - other.rest().reach(), place),
                           1 - ownSize),
            high = std::min(floorDiv(distance + own.rest().reach(), place),
                            otherSize - 1);
    for (int64_t ahead = low; ahead <= high && !isTooMuch; ++ahead) {
      int64_t begin = std::max<int64_t>(0, -ahead),
              end = std::min(ownSize, otherSize - ahead);
      if (begin >= end)
        continue;
      uint64_t ownEffect = own.first->effect, otherEffect = other.first->effect;
      digits[numDigits++] = {static_cast<uint64_t>(end - begin), ownEffect,
                             otherEffect};
      search(own.rest(), other.rest(), distance - ahead * place,
             position + static_cast<uint64_t>(begin) * ownEffect,
             index + static_cast<uint64_t>(begin + ahead) * otherEffect);
      --numDigits;
    }
  }

  /// One value of the first digit after the other, of those that lead from
  /// `distance` to [0, reach].
  template <typename Next>
  void stepThrough(Steps steps, int64_t distance, int64_t reach,
                   const Next &next) {
    auto place = static_cast<int64_t>(steps.place());
    int64_t low = std::max<int64_t>(
                ceilDiv(-distance - steps.rest().reach(), place), 0),
            high = std::min(floorDiv(reach - distance, place),
                            static_cast<int64_t>(steps.first->size) - 1);
    for (int64_t digit = low; digit <= high && !isTooMuch; ++digit)
      next(digit);
  }

  /// The first step as two, of which the upper one has this place; and what is
  /// left of it.
  template <typename Next>
  void cut(Steps steps, uint64_t place, const Next &next) {
    const Step &step = *steps.first;
    uint64_t inner = place / step.place, outer = step.size / inner,
             left = step.size % inner;
    auto with = [&](std::initializer_list<Step> added) {
      StepList list;
      for (Step one : added)
        list.insert(one);
      for (const Step *it = steps.first + 1; it != steps.last; ++it)
        list.insert(*it);
      return list;
    };
    next(with({{outer, place, step.effect * inner},
               {inner, step.place, step.effect}}),
         0, 0);
    if (left != 0)
      next(with({{left, step.place, step.effect}}), outer * place,
           outer * inner * step.effect);
  }

  void emit(uint64_t position, uint64_t index) {
    Part part = made;
    part.position = position;
    part.index = index;
    for (size_t i = 0; i != numDigits; ++i)
      isTooMuch |= !part.add(digits[i]);
    result.parts.push_back(part);
  }

  Content &result;
  Part made; // what all results have in common
  StepList own, other;
  uint64_t position;
  int64_t distance;
  std::array<Part::Mode, 4 * Part::maxModes> digits;
  size_t numDigits = 0;
  unsigned numSearches = 0;
  bool isTooMuch = false;
};

} // namespace

/// The greatest step of a part from its first place, or its first position; but
/// for steps of `bits`.
static uint64_t reachOf(const Part &part, uint64_t Part::Mode::*step,
                        uint64_t bits = 0) {
  uint64_t reach = 0;
  for (const Part::Mode &mode : part)
    if (!(mode.*step & bits))
      reach += (mode.size - 1) * mode.*step;
  return reach;
}

bool compose(const Part &first, const Part &second, uint64_t passing,
             Content &result) {
  // Most are a range on the one side or the other, with all of the other side
  // within.
  if (second.isRange() && second.axes == 0 && first.index >= second.position &&
      first.index + reachOf(first, &Part::Mode::stride) <
          second.position + second.getNumel()) {
    Part &part = result.parts.emplace_back(first);
    part.base = second.base;
    part.same = second.same;
    part.sign *= second.sign;
    part.index = second.index + (first.index - second.position);
    return true;
  }
  if (first.isRange() && second.axes == 0 && first.axes == 0 &&
      second.position >= first.index &&
      second.position + reachOf(second, &Part::Mode::weight) <
          first.index + first.getNumel()) {
    Part &part = result.parts.emplace_back(second);
    part.sign *= first.sign;
    part.position = first.position + (second.position - first.index);
    return true;
  }
  // A flat parameter has thousands of parts, most of them elsewhere.
  uint64_t begin = second.position & ~passing;
  if (first.index + reachOf(first, &Part::Mode::stride) < begin ||
      begin + reachOf(second, &Part::Mode::weight, passing) < first.index)
    return true;
  return Composer(first, second, passing, result).run();
}

//===----------------------------------------------------------------------===//
// Numbers
//===----------------------------------------------------------------------===//

namespace {

/// The field of the integers modulo a prime.
constexpr uint64_t prime = (uint64_t(1) << 61) - 1;

uint64_t reduce(uint64_t value) {
  value = (value & prime) + (value >> 61);
  return value >= prime ? value - prime : value;
}
uint64_t plus(uint64_t a, uint64_t b) { return reduce(a + b); }
uint64_t times(uint64_t a, uint64_t b) {
  auto product = static_cast<unsigned __int128>(a) * b;
  return reduce((static_cast<uint64_t>(product) & prime) +
                static_cast<uint64_t>(product >> 61));
}
uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent; exponent >>= 1, base = times(base, base))
    if (exponent & 1)
      result = times(result, base);
  return result;
}
/// 1 + q + ... + q^(n - 1)
uint64_t series(uint64_t q, uint64_t n) {
  uint64_t sum = 0, high = 1; // of the bits of n so far, and q to that power
  for (unsigned bit = 64; bit-- != 0;) {
    sum = times(sum, plus(1, high));
    high = times(high, high);
    if (n >> bit & 1) {
      sum = plus(times(sum, q), 1);
      high = times(high, q);
    }
  }
  return sum;
}

/// Where the polynomials are evaluated: positions and elements.
constexpr uint64_t atPosition = 0x0f3a51c96d87b2e5,
                   atIndex = 0x1b8e64d2093fa7c1;

} // namespace

Numbering::Numbering(const Ranks &ranks) : ranks(ranks) {
  for (unsigned axis = 0; axis != ranks.getNumAxes(); ++axis)
    shares.push_back(power(
        series(power(atPosition, ranks.getWeight(axis)), ranks.getSize(axis)),
        prime - 2));
}

/// The sum over a part of what each position and element stand for. What all
/// ranks have is what each of them has.
uint64_t Numbering::getShape(const Part &part) const {
  std::array<uint64_t, 3 + 3 * Part::maxModes> words;
  size_t count = 0;
  words[count++] = part.position;
  words[count++] = part.index;
  words[count++] = part.axes;
  for (const Part::Mode &mode : part) {
    words[count++] = mode.size;
    words[count++] = mode.weight;
    words[count++] = mode.stride;
  }
  auto [entry, isNew] =
      shapes.try_emplace(XXH3_64bits(words.data(), count * sizeof(uint64_t)));
  if (!isNew)
    return entry->second;
  uint64_t sum =
      times(power(atPosition, part.position), power(atIndex, part.index));
  for (const Part::Mode &mode : part)
    sum = times(sum, series(times(power(atPosition, mode.weight),
                                  power(atIndex, mode.stride)),
                            mode.size));
  for (unsigned axis = 0; axis != shares.size(); ++axis)
    if (part.axes >> axis & 1)
      sum = times(sum, shares[axis]);
  return entry->second = sum;
}

Number Numbering::operator()(const Content &content) const {
  uint64_t sum = 0;
  for (const Part &part : content.parts) {
    uint64_t term = times(reduce(part.base), getShape(part));
    sum = plus(sum, part.sign > 0 ? term : prime - term);
  }
  return XXH3_64bits(&sum, sizeof sum);
}

} // namespace fsdp::symbolic
