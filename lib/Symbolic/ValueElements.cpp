//===- ValueElements.cpp - What changes elements --------------------------===//
//
// Casts, other views of the same bytes, and sums over ranks: each element
// becomes another one at its place, so the vectors of parts get other numbers.
//
//===----------------------------------------------------------------------===//

#include "fsdp/PlanFile/PlanFile.h"
#include "fsdp/Symbolic/Values.h"

namespace fsdp::symbolic {

using planfile::getItemSize;

template <typename Change>
std::optional<Content> Values::change(const Content &content,
                                      const Change &change) {
  Content result;
  for (const Part &part : content.parts) {
    auto found = packs.find(part.base);
    if (found == packs.end()) {
      Part &next = result.parts.emplace_back(part);
      if (!change(next))
        return std::nullopt;
      continue;
    }
    // The elements of what is packed, at the same places.
    uint64_t size = found->second.size;
    std::optional<Content> inner =
        this->change(Content(found->second.content), change);
    if (!inner)
      return std::nullopt;
    for (const Part &vector : pack(*inner, size).parts)
      compose(part, vector, Ranks::ofRanks, result);
  }
  return result;
}

Content Values::cast(const Content &content, DType to) {
  return *change(content, [&](Part &part) {
    if (isZeroNumber(part.base)) {
      part.base = Key("uniform", 0, to).number();
      return true;
    }
    Number from = part.base;
    part.base = Key("cast", from, to).number();
    if (auto found = casts.find(part.base); found != casts.end())
      part.base = found->second;
    else if (isRecording)
      note(part.base,
           std::string("a cast to ") + planfile::EnumNameDType(to) + " of",
           {from});
    return true;
  });
}

/// The positions of a part whose elements become `ratio` narrower ones each, or
/// of which `ratio` each become a wider one, in steps of `inner`; false if some
/// of them would be split.
static bool rescale(const Part &part, Part &next, uint64_t ratio,
                    bool isNarrower, uint64_t inner) {
  uint64_t high = part.position & Ranks::ofRanks,
           low = part.position & Ranks::elements;
  bool isPossible = isNarrower || low % ratio == 0;
  next.position = high + (isNarrower ? low * ratio : low / ratio);
  // The elements that are one, or of which one is made.
  if (isNarrower) {
    next.index = part.index * ratio;
    isPossible &= next.add({ratio, 1, inner});
  } else {
    next.index = part.index / ratio;
    isPossible &= part.index % ratio == 0;
  }
  bool isFirst = !isNarrower && ratio != 1;
  for (Part::Mode mode : part) {
    if (mode.weight & Ranks::ofRanks) {
      // Of another rank, the same element of another vector index.
      isPossible &= isNarrower || mode.stride % ratio == 0;
      mode.stride = isNarrower ? mode.stride * ratio : mode.stride / ratio;
    } else if (isFirst) {
      isPossible &=
          mode.weight == 1 && mode.stride == inner && mode.size % ratio == 0;
      mode.size /= ratio;
      isFirst = false;
    } else if (isNarrower) {
      mode.weight *= ratio;
      mode.stride *= ratio;
    } else {
      isPossible &= mode.weight % ratio == 0 && mode.stride % ratio == 0;
      mode.weight /= ratio;
      mode.stride /= ratio;
    }
    isPossible = isPossible && next.add(mode);
  }
  return isPossible && !isFirst;
}

std::optional<Content> Values::reinterpret(const Content &content, DType from,
                                           DType to) {
  uint64_t own = getItemSize(from), other = getItemSize(to);
  bool isNarrower = other <= own;
  uint64_t ratio = isNarrower ? own / other : other / own;
  if ((isNarrower ? own % other : other % own) != 0)
    return std::nullopt;
  Content result;
  for (const Part &part : content.parts) {
    Part next;
    next.base = Key("bits", part.base, to, own).number();
    next.same = part.same;
    next.axes = part.axes;
    next.sign = part.sign;
    bool isUniform = isZeroNumber(part.base);
    if (isUniform)
      next.base = Key("uniform", 0, to).number();
    if (!rescale(part, next, ratio, isNarrower, isUniform ? 0 : 1))
      return std::nullopt;
    // There and back again is where it was.
    if (auto found = bits.find(part.base); found != bits.end() &&
                                           found->second.dtype == to &&
                                           found->second.ratio == ratio)
      next.base = found->second.of;
    else if (!isUniform)
      bits.try_emplace(next.base, Bits{part.base, from, ratio});
    note(next.base, "the bytes of", {part.base});
    result.parts.push_back(next);
  }
  return result;
}

/// 4 for 4.0, 2.5 for 2.5.
static std::string spell(double number) {
  std::string text = std::to_string(number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.')
    text.pop_back();
  return text;
}

/// In words, what the sum is of a vector.
std::string Values::describe(const Sum &total) const {
  std::string words = total.kind == ReduceKind::Sum   ? "the sum along "
                      : total.kind == ReduceKind::Max ? "the largest along "
                                                      : "the first along ";
  for (unsigned axis = 0, count = 0; axis != ranks.getNumAxes(); ++axis)
    if (total.axes >> axis & 1)
      words += (count++ ? " and axis " : "axis ") + std::to_string(axis) +
               " (" + std::to_string(ranks.getSize(axis)) + " ranks)";
  return words + " in " + planfile::EnumNameDType(total.dtype) +
         ", divided by " + spell(total.divisors.pre) + " before and " +
         spell(total.divisors.post) + " after, of";
}

Content Values::sum(const Content &content, uint64_t axes, Divisors divisors,
                    DType dtype, uint64_t size, ReduceKind kind) {
  std::string_view name = planfile::EnumNameReduceKind(kind);
  auto result = change(content, [&](Part &part) {
    if (part.axes & axes)
      return false;
    part.same |= axes;
    if (isZeroNumber(part.base)) {
      if (kind == ReduceKind::First)
        return true;
      part.base = Key("uniform", 0, dtype).number();
      return true;
    }
    Sum total{part.base, axes, divisors, dtype, kind};
    // A sum of sums along other axes is one sum, if nothing is divided between
    // them.
    if (auto found = sums.find(part.base); found != sums.end()) {
      const Sum &inner = found->second;
      if (inner.kind == kind && inner.dtype == dtype &&
          (inner.axes & axes) == 0 && inner.divisors.post == 1 &&
          divisors.pre == 1) {
        total = inner;
        total.axes |= axes;
        total.divisors.post = divisors.post;
      }
    }
    part.base = Key("reduce", hashText(name), total.of, total.axes,
                    hashDouble(total.divisors.pre),
                    hashDouble(total.divisors.post), total.dtype)
                    .number();
    sums.try_emplace(part.base, total);
    if (isRecording)
      note(part.base, describe(total), {total.of});
    return true;
  });
  for (const Part &part : content.parts)
    if (part.axes & axes)
      result.reset();
  if (result)
    return *result;
  return unknown(Key("reduction of pieces", hashText(name), getNumber(content),
                     axes, hashDouble(divisors.pre), hashDouble(divisors.post),
                     dtype)
                     .number(),
                 size, "a sum of what is not cut along its own axes");
}

} // namespace fsdp::symbolic
