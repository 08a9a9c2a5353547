//===- Machine.cpp - Commands over numbers --------------------------------===//

#include "fsdp/Symbolic/Machine.h"

#include <algorithm>
#include <numeric>

namespace fsdp::symbolic {

using planfile::Value;

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Content Machine::read(const Window &window) {
  operands.push_back(&window);
  return memory.read(window);
}

Pieces Machine::readPieces(const Window &window) {
  operands.push_back(&window);
  return memory.readPieces(window);
}

/// No command may write what it still reads; element by element, it may write
/// where it has read.
void Machine::checkOverlap(const Window &window, bool mayBeSame) {
  for (const Window *operand : operands) {
    if (operand->space != window.space || operand->isEmpty() ||
        window.isEmpty() || operand->begin >= window.end() ||
        window.begin >= operand->end())
      continue;
    bool isSame = operand->begin == window.begin &&
                  operand->dtype == window.dtype && operand->layout->map &&
                  window.layout->map &&
                  *operand->layout->map == *window.layout->map;
    if (!mayBeSame || !isSame)
      memory.setProblem({Problem::Overlap,
                         window.buffer,
                         std::max(operand->begin, window.begin),
                         std::min(operand->end(), window.end()),
                         {},
                         operand->buffer,
                         -1});
  }
}

void Machine::write(const Window &window, const Content &content,
                    bool mayOverlap) {
  checkOverlap(window, mayOverlap);
  memory.write(window, content);
}

void Machine::writePieces(const Window &window, const Pieces &pieces,
                          bool mayOverlap) {
  checkOverlap(window, mayOverlap);
  memory.writePieces(window, pieces);
}

/// By running index: in pieces, where the window has them in this order, or is
/// one of several matrices side by side.
Pieces Machine::readElements(const Window &window) {
  const Layout &layout = *window.layout;
  if (layout.isGapless && *layout.map == IndexMap::range(0, layout.numel))
    return readPieces(window);
  Content content = read(window);
  if (const Pieces *matrix = values.findMatrix(content))
    return *matrix;
  return {{layout.numel, content}};
}

void Machine::writeElements(const Window &window, const Pieces &pieces) {
  const Layout &layout = *window.layout;
  if (layout.isGapless && *layout.map == IndexMap::range(0, layout.numel))
    return writePieces(window, pieces);
  if (!pieces.empty())
    write(window, join(pieces));
}

//===----------------------------------------------------------------------===//
// Operators
//===----------------------------------------------------------------------===//

/// The number of a call, from those of all arguments.
Number Machine::call(const Operator &op, const std::vector<Number> &arguments) {
  std::vector<Number> ordered(op.numPlaces);
  for (size_t i = 0; i != arguments.size(); ++i)
    if (i < op.places.size() && op.places[i] >= 0)
      ordered[static_cast<size_t>(op.places[i])] = arguments[i];
  Key key("call", op.number);
  for (Number argument : ordered)
    key.add(argument);
  if (op.hasEffect)
    key.add(numEffects++);
  return key.number();
}

Content Machine::result(Number call, size_t index, const Layout &layout,
                        DType dtype) {
  return Values::vector(
      Key("result", call, index, layout.shape, dtype).number(), layout.numel);
}

/// A number as the element type has it.
static double getScalar(const Literal &literal, DType dtype) {
  double value = !literal.floats.empty()     ? literal.floats.front()
                 : !literal.integers.empty() ? double(literal.integers.front())
                                             : 0;
  return dtype == DType::Bool ? double(value != 0) : value;
}

static int64_t getInteger(const std::vector<Argument> &arguments, int position,
                          int64_t fallback) {
  if (position < 0 || size_t(position) >= arguments.size())
    return fallback;
  const Literal *literal = arguments[size_t(position)].literal;
  return literal && !literal->integers.empty() ? literal->integers.front()
                                               : fallback;
}

static const Window *getTensor(const std::vector<Argument> &arguments,
                               int position) {
  if (position < 0 || size_t(position) >= arguments.size())
    return nullptr;
  const auto &tensors = arguments[size_t(position)].tensors;
  return tensors.size() == 1 ? tensors.front() : nullptr;
}

/// The gradient of a slice or a selection, or one that is put in its place.
void Machine::writeWindow(const Operator &op,
                          const std::vector<Argument> &arguments,
                          const Window &target) {
  const Window &source = *getTensor(arguments, op.source);
  const Window *base = getTensor(arguments, op.base);
  Content content = read(source);
  write(target, base ? read(*base) : Values::zero(target.dtype));
  if (source.isEmpty())
    return;
  std::vector<int64_t> sizes = target.layout->sizes,
                       strides = target.layout->strides;
  int64_t rank = static_cast<int64_t>(sizes.size());
  int64_t dim = getInteger(arguments, op.dim, 0);
  size_t axis = static_cast<size_t>(dim < 0 ? dim + rank : dim);
  if (axis >= sizes.size())
    return;
  bool selects = op.index >= 0;
  int64_t start = getInteger(arguments, selects ? op.index : op.start, 0);
  start = start < 0 ? start + sizes[axis] : start;
  start = std::clamp<int64_t>(start, 0, sizes[axis]);
  int64_t offset = start * strides[axis];
  if (selects) {
    sizes.erase(sizes.begin() + axis);
    strides.erase(strides.begin() + axis);
  } else {
    strides[axis] *= std::max<int64_t>(getInteger(arguments, op.step, 1), 1);
    sizes[axis] = source.layout->sizes.size() == sizes.size()
                      ? source.layout->sizes[axis]
                      : 0;
  }
  Layout inner(std::move(sizes), std::move(strides));
  Window part = target.at(offset, inner);
  if (part.end() <= target.end())
    write(part, content);
}

/// The elements along the axes from `dim` on.
static uint64_t getColumns(const Window &window, size_t dim) {
  const std::vector<int64_t> &sizes = window.layout->sizes;
  uint64_t count = 1;
  for (size_t i = dim; i < sizes.size(); ++i)
    count *= static_cast<uint64_t>(sizes[i]);
  return count;
}

/// Matrices side by side: their rows are the elements ahead of `dim`, and their
/// columns those behind. Returns false for what is done by another rule.
bool Machine::concatenate(const Argument &sources, int64_t dim,
                          const Window &target) {
  const std::vector<int64_t> &sizes = target.layout->sizes;
  size_t axis =
      static_cast<size_t>(dim < 0 ? dim + int64_t(sizes.size()) : dim);
  if (axis >= sizes.size() || target.isEmpty())
    return false;
  uint64_t columns = getColumns(target, axis), sum = 0;
  uint64_t rows = target.layout->numel / columns;
  for (const Window *source : sources.tensors) {
    if (!source || source->layout->sizes.size() != sizes.size() ||
        source->layout->numel != rows * getColumns(*source, axis))
      return false;
    sum += getColumns(*source, axis);
  }
  if (sum != columns)
    return false;
  std::vector<Values::Matrix> matrices;
  for (const Window *source : sources.tensors) {
    matrices.push_back({getColumns(*source, axis), readElements(*source)});
    if (source->dtype != target.dtype)
      for (Piece &piece : matrices.back().elements)
        piece.content = values.cast(piece.content, target.dtype);
  }
  writeElements(target, values.beside(rows, matrices));
  return true;
}

/// Each target is a window of the source. Returns false as above.
bool Machine::split(const Window &source, int64_t dim,
                    const std::vector<int64_t> &lengths,
                    const std::vector<const Window *> &targets) {
  std::vector<int64_t> sizes = source.layout->sizes;
  size_t axis =
      static_cast<size_t>(dim < 0 ? dim + int64_t(sizes.size()) : dim);
  if (axis >= sizes.size() || lengths.size() != targets.size() ||
      std::accumulate(lengths.begin(), lengths.end(), int64_t(0)) !=
          sizes[axis])
    return false;
  for (size_t i = 0; i != targets.size(); ++i) {
    sizes[axis] = lengths[i];
    if (!targets[i] || targets[i]->layout->sizes != sizes)
      return false;
  }
  int64_t at = 0;
  for (const Window *target : targets) {
    operands = {&source};
    Layout part(target->layout->sizes, source.layout->strides);
    move(source.at(at * source.layout->strides[axis], part), *target);
    at += target->layout->sizes[axis];
  }
  operands.clear(); // the windows are gone
  return true;
}

void Machine::launch(const Operator &op, const std::vector<Argument> &arguments,
                     const std::vector<const Window *> &results) {
  using Kind = Operator;
  beginCommand();
  std::vector<const Window *> targets = results;
  if (targets.empty())
    for (size_t i = 0; i != arguments.size(); ++i)
      if (op.schema.arguments[i].isWritten)
        for (const Window *tensor : arguments[i].tensors)
          targets.push_back(tensor);
  const Window *target = targets.size() == 1 ? targets.front() : nullptr;
  const Window *source = getTensor(arguments, op.source);
  const Window *value = getTensor(arguments, op.value);

  // Those that are the same as something simpler.
  if (op.kind == Kind::Copy && source && target &&
      source->layout->numel == target->layout->numel) {
    Content content = read(*source);
    if (source->dtype != target->dtype)
      content = values.cast(content, target->dtype);
    return write(*target, content);
  }
  if (op.kind == Kind::Fill && target) {
    double constant = op.constant;
    if (op.value >= 0)
      if (const Literal *literal = arguments[size_t(op.value)].literal)
        constant = getScalar(*literal, target->dtype);
    return write(*target, Values::uniform(constant, target->dtype));
  }
  if (op.kind == Kind::FillTensor && target && value &&
      value->layout->numel == 1) {
    Content content = read(*value);
    if (value->dtype != target->dtype)
      content = values.cast(content, target->dtype);
    if (!content.isUniform && !content.map.append(target->layout->numel, 0))
      return;
    return write(*target, content);
  }
  if (op.kind == Kind::Concatenate && target &&
      concatenate(arguments[size_t(op.source)],
                  getInteger(arguments, op.dim, 0), *target))
    return;
  if (op.kind == Kind::Split && source)
    if (const Literal *lengths = arguments[size_t(op.value)].literal)
      if (split(*source, getInteger(arguments, op.dim, 0), lengths->integers,
                targets))
        return;
  if (op.kind == Kind::WindowWrite && source && target)
    return writeWindow(op, arguments, *target);
  if (op.kind == Kind::Embedding && source && target) {
    if (const Window *index = getTensor(arguments, op.index)) {
      const Operator &choose =
          getOperator("aten::index_select.out",
                      archive::lookupOpFacts("index_select.out")->schema);
      Content rows = read(*source), chosen = read(*index);
      int64_t count = static_cast<int64_t>(index->layout->numel);
      Layout flat = Layout::vector(index->layout->numel);
      Layout table({count, source->layout->sizes.back()}, {0, 0});
      Number number = call(choose, {source->operand(rows),
                                    Literal{Value::Int, {0}}.number(),
                                    index->at(0, flat).operand(chosen)});
      Content content = result(number, 0, table, target->dtype);
      return write(*target, content);
    }
  }
  if (op.kind == Kind::Mean && source && target) {
    const Operator &sum =
        getOperator("aten::sum.IntList_out",
                    archive::lookupOpFacts("sum.IntList_out")->schema);
    const Operator &divide =
        getOperator("aten::div.out", archive::lookupOpFacts("div.out")->schema);
    auto literal = [&](int position, const Literal &fallback) {
      const Literal *given =
          position < 0 ? nullptr : arguments[size_t(position)].literal;
      return (given ? *given : fallback).number();
    };
    Number total =
        call(sum, {source->operand(read(*source)),
                   literal(op.dim, Literal{Value::Ints}),
                   literal(op.keepdim, Literal{Value::Bool, {0}}),
                   Literal{Value::Type, {int64_t(target->dtype)}}.number()});
    uint64_t count =
        source->layout->numel / std::max<uint64_t>(target->layout->numel, 1);
    Content sums = result(total, 0, *target->layout, target->dtype);
    Number quotient =
        call(divide, {target->operand(sums),
                      Literal{Value::Int, {int64_t(count)}}.number()});
    return write(*target, result(quotient, 0, *target->layout, target->dtype));
  }

  if (op.kind == Kind::Power && source && target &&
      source->dtype == target->dtype) {
    const Literal *literal = arguments[size_t(op.value)].literal;
    double exponent = literal ? getScalar(*literal, DType::F64) : 0;
    if (exponent == 1)
      return write(*target, read(*source));
    if (exponent == 2 &&
        (target->dtype == DType::F32 || target->dtype == DType::F64)) {
      const Operator &multiply = getOperator(
          "aten::mul.out", archive::lookupOpFacts("mul.out")->schema);
      Number base = source->operand(read(*source));
      return write(*target, result(call(multiply, {base, base}), 0,
                                   *target->layout, target->dtype));
    }
  }

  std::vector<Number> numbers;
  for (size_t i = 0; i != arguments.size(); ++i) {
    const Argument &argument = arguments[i];
    Number &number = numbers.emplace_back();
    if (op.places[i] < 0)
      continue;
    if (argument.literal) {
      number = argument.literal->number();
      continue;
    }
    Key list("tensors");
    for (const Window *tensor : argument.tensors) {
      number = tensor ? tensor->operand(read(*tensor)) : 0;
      list.add(number);
    }
    if (op.schema.arguments[i].isList)
      number = list.number();
  }
  Number number = call(op, numbers);
  for (size_t i = 0; i != targets.size(); ++i)
    if (targets[i])
      write(*targets[i],
            result(number, i, *targets[i]->layout, targets[i]->dtype),
            op.isPointwise);
}

void Machine::copy(const Window &source, const Window &target) {
  beginCommand();
  move(source, target);
}

void Machine::move(const Window &source, const Window &target) {
  bool isCast = source.dtype != target.dtype;
  // What lies in one order on both sides is copied piece by piece.
  if (source.layout->isGapless && target.layout->isGapless &&
      *source.layout->map == *target.layout->map) {
    Pieces pieces = readPieces(source);
    if (isCast)
      for (Piece &piece : pieces)
        piece.content = values.cast(piece.content, target.dtype);
    return writePieces(target, pieces);
  }
  Pieces pieces = readElements(source);
  if (isCast)
    for (Piece &piece : pieces)
      piece.content = values.cast(piece.content, target.dtype);
  writeElements(target, pieces);
}

void Machine::zero(const Window &target) {
  beginCommand();
  write(target, Values::zero(target.dtype));
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

static uint64_t getSize(const Pieces &pieces) {
  uint64_t size = 0;
  for (const Piece &piece : pieces)
    size += piece.size;
  return size;
}

void Machine::allGather(const Window &source, const Window &target,
                        uint64_t axes) {
  beginCommand();
  Pieces pieces = readPieces(source);
  // A rank's pieces of several wholes are its row.
  uint64_t rows =
      target.layout->numel / std::max<uint64_t>(1, source.layout->numel);
  std::vector<Values::Matrix> matrices;
  for (const Piece &piece : pieces) {
    const Values::Shard *shard = values.findShard(piece.content);
    if (!shard || shard->axes != axes || shard->size != piece.size ||
        getSize(shard->whole) != rows * piece.size)
      return write(target,
                   Values::vector(
                       Key("all_gather", join(pieces).number(), axes).number(),
                       target.layout->numel));
    matrices.push_back({piece.size, shard->whole});
  }
  writePieces(target, values.beside(rows, matrices));
}

void Machine::keepPiece(const Window &source, const Window &target,
                        uint64_t axes) {
  beginCommand();
  write(target, values.shard(readPieces(source), axes, target.layout->numel));
}

Pieces Machine::sum(const Pieces &flat, uint64_t axes, double divisor,
                    DType via, DType dtype) {
  Pieces result;
  for (const Piece &piece : flat)
    append(result,
           {piece.size, values.sum(piece.content, axes, divisor, via, dtype)});
  return result;
}

void Machine::reduceScatter(const Window &source, const Window &target,
                            uint64_t axes, double divisor, DType via) {
  beginCommand();
  std::vector<Values::Matrix> matrices;
  Pieces whole = readPieces(source);
  const Values::Row *row =
      whole.size() == 1 ? values.findRow(whole.front().content) : nullptr;
  if (row && row->columns == target.layout->numel)
    matrices = row->matrices;
  else
    matrices.push_back({target.layout->numel, std::move(whole)});
  Pieces pieces;
  for (const auto &[columns, elements] : matrices)
    pieces.push_back(
        {columns, values.shard(sum(elements, axes, divisor, via, target.dtype),
                               axes, columns)});
  writePieces(target, pieces);
}

void Machine::allReduce(const Window &source, const Window &target,
                        uint64_t axes, double divisor, DType via) {
  beginCommand();
  writePieces(target, sum(readPieces(source), axes, divisor, via, target.dtype),
              /*mayOverlap=*/true);
}

//===----------------------------------------------------------------------===//
// Flat parameters
//===----------------------------------------------------------------------===//

Pieces Machine::readFlat(const Unit &unit, const Window &window) {
  if (unit.shards == 1)
    return readPieces(window);
  Content content = read(window);
  const Values::Shard *shard = values.findShard(content);
  if (shard && shard->axes == unit.axes)
    return shard->whole;
  return {{unit.numel,
           Values::vector(Key("flat", content.number()).number(), unit.numel)}};
}

void Machine::writeFlat(const Unit &unit, const Window &window,
                        const Pieces &flat) {
  if (unit.shards == 1)
    return memory.writePieces(window, flat);
  memory.write(window, values.shard(flat, unit.axes, window.layout->numel));
}

Pieces Machine::initial(const Unit &unit, std::string_view kind) {
  Pieces flat;
  uint64_t at = 0;
  auto pad = [&](uint64_t end) {
    append(flat, {end - at, Values::zero(unit.storage)});
  };
  for (const Unit::Parameter &parameter : unit.parameters) {
    pad(parameter.offset);
    auto number = [&](DType dtype) {
      return Key("initial", hashText(kind), hashText(parameter.name), dtype)
          .number();
    };
    Number stored = number(unit.storage);
    if (unit.storage != unit.compute && kind == "parameter")
      values.defineCast(stored, unit.compute, number(unit.compute));
    append(flat, {parameter.numel, Values::vector(stored, parameter.numel)});
    at = parameter.offset + parameter.numel;
  }
  pad(unit.numel);
  return flat;
}

std::vector<Pieces> Machine::update(const Unit &unit, std::string_view rule,
                                    const std::vector<Pieces> &operands,
                                    const std::vector<size_t> &states,
                                    const std::vector<Range> &ranges) {
  std::vector<Pieces> results(states.size());
  uint64_t at = 0;
  auto keep = [&](uint64_t end) {
    for (size_t k = 0; k != states.size(); ++k)
      for (const Piece &piece : slice(operands[states[k]], at, end))
        append(results[k], piece);
    at = std::max(at, end);
  };
  auto change = [&](uint64_t end) {
    if (at >= end)
      return;
    Key key("update", hashText(rule));
    bool areZero = true;
    for (const Pieces &operand : operands) {
      Pieces part = slice(operand, at, end);
      areZero &= Values::isZero(part);
      key.add(join(part).number());
    }
    if (areZero)
      return keep(end); // zero stays zero
    for (size_t k = 0; k != states.size(); ++k)
      append(results[k],
             {end - at, Values::vector(Key("state", key.number(), k).number(),
                                       end - at)});
    at = end;
  };
  auto parameter = unit.parameters.begin();
  for (auto [begin, end] : ranges) {
    keep(begin);
    while (parameter != unit.parameters.end() &&
           parameter->offset + parameter->numel <= begin)
      ++parameter;
    for (auto it = parameter; it != unit.parameters.end() && it->offset < end;
         ++it) {
      change(std::min(it->offset, end));
      change(std::min(it->offset + it->numel, end));
    }
    change(end);
  }
  keep(unit.numel);
  return results;
}

void Machine::describe(const Unit &unit, std::string_view what,
                       const Pieces &flat, bool skipsZeros,
                       Meanings &meanings) {
  auto name = [&](std::string_view of) {
    return std::string(what).append(" ").append(of);
  };
  bool padsAreZero = true;
  auto part = flat.begin();
  uint64_t start = 0; // of `part`
  auto take = [&](uint64_t begin, uint64_t end) {
    while (part != flat.end() && start + part->size <= begin)
      start += (part++)->size;
    Pieces rest;
    uint64_t from = start;
    for (auto it = part; it != flat.end() && from < end; from += (it++)->size)
      rest.push_back(*it);
    return slice(rest, begin - start, end - start);
  };
  uint64_t at = 0;
  for (const Unit::Parameter &parameter : unit.parameters) {
    padsAreZero &= Values::isZero(take(at, parameter.offset));
    at = parameter.offset + parameter.numel;
    Pieces content = take(parameter.offset, at);
    if (!skipsZeros || !Values::isZero(content))
      meanings[name(parameter.name)] = join(content).number();
  }
  padsAreZero &= Values::isZero(take(at, unit.numel));
  if (!padsAreZero)
    meanings[name(unit.name) + " padding"] = join(flat).number();
}

} // namespace fsdp::symbolic
