//===- Memory.cpp - Which value lies where --------------------------------===//

#include "fsdp/Symbolic/Memory.h"

#include "fsdp/Archive/PlanFile.h"

#include <algorithm>

namespace fsdp::symbolic {

using planfile::getItemSize;

void Clock::join(const Clock &other) {
  for (size_t i = 0; i != numStreams; ++i)
    (*this)[i] = std::max((*this)[i], other[i]);
}

Layout::Layout(std::vector<int64_t> givenSizes, std::vector<int64_t> given)
    : sizes(std::move(givenSizes)), strides(std::move(given)) {
  Key key("sizes");
  uint64_t last = 0;
  for (size_t i = 0; i != sizes.size(); ++i) {
    numel *= static_cast<uint64_t>(sizes[i]);
    last += static_cast<uint64_t>((sizes[i] - 1) * strides[i]);
    key.add(static_cast<uint64_t>(sizes[i]));
  }
  shape = key.number();
  if (numel == 0)
    return;
  extent = last + 1;
  map = IndexMap::get(sizes.size(), sizes.data(), strides.data());
  if (map)
    inverse = PlaceMap::invert(*map);
  isGapless = inverse && numel == extent;
}

uint64_t Window::end() const {
  return begin + layout->extent * getItemSize(dtype);
}

Number Window::operand(const Content &content) const {
  return Key("operand", content.number(), layout->shape, dtype).number();
}

Window Window::at(int64_t offset, const Layout &inner) const {
  Window window = *this;
  window.begin +=
      static_cast<uint64_t>(offset * static_cast<int64_t>(getItemSize(dtype)));
  window.layout = &inner;
  return window;
}

//===----------------------------------------------------------------------===//
// Order
//===----------------------------------------------------------------------===//

void Memory::report(const Window &window, Problem::Kind kind, uint64_t begin,
                    uint64_t end, const Segment *segment, Actor other) {
  if (problem)
    return;
  problem = {kind,
             window.buffer,
             std::max(begin, window.begin),
             std::min(end, window.end()),
             other,
             segment ? segment->root : planfile::none,
             window.root < writers.size() ? writers[window.root] : -1};
}

/// The first segment that ends behind `at`.
Memory::Segments::iterator Memory::find(Segments &part, uint64_t at) {
  auto found = part.upper_bound(at);
  if (found != part.begin() && std::prev(found)->second.end > at)
    --found;
  return found;
}

bool Memory::isDone(Actor other) const {
  return other.position <= clock[static_cast<size_t>(other.stream)] ||
         other.position == actor.position;
}

void Memory::checkRead(const Window &window) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  uint64_t at = window.begin, end = window.end();
  for (auto it = find(part, at); at < end; ++it) {
    if (it == part.end() || it->first > at)
      return report(window, Problem::Unwritten, at,
                    it == part.end() ? end : it->first, nullptr, {});
    Segment &segment = it->second;
    if (segment.root != window.root)
      return report(window, Problem::Stale, it->first, segment.end, &segment,
                    segment.writer);
    if (!isDone(segment.writer))
      return report(window, Problem::RaceToRead, it->first, segment.end,
                    &segment, segment.writer);
    int32_t &reader = segment.readers[static_cast<size_t>(actor.stream)];
    reader = std::max(reader, actor.position);
    at = segment.end;
  }
  checkLoss(window);
}

void Memory::checkWrite(const Window &window) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  uint64_t end = window.end();
  for (auto it = find(part, window.begin); it != part.end() && it->first < end;
       ++it) {
    const Segment &segment = it->second;
    auto check = [&](Actor other) {
      if (!isDone(other))
        report(window, Problem::RaceToWrite, it->first, segment.end, &segment,
               other);
    };
    for (size_t stream = 0; stream != numStreams; ++stream)
      check({segment.readers[stream], static_cast<Stream>(stream)});
    check(segment.writer);
  }
  checkLoss(window);
}

void Memory::checkLoss(const Window &window) {
  auto found = losses.find(window.root);
  if (problem || found == losses.end())
    return;
  const Loss &loss = found->second;
  problem = {Problem::Shared, window.buffer, loss.begin, loss.end,
             loss.to,         loss.root,     -1};
}

//===----------------------------------------------------------------------===//
// Content
//===----------------------------------------------------------------------===//

/// What `map` finds in a segment, counting elements from the byte `at`.
/// `layout` stands for a layout that has no map.
Content Memory::get(const Window &window, Segments::const_iterator segment,
                    uint64_t at, const std::optional<IndexMap> &map,
                    Number layout) {
  const Store &store = stores[segment->second.store];
  uint64_t shift = segment->second.shift + (at - segment->first);
  uint64_t itemSize = getItemSize(window.dtype);
  bool isElements = store.dtype == window.dtype && shift % itemSize == 0;
  if (isElements && store.content.isUniform && store.isGapless)
    return store.content;
  std::optional<IndexMap> places;
  if (isElements && map)
    places = map->shifted(shift / itemSize);
  if (places && store.inverse)
    if (auto index = (*store.inverse)(*places)) {
      if (store.content.isUniform)
        return store.content;
      if (auto found = PlaceMap::ofIndices(store.content.map)(*index))
        return {store.content.base, false, *found};
    }
  if (store.hasUnwrittenGaps)
    report(window, Problem::Unwritten, window.begin, window.end(), nullptr, {});
  if (places)
    return {store.bytes, false, *places};
  // The bytes as something else.
  return Values::vector(
      Key("bits", store.bytes, shift, window.dtype, layout).number(),
      window.layout->numel);
}

