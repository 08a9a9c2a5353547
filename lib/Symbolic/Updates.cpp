//===- Updates.cpp - What is done to flat parameters, over numbers --------===//
//
// Updates of a unit's states by its gradient, and measures of shards.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Machine.h"

#include <algorithm>

namespace fsdp::symbolic {

Content Machine::hyper(uint64_t group, std::string_view name) {
  Number base = Key("hyper", group, hashText(name)).number();
  std::string words =
      "hyper-parameters of decay group " + std::to_string(group);
  if (!name.empty())
    words.append(" (").append(name).append(")");
  values.note(base, words);
  return Content::vector(base, planfile::numHypers, everywhere);
}

/// Calls `visit` with each part of the ranges that lies in one parameter, or in
/// what is between two.
template <typename Visit>
static void forEachPart(const Unit &unit, const std::vector<Range> &ranges,
                        const Visit &visit) {
  auto parameter = unit.parameters.begin();
  for (auto [begin, end] : ranges) {
    uint64_t at = begin;
    auto advance = [&, last = end](uint64_t to) {
      to = std::min(to, last);
      if (at < to)
        visit(at, to);
      at = std::max(at, to);
    };
    while (parameter != unit.parameters.end() &&
           parameter->offset + parameter->numel <= begin)
      ++parameter;
    for (auto it = parameter; it != unit.parameters.end() && it->offset < end;
         ++it) {
      advance(it->offset);
      advance(it->offset + it->numel);
    }
    advance(end);
  }
}

Content Machine::accumulate(const Unit &unit, const Content &left,
                            const Content &right, DType dtype) {
  Content sum;
  Slices first(values, left), second(values, right);
  forEachPart(unit, {{0, unit.numel}}, [&](uint64_t begin, uint64_t end) {
    Content one = first(begin, end), other = second(begin, end);
    if (Values::isZero(one) && Values::isZero(other))
      return Values::place(sum, one, begin);
    // A sum of two is the same in either order.
    auto [low, high] =
        std::minmax({values.getNumber(one), values.getNumber(other)});
    Number base = Key("accumulate", low, high, dtype).number();
    Content all = one; // for words
    all.parts.insert(all.parts.end(), other.parts.begin(), other.parts.end());
    values.note(base, "the sum over micro-batches of", all);
    Values::place(
        sum,
        Content::vector(base, end - begin,
                        Values::getSame(one) & Values::getSame(other)),
        begin);
  });
  return sum;
}

void Machine::accumulate(const Unit &unit, const Window &source,
                         const Window &target) {
  beginCommand();
  Content left = readFlat(unit, target), right = readFlat(unit, source);
  Content sum = accumulate(unit, left, right, target.dtype);
  checkOverlap(target, /*mayBeSame=*/true);
  writeFlat(unit, target, sum);
}

std::vector<Content> Machine::update(const Unit &unit, std::string_view rule,
                                     const Content &gradient,
                                     const std::vector<Content> &states,
                                     const Content &hyper,
                                     const ScalarContents &scalars,
                                     const std::vector<Range> &ranges) {
  std::vector<Content> results(states.size());
  std::vector<Slices> slices; // of the states, then of the gradient
  for (const Content &state : states)
    slices.emplace_back(values, state);
  slices.emplace_back(values, gradient);
  uint64_t at = 0;
  auto keep = [&](uint64_t end) {
    for (size_t k = 0; k != states.size(); ++k)
      Values::place(results[k], slices[k](at, end), at);
    at = std::max(at, end);
  };
  forEachPart(unit, ranges, [&](uint64_t begin, uint64_t end) {
    keep(begin);
    Key key("update", hashText(rule));
    bool areZero = true;
    uint64_t same = everywhere;
    Content all; // for words
    auto take = [&](const Content &content) {
      same &= Values::getSame(content);
      key.add(values.getNumber(content));
      all.parts.insert(all.parts.end(), content.parts.begin(),
                       content.parts.end());
    };
    for (const Slices &slice : slices) {
      Content part = slice(begin, end);
      areZero &= Values::isZero(part);
      take(part);
    }
    // Zero stays zero: by numbers that are finite, as a scale should be.
    if (areZero)
      return keep(end);
    key.add(true); // as of a scalar that is there
    take(hyper);
    for (const std::optional<Content> &scalar : scalars) {
      key.add(scalar.has_value());
      if (scalar)
        take(*scalar);
    }
    for (size_t k = 0; k != states.size(); ++k) {
      Number base = Key("state", key.number(), k).number();
      values.note(
          base, std::string("the update by ").append(rule).append(" of"), all);
      Values::place(results[k], Content::vector(base, end - begin, same),
                    begin);
    }
    at = end;
  });
  keep(unit.numel);
  return results;
}

void Machine::update(const Unit &unit, std::string_view rule,
                     const Window &gradient,
                     const std::vector<const Window *> &states,
                     const Window &hyper, const Scalars &scalars,
                     const std::vector<Range> &ranges) {
  beginCommand();
  Content flat = readFlat(unit, gradient);
  std::vector<Content> before;
  for (const Window *state : states)
    before.push_back(readFlat(unit, *state));
  Content numbers = read(hyper);
  ScalarContents contents;
  bool isScaled = false;
  for (size_t i = 0; i != contents.size(); ++i)
    if (scalars[i]) {
      contents[i] = read(*scalars[i]);
      isScaled |= scalesGradient(planfile::UpdateScalar(i));
    }
  std::vector<Content> after =
      update(unit, rule, flat, before, numbers, contents, ranges);
  for (size_t k = 0; k != states.size(); ++k) {
    checkOverlap(*states[k], /*mayBeSame=*/true);
    writeFlat(unit, *states[k], after[k]);
  }
  if (!isScaled)
    return;
  // In the ranges; nobody needs to know what it is then: it is another value.
  Content scaled;
  uint64_t at = 0;
  Slices slice(values, flat);
  auto keep = [&](uint64_t end) {
    Values::place(scaled, slice(at, end), at);
    at = std::max(at, end);
  };
  forEachPart(unit, ranges, [&](uint64_t begin, uint64_t end) {
    keep(begin);
    Content part = slice(begin, end);
    if (Values::isZero(part))
      return keep(end);
    Key key("scaled", values.getNumber(part), values.getNumber(numbers));
    uint64_t same = Values::getSame(part) & Values::getSame(numbers);
    for (const std::optional<Content> &scalar : contents) {
      key.add(scalar ? values.getNumber(*scalar) : 0);
      same &= scalar ? Values::getSame(*scalar) : everywhere;
    }
    values.note(key.number(), "the scaled", part);
    Values::place(scaled, Content::vector(key.number(), end - begin, same),
                  begin);
    at = end;
  });
  keep(unit.numel);
  checkOverlap(gradient, /*mayBeSame=*/true);
  writeFlat(unit, gradient, scaled);
}

Content Machine::measure(const Unit &unit, std::string_view kind,
                         const Content &flat, DType dtype,
                         const std::optional<Content> &initial,
                         const std::vector<Range> &ranges) {
  Slices slice(values, flat);
  // Of another piece on each rank, whatever the whole is.
  Key key("measure", hashText(kind), dtype, unit.numel, unit.shards, unit.axes,
          initial.has_value());
  uint64_t same = everywhere & ~unit.axes;
  Content all; // for words
  if (initial) {
    same &= Values::getSame(*initial);
    key.add(values.getNumber(*initial));
    all = *initial;
  }
  forEachPart(unit, ranges, [&](uint64_t begin, uint64_t end) {
    Content part = slice(begin, end);
    if (Values::isZero(part))
      return; // adds nothing
    same &= Values::getSame(part);
    key.add(begin).add(end).add(values.getNumber(part));
    all.parts.insert(all.parts.end(), part.parts.begin(), part.parts.end());
  });
  values.note(key.number(), std::string(kind).append(" of"), all);
  return Content::vector(key.number(), 1, same);
}

void Machine::measure(const Unit &unit, std::string_view kind,
                      const Window &source, const Window *initial,
                      const Window &target, const std::vector<Range> &ranges) {
  beginCommand();
  Content flat = readFlat(unit, source);
  std::optional<Content> before;
  if (initial)
    before = read(*initial);
  write(target, measure(unit, kind, flat, source.dtype, before, ranges));
}

} // namespace fsdp::symbolic
