//===- ValuePositions.cpp - What moves elements ---------------------------===//
//
// Whatever selects, cuts or joins elements leaves their vectors as they are:
// the layout of the result is composed with each part. Positions of ranks pass
// through, so that each rank sees its own.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Values.h"

#include <algorithm>
#include <tuple>

namespace fsdp::symbolic {

static Number getNumber(const Part &part) {
  Key key("layout", part.position, part.index);
  for (const Part::Mode &mode : part)
    key.add(mode.size).add(mode.weight).add(mode.stride);
  return key.number();
}

Content Values::select(const Part &layout, const Content &content) {
  Content result;
  for (const Part &part : content.parts)
    if (!compose(layout, part, Ranks::ofRanks, result))
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
      if (!(mode.weight & Ranks::ofRanks))
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
    if (!compose(range, whole.parts[part], Ranks::ofRanks, result))
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
      isDone = isDone && compose(part, inner, Ranks::ofRanks, result);
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
      isDone = isDone && compose(cut, part, Ranks::ofRanks, result);
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
    isDone =
        isDone && isSame &&
        compose(whole, part, Ranks::ofRanks & ~ranks.getBits(axes), result);
  }
  for (Part &part : result.parts)
    part.axes &= ~axes;
  if (isDone && isSame)
    return unpack(result);
  return unknown(Key("gather", getNumber(piece), axes, size).number(), weight,
                 isSame ? fewPieces
                        : "a gather of what all ranks know in the same way");
}

} // namespace fsdp::symbolic
