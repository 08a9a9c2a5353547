//===- FlatParameters.cpp - Parameters, gradients and states of units -----===//
//
// What commands do that know units: whose elements are cut into pieces, and
// which parameter each element belongs to.
//
//===----------------------------------------------------------------------===//

#include "fsdp/Symbolic/Machine.h"

#include "fsdp/PlanFile/PlanFile.h"

#include <algorithm>

namespace fsdp::symbolic {

/// One of several pieces; what is not sharded yet, or any more, is whole.
static bool isPiece(const Unit &unit, const Window &window) {
  return unit.shards != 1 && window.layout->numel != unit.numel;
}

Content Machine::readFlat(const Unit &unit, const Window &window) {
  Content content = read(window);
  return isPiece(unit, window)
             ? values.gather(content, unit.axes, window.layout->numel)
             : content;
}

void Machine::writeFlat(const Unit &unit, const Window &window,
                        const Content &flat) {
  memory.write(window,
               isPiece(unit, window)
                   ? values.scatter(flat, unit.axes, window.layout->numel)
                   : flat);
}

/// A flat parameter of what `get` says of each parameter, and of zero padding.
template <typename Get>
static Content layOut(const Unit &unit, DType dtype, const Get &get) {
  Content flat;
  uint64_t at = 0;
  auto pad = [&](uint64_t end) {
    if (at < end)
      Values::place(flat, Values::zero(dtype, end - at), at);
  };
  for (const Unit::Parameter &parameter : unit.parameters) {
    pad(parameter.offset);
    Values::place(flat, get(parameter), parameter.offset);
    at = parameter.offset + parameter.numel;
  }
  pad(unit.numel);
  return flat;
}

Number Machine::stored(std::string_view kind, std::string_view name,
                       DType storage) {
  auto number = [&](DType dtype) {
    Number base =
        Key("initial", hashText(kind), hashText(name), dtype).number();
    values.note(base, std::string(kind).append(" ").append(name));
    return base;
  };
  Number own = number(storage);
  if (kind == "parameter")
    for (DType compute : {DType::F16, DType::BF16, DType::F32, DType::F64})
      if (compute != storage)
        values.defineCast(own, compute, number(compute));
  return own;
}

Content Machine::initial(const Unit &unit, std::string_view kind) {
  return layOut(unit, unit.storage, [&](const Unit::Parameter &parameter) {
    return Content::vector(stored(kind, parameter.name, unit.storage),
                           parameter.numel, unit.same);
  });
}

Content Machine::unsharded(const Unit &unit, DType dtype) {
  Content flat = initial(unit, "parameter");
  return dtype == unit.storage ? flat : values.cast(flat, dtype);
}

Content Machine::accumulated(const Unit &unit, std::string_view kind) {
  // Before they are reduced, each rank has its own.
  uint64_t same = kind == planfile::unshardedGradient ? 0
                  : kind == planfile::partialGradient ? unit.axes
                                                      : unit.same;
  DType dtype = kind == planfile::shardedGradient ? unit.storage : unit.reduce;
  return layOut(unit, dtype, [&](const Unit::Parameter &parameter) {
    if (!parameter.isTrainable)
      return Values::zero(dtype, parameter.numel);
    Number base =
        Key("accumulated", hashText(kind), hashText(parameter.name), dtype)
            .number();
    values.note(base, std::string(kind).append(" ").append(parameter.name));
    return Content::vector(base, parameter.numel, same);
  });
}

Meaning Machine::describe(const Content &content,
                          std::optional<Number> number) {
  Meaning meaning{number.value_or(values.getNumber(content))};
  if (values.isRecording) {
    meaning.words = values.describe(content);
    meaning.unknown = values.findUnknown(content);
  }
  return meaning;
}

void Machine::describe(const Unit &unit, std::string_view what,
                       const Content &flat, bool skipsZeros,
                       Meanings &meanings) {
  auto name = [&](std::string_view of) {
    return std::string(what).append(" ").append(of);
  };
  Slices slice(values, flat);
  bool padsAreZero = true;
  uint64_t at = 0;
  for (const Unit::Parameter &parameter : unit.parameters) {
    padsAreZero &= Values::isZero(slice(at, parameter.offset));
    at = parameter.offset + parameter.numel;
    Content content = slice(parameter.offset, at);
    if (!skipsZeros || !Values::isZero(content))
      meanings[name(parameter.name)] = describe(content);
  }
  padsAreZero &= Values::isZero(slice(at, unit.numel));
  if (!padsAreZero)
    meanings[name(unit.name) + " padding"] = describe(flat);
}

} // namespace fsdp::symbolic
