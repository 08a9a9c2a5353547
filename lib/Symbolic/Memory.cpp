//===- Memory.cpp - Which value lies where --------------------------------===//

#include "fsdp/Symbolic/Memory.h"

#include "fsdp/PlanFile/PlanFile.h"

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
  Key steps("strides");
  for (size_t i = 0; i != sizes.size(); ++i)
    if (sizes[i] != 1)
      steps.add(static_cast<uint64_t>(strides[i]));
  order = steps.number();
  if (numel == 0)
    return;
  extent = last + 1;
  if (numel < Ranks::elements && extent < Ranks::elements)
    map = Part::layout(sizes.size(), sizes.data(), strides.data());
  if (map)
    inverse = map->invert();
  isGapless = inverse && numel == extent;
}

uint64_t Window::end() const {
  return begin + layout->extent * getItemSize(dtype);
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

/// The first segment that ends after `at`.
Memory::Segments::iterator Memory::find(Segments &part, uint64_t at) {
  // Memory that grows is written at its end.
  if (part.empty() || std::prev(part.end())->second.end <= at)
    return part.end();
  auto found = part.upper_bound(at);
  if (found != part.begin() && std::prev(found)->second.end > at)
    --found;
  return found;
}

bool Memory::isDone(Actor other) const {
  return other.position <= clock[static_cast<size_t>(other.stream)] ||
         other.position == actor.position;
}

bool Memory::checkRead(const Window &window) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  uint64_t at = window.begin, end = window.end();
  bool hasHoles = false;
  for (auto it = find(part, at); at < end; ++it) {
    if (it == part.end() || it->first > at) {
      // The first element and the last one have bytes at the ends.
      bool isInside = at != window.begin && it != part.end() && it->first < end;
      if (!isInside || window.layout->isGapless) {
        report(window, Problem::Unwritten, at,
               it == part.end() ? end : it->first, nullptr, {});
        return false;
      }
      hasHoles = true;
    }
    Segment &segment = it->second;
    if (segment.root != window.root) {
      report(window, Problem::Stale, it->first, segment.end, &segment,
             segment.writer);
      return false;
    }
    if (!isDone(segment.writer)) {
      report(window, Problem::RaceToRead, it->first, segment.end, &segment,
             segment.writer);
      return false;
    }
    int32_t &reader = segment.readers[static_cast<size_t>(actor.stream)];
    reader = std::max(reader, actor.position);
    hasHoles |= stores[segment.store].hasGaps;
    at = segment.end;
  }
  checkLoss(window);
  return hasHoles;
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

/// Adds what `layout`, with places from the window on, finds of its own in a
/// segment. False if that can not be followed.
bool Memory::get(const Window &window, Segments::const_iterator segment,
                 const Part &layout, Content &result) {
  if (segment->second.root != window.root)
    return true;
  const Store &store = stores[segment->second.store];
  auto itemSize = static_cast<int64_t>(getItemSize(window.dtype));
  auto shift = static_cast<int64_t>(window.begin + segment->second.shift -
                                    segment->first);
  std::optional<Content> other;
  if (store.dtype != window.dtype)
    other = values->reinterpret(store.content, store.dtype, window.dtype);
  if (shift % itemSize != 0 || (store.dtype != window.dtype && !other))
    return false;
  Part places = layout;
  places.index += static_cast<uint64_t>(shift / itemSize);
  for (const Part &part : other ? other->parts : store.content.parts)
    if (!compose(places, part, ~Ranks::elements, result))
      return false;
  return true;
}

/// The same in all segments of the window; `layout` ends where the last one
/// does, or before.
bool Memory::getAll(const Window &window, const Part &layout, Content &result) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  uint64_t itemSize = getItemSize(window.dtype), end = window.end();
  auto it = find(part, window.begin);
  if (it->first <= window.begin && it->second.end >= end)
    return get(window, it, layout, result);
  for (; it != part.end() && it->first < end; ++it) {
    uint64_t from = std::max(window.begin, it->first) - window.begin,
             to = std::min(end, it->second.end) - window.begin;
    if (from % itemSize != 0 || to % itemSize != 0)
      return false;
    Part range = Part::range((to - from) / itemSize, from / itemSize);
    range.position = range.index;
    Content inside;
    if (!compose(layout, range, 0, inside))
      return false;
    for (const Part &places : inside.parts)
      if (!get(window, it, places, result))
        return false;
  }
  return true;
}