/// Bytes that have been checked, as elements.
Pieces Memory::getPieces(const Window &window, uint64_t begin, uint64_t end) {
  Pieces pieces;
  Segments &part = segments[static_cast<size_t>(window.space)];
  uint64_t itemSize = getItemSize(window.dtype);
  for (auto it = find(part, begin); it != part.end() && it->first < end; ++it) {
    uint64_t from = std::max(begin, it->first);
    uint64_t size = (std::min(end, it->second.end) - from) / itemSize;
    append(pieces,
           {size, get(window, it, from, IndexMap::range(0, size), size)});
  }
  return pieces;
}

Content Memory::read(const Window &window) {
  if (window.isEmpty())
    return Values::zero(window.dtype);
  checkRead(window);
  if (problem)
    return {};
  const Layout &layout = *window.layout;
  auto it = find(segments[static_cast<size_t>(window.space)], window.begin);
  Number key = layout.map ? 0 : Key("strides", layout.shape).number();
  if (!layout.map)
    for (int64_t stride : layout.strides)
      key = Key("strides", key, stride).number();
  if (it->second.end >= window.end())
    return get(window, it, window.begin, layout.map, key);
  Content all = join(getPieces(window, window.begin, window.end()));
  if (all.isUniform)
    return all;
  if (layout.map)
    if (auto map = PlaceMap::ofIndices(all.map)(*layout.map))
      return {all.base, false, *map};
  return Values::vector(Key("places", all.number(), key).number(),
                        layout.numel);
}

Pieces Memory::readPieces(const Window &window) {
  if (window.isEmpty())
    return {};
  checkRead(window);
  if (problem)
    return {};
  return getPieces(window, window.begin, window.end());
}

/// Puts a store in the place of all that is in [begin, end).
void Memory::place(const Window &window, uint64_t begin, uint64_t end,
                   Store store) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  for (auto lost = find(part, begin); lost != part.end() && lost->first < end;
       ++lost)
    if (lost->second.root != window.root)
      losses.try_emplace(lost->second.root,
                         Loss{std::max(begin, lost->first),
                              std::min(end, lost->second.end), actor,
                              window.root});
  auto it = find(part, begin);
  if (it != part.end() && it->first < begin) {
    // Keep what lies before, and perhaps what lies behind.
    Segment rest = it->second;
    it->second.end = begin;
    rest.shift += begin - it->first;
    it = part.emplace_hint(std::next(it), begin, rest);
  }
  while (it != part.end() && it->first < end) {
    if (it->second.end > end) {
      Segment rest = it->second;
      rest.shift += end - it->first;
      part.emplace_hint(std::next(it), end, rest);
    }
    it = part.erase(it);
  }
  stores.push_back(std::move(store));
  Segment segment{end,         0,     static_cast<uint32_t>(stores.size() - 1),
                  window.root, actor, {}};
  part.emplace_hint(it, begin, segment);
}

void Memory::write(const Window &window, const Content &content) {
  if (window.isEmpty())
    return;
  checkWrite(window);
  if (problem)
    return;
  const Layout &layout = *window.layout;
  Key key("bytes", content.number());
  if (layout.map)
    key.add(*layout.map);
  else
    for (int64_t stride : layout.strides)
      key.add(static_cast<uint64_t>(stride));
  bool hasUnwrittenGaps = false;
  if (!layout.isGapless) {
    // What the gaps hold stays.
    Segments &part = segments[static_cast<size_t>(window.space)];
    uint64_t at = window.begin, end = window.end();
    for (auto it = find(part, at); at < end; ++it) {
      hasUnwrittenGaps |= it == part.end() || it->first > at ||
                          it->second.root != window.root ||
                          stores[it->second.store].hasUnwrittenGaps;
      if (hasUnwrittenGaps)
        break;
      at = it->second.end;
    }
    if (!hasUnwrittenGaps)
      key.add(join(getPieces(window, window.begin, end)).number());
  }
  place(window, window.begin, window.end(),
        {key.number(), window.dtype, layout.isGapless, hasUnwrittenGaps,
         content, layout.inverse});
  if (window.root >= writers.size())
    writers.resize(window.root + 1, -1);
  writers[window.root] = actor.position;
}

void Memory::writePieces(const Window &window, const Pieces &pieces) {
  uint64_t at = window.begin, itemSize = getItemSize(window.dtype);
  for (const Piece &piece : pieces) {
    Layout layout = Layout::vector(piece.size);
    Window part = window;
    part.begin = at;
    part.layout = &layout;
    write(part, piece.content);
    at += piece.size * itemSize;
  }
}

} // namespace fsdp::symbolic
