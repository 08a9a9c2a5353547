//===- Values.cpp - Numbers that stand for values -------------------------===//

#include "fsdp/Symbolic/Values.h"

#include "fsdp/PlanFile/PlanFile.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <xxhash.h>

namespace fsdp::symbolic {

using planfile::getItemSize;

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

/// The type of the zeros that have this number, if they are zeros.
static bool isZeroNumber(Number number) {
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

//===----------------------------------------------------------------------===//
// Positions
//===----------------------------------------------------------------------===//

/// Positions of ranks are those of the result.
static constexpr uint64_t passing = ~Ranks::elements;

static Number getNumber(const Part &part) {
  Key key("layout", part.position, part.index);
  for (const Part::Mode &mode : part)
    key.add(mode.size).add(mode.weight).add(mode.stride);
  return key.number();
}

Content Values::select(const Part &layout, const Content &content) {
  Content result;
  for (const Part &part : content.parts)
    if (!compose(layout, part, passing, result))
      return unknown(
          Key("select", symbolic::getNumber(layout), getNumber(content))
              .number(),
          layout.getNumel(), fewPieces);
  return result;
}

Content Values::slice(const Content &content, uint64_t begin, uint64_t end) {
  if (begin >= end)
    return {};
  return select(Part::range(end - begin, begin), content);
}

Slices::Slices(Values &values, const Content &whole)
    : values(values), whole(whole) {
  for (size_t i = 0; i != whole.parts.size(); ++i) {
    const Part &part = whole.parts[i];
    uint64_t begin = part.position & Ranks::elements, end = begin + 1;
    for (const Part::Mode &mode : part)
      if (!(mode.weight & passing))
        end += (mode.size - 1) * mode.weight;
    entries.push_back({begin, end, i});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry &a, const Entry &b) {
    return std::tie(a.begin, a.part) < std::tie(b.begin, b.part);
  });
  for (size_t i = 1; i < entries.size(); ++i)
    entries[i].furthest =
        std::max(entries[i].furthest, entries[i - 1].furthest);
}

Content Slices::operator()(uint64_t begin, uint64_t end) const {
  if (begin >= end)
    return {};
  auto entry =
      std::partition_point(entries.begin(), entries.end(),
                           [&](const Entry &e) { return e.begin < end; });
  std::vector<size_t> near;
  while (entry != entries.begin() && (--entry)->furthest > begin)
    near.push_back(entry->part);
  std::sort(near.begin(), near.end());
  Part range = Part::range(end - begin, begin);
  Content result;
  for (size_t part : near)
    if (!compose(range, whole.parts[part], passing, result))
      return values.slice(whole, begin, end); // which says what is not known
  return result;
}

void Values::place(Content &target, const Content &content, uint64_t at) {
  for (Part part : content.parts) {
    part.position += at;
    target.parts.push_back(part);
  }
}

bool Values::isWhole(const Content &content, uint64_t numel) const {
  auto count = [&](uint64_t size, uint64_t axes) {
    for (unsigned axis = 0; axis != ranks.getNumAxes(); ++axis)
      if (!(axes >> axis & 1))
        size *= ranks.getSize(axis);
    return static_cast<int64_t>(size);
  };
  int64_t sum = 0;
  for (const Part &part : content.parts)
    sum += part.sign * count(part.getNumel(), part.axes);
  return sum == count(numel, 0);
}

Content Values::pack(const Content &content, uint64_t size) {
  bool isOne = content.parts.size() == 1 && content.parts[0].isRange() &&
               content.parts[0].position == 0;
  bool isCut = std::any_of(content.parts.begin(), content.parts.end(),
                           [](const Part &part) { return part.axes != 0; });
  if (isOne || isCut || isZero(content))
    return content;
  Number base = Key("pack", getNumber(content), size).number();
  if (isRecording)
    note(base, "the vector", content);
  packs.try_emplace(base, Pack{content, size});
  return Content::vector(base, size, getSame(content));
}

Content Values::unpack(Content content) {
  auto isPacked = [&](const Part &part) {
    return part.axes == 0 && packs.count(part.base) != 0;
  };
  if (packs.empty() ||
      std::none_of(content.parts.begin(), content.parts.end(), isPacked))
    return content;
  Content result;
  bool isDone = true;
  for (const Part &part : content.parts) {
    if (!isPacked(part)) {
      result.parts.push_back(part);
      continue;
    }
    for (const Part &inner : unpack(packs.at(part.base).content).parts)
      isDone = isDone && compose(part, inner, passing, result);
  }
  if (isDone)
    return result;
  return unknown(Key("unpack", getNumber(content)).number(),
                 content.parts.front().getNumel(), fewPieces);
}

Content Values::scatter(const Content &whole, uint64_t axes, uint64_t size) {
  if (isZero(whole))
    return slice(whole, 0, size);
  // Position and ranks, the last axis fastest, to places in so many columns.
  bool isDone = true, isSame = true;
  uint64_t numel = size;
  auto getCut = [&](uint64_t columns) {
    Part cut = Part::range(columns);
    numel = columns;
    for (unsigned axis = ranks.getNumAxes(); axis-- != 0;)
      if (axes >> axis & 1) {
        isDone &= cut.add({ranks.getSize(axis), ranks.getWeight(axis), numel});
        numel *= ranks.getSize(axis);
      }
    cut.axes = axes;
    return cut;
  };
  for (const Part &part : whole.parts)
    isSame &= (part.axes & axes) == 0;
  Part cut = getCut(size);
  auto cutAll = [&](const Content &content, Content &result) {
    for (const Part &part : content.parts)
      isDone = isDone && compose(cut, part, passing, result);
  };
  // Vectors beside each other, each cut as it would be alone.
  auto isBeside = [&](Part part) {
    Part alone = getCut(part.count ? part.modes[0].size : 1);
    alone.position = part.position;
    return alone.isAt(part);
  };
  Content result;
  if (isSame && isDone)
    cutAll(whole, result);
  bool areBeside =
      isDone && result.parts.size() == whole.parts.size() &&
      std::all_of(result.parts.begin(), result.parts.end(), isBeside);
  if (isSame && !areBeside) {
    isDone = true;
    result = {};
    cut = getCut(size);
    cutAll(pack(unpack(whole), numel), result);
  }
  if (isSame && isDone)
    return result;
  return unknown(Key("scatter", getNumber(whole), axes, size).number(), size,
                 isSame ? fewPieces : "a piece of what is not a piece already");
}

Content Values::gather(const Content &piece, uint64_t axes, uint64_t size) {
  Part whole = Part::range(size);
  uint64_t weight = size;
  bool isDone = true, isSame = true;
  for (unsigned axis = ranks.getNumAxes(); axis-- != 0;)
    if (axes >> axis & 1) {
      isDone &= whole.add({ranks.getSize(axis), weight, ranks.getWeight(axis)});
      weight *= ranks.getSize(axis);
    }
  Content result;
  for (Part part : piece.parts) {
    isSame &= (axes & ~part.same) == 0;
    for (unsigned axis = 0; axis != ranks.getNumAxes(); ++axis)
      if ((axes & ~part.axes) >> axis & 1)
        isDone &= part.add({ranks.getSize(axis), ranks.getWeight(axis), 0});
    part.axes |= axes;
    isDone = isDone && isSame &&
             compose(whole, part, passing & ~ranks.getBits(axes), result);
  }
  for (Part &part : result.parts)
    part.axes &= ~axes;
  if (isDone && isSame)
    return unpack(result);
  return unknown(Key("gather", getNumber(piece), axes, size).number(), weight,
                 isSame ? fewPieces
                        : "a gather of what all ranks know in the same way");
}

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

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
      compose(part, vector, passing, result);
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
    uint64_t high = part.position & passing, low = part.position & ~passing;
    bool isPossible = isNarrower || low % ratio == 0;
    next.position = high + (isNarrower ? low * ratio : low / ratio);
    // The elements that are one, or of which one is made.
    uint64_t inner = isUniform ? 0 : 1;
    if (isNarrower) {
      next.index = part.index * ratio;
      isPossible &= next.add({ratio, 1, inner});
    } else {
      next.index = part.index / ratio;
      isPossible &= part.index % ratio == 0;
    }
    bool isFirst = !isNarrower && ratio != 1;
    for (Part::Mode mode : part) {
      if (mode.weight & passing) {
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
    if (!isPossible || isFirst)
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
    if (isRecording) {
      std::string words = kind == ReduceKind::Sum   ? "the sum along "
                          : kind == ReduceKind::Max ? "the largest along "
                                                    : "the first along ";
      for (unsigned axis = 0, count = 0; axis != ranks.getNumAxes(); ++axis)
        if (total.axes >> axis & 1)
          words += (count++ ? " and axis " : "axis ") + std::to_string(axis) +
                   " (" + std::to_string(ranks.getSize(axis)) + " ranks)";
      note(part.base,
           words + " in " + planfile::EnumNameDType(total.dtype) +
               ", divided by " + spell(total.divisors.pre) + " before and " +
               spell(total.divisors.post) + " after, of",
           {total.of});
    }
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

Content Values::unknown(Number base, uint64_t size, std::string_view reason) {
  std::string &text = unknowns[base];
  if (text.empty())
    text = (maker + " needs ").append(reason);
  return Content::vector(base, size);
}

//===----------------------------------------------------------------------===//
// Words
//===----------------------------------------------------------------------===//

void Values::note(Number base, std::string_view words,
                  std::vector<Number> operands) {
  if (!isRecording)
    return;
  auto [origin, isNew] = origins.try_emplace(base);
  if (isNew)
    origin->second = {std::string(words), std::move(operands)};
}

void Values::note(Number base, std::string_view words, const Content &content) {
  if (!isRecording)
    return;
  std::vector<Number> operands;
  for (const Part &part : content.parts)
    operands.push_back(part.base);
  note(base, words, std::move(operands));
}

void Values::describe(Number base, unsigned depth, std::string &text) const {
  auto found = origins.find(base);
  if (found == origins.end()) {
    text += isZeroNumber(base) ? "zeros" : "constants";
    return;
  }
  const Origin &origin = found->second;
  text += origin.words;
  if (origin.operands.empty())
    return;
  if (depth == 0) {
    text += " ...";
    return;
  }
  text += " (";
  for (size_t i = 0; i != origin.operands.size(); ++i) {
    if (i == 4) {
      text += ", ...";
      break;
    }
    text += i ? ", " : "";
    describe(origin.operands[i], depth - 1, text);
  }
  text += ")";
}

std::string Values::describe(const Content &content) const {
  std::vector<Number> bases;
  for (const Part &part : content.parts)
    if (std::find(bases.begin(), bases.end(), part.base) == bases.end())
      bases.push_back(part.base);
  std::string text;
  for (size_t i = 0; i != bases.size(); ++i) {
    if (i == 3) {
      text += " and others";
      break;
    }
    text += i ? ", beside " : "";
    describe(bases[i], 2, text);
  }
  return text.empty() ? "nothing" : text;
}

std::string Values::findUnknown(const Content &content) const {
  if (unknowns.empty())
    return {};
  std::vector<Number> work;
  for (const Part &part : content.parts)
    work.push_back(part.base);
  std::unordered_map<Number, bool> seen;
  while (!work.empty()) {
    Number base = work.back();
    work.pop_back();
    if (!seen.try_emplace(base).second)
      continue;
    if (auto found = unknowns.find(base); found != unknowns.end())
      return found->second;
    if (auto found = origins.find(base); found != origins.end())
      work.insert(work.end(), found->second.operands.begin(),
                  found->second.operands.end());
  }
  return {};
}

} // namespace fsdp::symbolic