/// All bytes of the window, as they were written: what can not be followed.
/// They are taken `by` element or by place.
Content Memory::getBytes(const Window &window, std::string_view by) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  Key key(by, window.dtype, window.layout->shape);
  for (int64_t stride : window.layout->strides)
    key.add(static_cast<uint64_t>(stride));
  for (auto it = find(part, window.begin);
       it != part.end() && it->first < window.end(); ++it) {
    const Store &store = stores[it->second.store];
    key.add(std::max(window.begin, it->first) - window.begin);
    key.add(it->second.shift).add(static_cast<uint64_t>(store.dtype));
    key.add(values->getNumber(store.content));
  }
  return values->unknown(key.number(), window.layout->numel,
                         "bytes that are whole elements in few pieces");
}

Content Memory::readPacked(const Window &window) {
  if (window.isEmpty())
    return {};
  bool hasGaps = checkRead(window);
  if (problem)
    return {};
  const Layout &layout = *window.layout;
  Content result;
  if (!layout.map)
    return getBytes(window, "element");
  if (!getAll(window, *layout.map, result)) {
    // Too many pieces. What is in the whole extent, and the layout, say what it
    // is, as they do of any tensor.
    Layout whole = Layout::vector(layout.extent);
    Window extent = window;
    extent.layout = &whole;
    Content all;
    return getAll(extent, *whole.map, all) ? values->select(*layout.map, all)
                                           : getBytes(window, "element");
  }
  if (hasGaps && !values->isWhole(result, layout.numel))
    report(window, Problem::Unwritten, window.begin, window.end(), nullptr, {});
  return result;
}

/// Puts a store in the place of all that is in [begin, end).
void Memory::place(const Window &window, uint64_t begin, uint64_t end,
                   Store store) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  auto it = find(part, begin);
  for (auto lost = it; lost != part.end() && lost->first < end; ++lost)
    if (lost->second.root != window.root)
      losses.try_emplace(lost->second.root,
                         Loss{std::max(begin, lost->first),
                              std::min(end, lost->second.end), actor,
                              window.root});
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

/// What is in the window's extent after `content` is written to its elements,
/// by place: the gaps keep what they hold.
Content Memory::keepGaps(const Window &window, const Content &content,
                         bool &hasGaps) {
  Segments &part = segments[static_cast<size_t>(window.space)];
  const Layout &layout = *window.layout;
  uint64_t at = window.begin, end = window.end();
  for (auto it = find(part, at); at < end && !hasGaps;) {
    hasGaps = it == part.end() || it->first > at ||
              it->second.root != window.root ||
              stores[it->second.store].hasGaps;
    if (!hasGaps)
      at = it++->second.end;
  }
  Content result;
  Layout whole = Layout::vector(layout.extent);
  Window extent = window;
  extent.layout = &whole;
  auto first = find(part, window.begin);
  bool isEmpty = first == part.end() || first->first >= end;
  if (!isEmpty && !getAll(extent, *whole.map, result))
    result = getBytes(extent, "place");
  Part touched; // the places of the elements
  bool isFound = true;
  for (const Part::Mode &mode : *layout.map)
    isFound &= touched.add({mode.size, mode.stride, mode.stride});
  Content lost;
  for (const Part &old : result.parts)
    isFound = isFound && compose(touched, old, ~Ranks::elements, lost);
  for (Part &old : lost.parts)
    old.sign = -old.sign;
  result.add(lost);
  result.parts.insert(result.parts.end(), content.parts.begin(),
                      content.parts.end());
  constexpr size_t maxParts = 1 << 12;
  if (isFound && result.parts.size() <= maxParts)
    return result;
  return values->unknown(
      Key("gaps", values->getNumber(content), values->getNumber(result))
          .number(),
      layout.extent, Values::fewPieces);
}

void Memory::write(const Window &window, const Content &content) {
  if (window.isEmpty())
    return;
  checkWrite(window);
  if (problem)
    return;
  const Layout &layout = *window.layout;
  Content places;
  bool isDone = layout.inverse.has_value(), hasGaps = false;
  // What goes between gaps goes as one vector: it will be read as one.
  Content vector =
      layout.isGapless ? content : values->pack(content, layout.numel);
  for (const Part &part : vector.parts)
    isDone = isDone && compose(*layout.inverse, part, ~Ranks::elements, places);
  if (!isDone)
    places = values->unknown(
        Key("write", values->getNumber(content), layout.shape, layout.extent)
            .number(),
        layout.extent, Values::fewPieces);
  else if (!layout.isGapless)
    places = keepGaps(window, places, hasGaps);
  place(window, window.begin, window.end(),
        {std::move(places), window.dtype, hasGaps});
  if (window.root >= writers.size())
    writers.resize(window.root + 1, -1);
  writers[window.root] = actor.position;
}

} // namespace fsdp::symbolic
