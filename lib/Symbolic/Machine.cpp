//===- Machine.cpp - Commands over numbers --------------------------------===//

#include "fsdp/Symbolic/Machine.h"

#include "fsdp/PlanFile/PlanFile.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

namespace fsdp::symbolic {

using planfile::Value;

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Content Machine::read(const Window &window) {
  operands.push_back(&window);
  return memory.read(window);
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
                  operand->layout->map->isAt(*window.layout->map);
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

/// Whether two windows have a place in common.
static bool overlap(const Window &left, const Window &right) {
  if (left.space != right.space || left.isEmpty() || right.isEmpty() ||
      left.begin >= right.end() || right.begin >= left.end())
    return false;
  uint64_t itemSize = planfile::getItemSize(left.dtype);
  bool isFound = left.dtype == right.dtype && left.layout->map &&
                 right.layout->inverse &&
                 (left.begin - right.begin) % itemSize == 0;
  if (!isFound)
    return true;
  Part places = *left.layout->map, others = *right.layout->inverse;
  uint64_t first = std::min(left.begin, right.begin);
  places.index += (left.begin - first) / itemSize;
  others.position += (right.begin - first) / itemSize;
  Content common;
  return !compose(places, others, 0, common) || !common.parts.empty();
}

/// Nor may it write a place twice.
void Machine::checkTargets(const std::vector<const Window *> &targets) {
  for (size_t i = 0; i != targets.size(); ++i)
    for (size_t j = 0; j != i; ++j)
      if (targets[i] && targets[j] && overlap(*targets[i], *targets[j]))
        memory.setProblem({Problem::Overlap,
                           targets[i]->buffer,
                           std::max(targets[i]->begin, targets[j]->begin),
                           std::min(targets[i]->end(), targets[j]->end()),
                           {},
                           targets[j]->buffer,
                           -1});
}

//===----------------------------------------------------------------------===//
// Operators
//===----------------------------------------------------------------------===//

Number Machine::getOperand(const Window &window, const Content &content) const {
  return Key("operand", values.getNumber(content), window.layout->shape,
             window.dtype)
      .number();
}

Number Machine::take(const Operator &op, const Window &window) {
  Content content = read(window);
  same &= Values::getSame(content);
  if (values.isRecording)
    for (const Part &part : content.parts)
      taken.push_back(part.base);
  Number operand = getOperand(window, content);
  return op.isExact ? operand
                    : Key("strided", operand, window.layout->order).number();
}

/// The number of a call, from those of all arguments.
Number Machine::call(const Operator &op, const std::vector<Number> &arguments,
                     const std::vector<const Window *> &targets) {
  std::vector<Number> ordered(op.numPlaces);
  for (size_t i = 0; i != arguments.size(); ++i)
    if (i < op.places.size() && op.places[i] >= 0)
      ordered[static_cast<size_t>(op.places[i])] = arguments[i];
  Key key("call", op.number);
  for (Number argument : ordered)
    key.add(argument);
  if (!op.isExact)
    for (const Window *target : targets)
      key.add(target ? target->layout->order : 0);
  if (!op.hasEffect)
    return key.number();
  Number number = key.add(effects.count++).number();
  taken.push_back(std::exchange(
      effects.latest, Key("effects", effects.latest, number).number()));
  if (values.isRecording)
    values.note(effects.latest, values.maker + " after", taken);
  taken.pop_back();
  return number;
}

Content Machine::result(const Operator &op, Number call, size_t index,
                        const Layout &layout, DType dtype) {
  Number base = Key("result", call, index, layout.shape, dtype).number();
  if (values.isRecording)
    values.note(base, values.maker + " of", taken);
  return Content::vector(base, layout.numel, op.hasEffect ? 0 : same);
}

/// A number as the element type has it.
static uint64_t getScalar(const Literal &literal, DType dtype) {
  if (!literal.floats.empty())
    return getUniformBits(literal.floats.front(), dtype);
  return getUniformBits(
      literal.integers.empty() ? int64_t(0) : literal.integers.front(), dtype);
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

/// An axis by its number, which may count from the end.
static size_t getAxis(int64_t dim, size_t rank) {
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
}

/// The gradient of a slice or a selection, or one that is put in its place.
/// Returns false for what is done by another rule, as all below.
bool Machine::writeWindow(const Operator &op,
                          const std::vector<Argument> &arguments,
                          const Window &target) {
  const Window &source = *getTensor(arguments, op.source);
  const Window *base = getTensor(arguments, op.base);
  std::vector<int64_t> sizes = target.layout->sizes,
                       strides = target.layout->strides;
  size_t axis = getAxis(getInteger(arguments, op.dim, 0), sizes.size());
  if (axis >= sizes.size() || (base && base->layout->sizes != sizes))
    return false;
  bool selects = op.index >= 0;
  int64_t start = getInteger(arguments, selects ? op.index : op.start, 0);
  start = start < 0 ? start + sizes[axis] : start;
  start = std::clamp<int64_t>(start, 0, sizes[axis]);
  int64_t offset = start * strides[axis];
  if (selects) {
    if (start == sizes[axis])
      return false;
    sizes.erase(sizes.begin() + axis);
    strides.erase(strides.begin() + axis);
  } else {
    int64_t step = std::max<int64_t>(getInteger(arguments, op.step, 1), 1);
    int64_t size = source.layout->sizes.size() == sizes.size()
                       ? source.layout->sizes[axis]
                       : 0;
    if (size > 0 && (size - 1) > (sizes[axis] - 1 - start) / step)
      return false;
    strides[axis] *= step;
    sizes[axis] = size;
  }
  if (sizes != source.layout->sizes)
    return false;
  Content content = read(source);
  write(target,
        base ? read(*base) : Values::zero(target.dtype, target.layout->numel));
  Layout inner(std::move(sizes), std::move(strides));
  if (!source.isEmpty())
    write(target.at(offset, inner), content);
  return true;
}

/// Each source in a window of the target.
bool Machine::concatenate(const Argument &sources, int64_t dim,
                          const Window &target) {
  std::vector<int64_t> sizes = target.layout->sizes;
  size_t axis = getAxis(dim, sizes.size());
  if (axis >= sizes.size() || target.isEmpty())
    return false;
  int64_t sum = 0;
  for (const Window *source : sources.tensors) {
    if (!source || source->layout->sizes.size() != sizes.size())
      return false;
    sizes[axis] = source->layout->sizes[axis];
    if (source->layout->sizes != sizes)
      return false;
    sum += sizes[axis];
  }
  if (sum != target.layout->sizes[axis])
    return false;
  // Rows of the elements from `axis` on, all sources side by side.
  auto getColumns = [&](const Window &window) {
    uint64_t columns = 1;
    for (size_t i = axis; i != sizes.size(); ++i)
      columns *= static_cast<uint64_t>(window.layout->sizes[i]);
    return columns;
  };
  uint64_t columns = getColumns(target), at = 0;
  Content result;
  for (const Window *source : sources.tensors) {
    if (source->isEmpty())
      continue;
    operands.push_back(source);
    Content content = memory.readPacked(*source);
    if (source->dtype != target.dtype)
      content = values.cast(content, target.dtype);
    uint64_t own = getColumns(*source);
    Part places = Part::range(own);
    places.add({source->layout->numel / own, columns, own});
    places.position = at;
    Content vector = values.pack(content, source->layout->numel);
    Values::place(result, values.select(places, vector), 0);
    at += own;
  }
  write(target, result);
  return true;
}

/// Each target is a window of the source.
bool Machine::split(const Window &source, int64_t dim,
                    const std::vector<int64_t> &lengths,
                    const std::vector<const Window *> &targets) {
  std::vector<int64_t> sizes = source.layout->sizes;
  size_t axis = getAxis(dim, sizes.size());
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

/// A choice of rows.
bool Machine::embed(const Operator &op, const std::vector<Argument> &arguments,
                    const Window &target) {
  const Window *source = getTensor(arguments, op.source),
               *index = getTensor(arguments, op.index);
  if (!source || !index || source->layout->sizes.size() != 2)
    return false;
  const Operator &choose =
      getOperator("aten::index_select.out",
                  operators::lookupOpFacts("index_select.out")->schema);
  auto count = static_cast<int64_t>(index->layout->numel);
  int64_t width = source->layout->sizes.back();
  Layout flat = Layout::vector(index->layout->numel);
  Layout table({count, width}, {width, 1});
  Number rows = take(choose, *source);
  Content chosen = read(*index);
  same &= Values::getSame(chosen);
  Number which =
      Key("strided", getOperand(index->at(0, flat), chosen), flat.order)
          .number();
  Window rowsOf = target.at(0, table);
  Number number =
      call(choose, {rows, Literal{Value::Int, {0}}.number(), which}, {&rowsOf});
  write(target, result(choose, number, 0, table, target.dtype));
  return true;
}

/// A sum, divided.
bool Machine::average(const Operator &op,
                      const std::vector<Argument> &arguments,
                      const Window &target) {
  const Window &source = *getTensor(arguments, op.source);
  const Operator &sum =
      getOperator("aten::sum.IntList_out",
                  operators::lookupOpFacts("sum.IntList_out")->schema);
  const Operator &divide =
      getOperator("aten::div.out", operators::lookupOpFacts("div.out")->schema);
  auto literal = [&](int position, const Literal &fallback) {
    const Literal *given =
        position < 0 ? nullptr : arguments[size_t(position)].literal;
    return (given ? *given : fallback).number();
  };
  Number total = call(sum,
                      {take(sum, source), literal(op.dim, Literal{Value::Ints}),
                       literal(op.keepdim, Literal{Value::Bool, {0}}),
                       Literal{Value::Type, {int64_t(target.dtype)}}.number()},
                      {&target});
  uint64_t count =
      source.layout->numel / std::max<uint64_t>(target.layout->numel, 1);
  Content sums = result(sum, total, 0, *target.layout, target.dtype);
  Number quotient = call(divide,
                         {getOperand(target, sums),
                          Literal{Value::Int, {int64_t(count)}}.number()},
                         {&target});
  write(target, result(divide, quotient, 0, *target.layout, target.dtype));
  return true;
}

/// A power that is a copy, or a product.
bool Machine::raise(const Operator &op, const std::vector<Argument> &arguments,
                    const Window &target) {
  const Window &source = *getTensor(arguments, op.source);
  const Literal *literal = arguments[size_t(op.value)].literal;
  if (source.dtype != target.dtype || !literal)
    return false;
  bool isFloat = target.dtype == DType::F32 || target.dtype == DType::F64;
  uint64_t exponent = getScalar(*literal, DType::F64);
  if (exponent == hashDouble(1)) {
    write(target, read(source), /*mayOverlap=*/true);
    return true;
  }
  if (exponent != hashDouble(2) || !isFloat)
    return false;
  const Operator &multiply =
      getOperator("aten::mul.out", operators::lookupOpFacts("mul.out")->schema);
  Number base = take(multiply, source);
  write(target,
        result(multiply, call(multiply, {base, base}, {&target}), 0,
               *target.layout, target.dtype),
        /*mayOverlap=*/true);
  return true;
}

/// What is the same as something simpler.
bool Machine::launchAsSimpler(const Operator &op,
                              const std::vector<Argument> &arguments,
                              const std::vector<const Window *> &targets) {
  const Window *target = targets.size() == 1 ? targets.front() : nullptr;
  const Window *source = getTensor(arguments, op.source);
  const Window *value = getTensor(arguments, op.value);
  auto convert = [&](const Window &from, const Part *layout) {
    Content content = read(from);
    if (layout)
      content = values.select(*layout, content);
    if (from.dtype != target->dtype)
      content = values.cast(content, target->dtype);
    write(*target, content);
    return true;
  };
  switch (op.kind) {
  case Operator::Plain:
    return false;
  case Operator::Copy:
    return source && target && source->layout->numel == target->layout->numel &&
           convert(*source, nullptr);
  case Operator::Fill: {
    if (!target)
      return false;
    uint64_t bits = getUniformBits(op.constant, target->dtype);
    if (op.value >= 0)
      if (const Literal *literal = arguments[size_t(op.value)].literal)
        bits = getScalar(*literal, target->dtype);
    write(*target, Values::uniform(bits, target->dtype, target->layout->numel));
    return true;
  }
  case Operator::FillTensor: {
    if (!target || !value || value->layout->numel != 1)
      return false;
    Part all;
    all.add({target->layout->numel, 1, 0});
    return convert(*value, &all);
  }
  case Operator::Concatenate:
    return target && concatenate(arguments[size_t(op.source)],
                                 getInteger(arguments, op.dim, 0), *target);
  case Operator::Split: {
    const Literal *lengths = arguments[size_t(op.value)].literal;
    return source && lengths &&
           split(*source, getInteger(arguments, op.dim, 0), lengths->integers,
                 targets);
  }
  case Operator::WindowWrite:
    return source && target && writeWindow(op, arguments, *target);
  case Operator::Embedding:
    return target && embed(op, arguments, *target);
  case Operator::Mean:
    return source && target && average(op, arguments, *target);
  case Operator::Power:
    return source && target && raise(op, arguments, *target);
  }
  return false;
}

void Machine::launch(const Operator &op, const std::vector<Argument> &arguments,
                     const std::vector<const Window *> &results) {
  std::vector<const Window *> targets = results;
  if (targets.empty())
    for (size_t i = 0; i != arguments.size(); ++i)
      if (op.schema.arguments[i].isWritten)
        for (const Window *tensor : arguments[i].tensors)
          targets.push_back(tensor);
  checkTargets(targets);
  beginCommand();
  if (launchAsSimpler(op, arguments, targets))
    return;
  std::vector<Number> numbers(arguments.size());
  for (size_t i = 0; i != arguments.size(); ++i) {
    const Argument &argument = arguments[i];
    Number &number = numbers[i];
    if (op.places[i] < 0)
      continue;
    if (argument.literal) {
      number = argument.literal->number();
      continue;
    }
    Key list("tensors");
    for (const Window *tensor : argument.tensors) {
      number = tensor ? take(op, *tensor) : 0;
      list.add(number);
    }
    if (op.schema.arguments[i].isList)
      number = list.number();
  }
  Number number = call(op, numbers, targets);
  for (size_t i = 0; i != targets.size(); ++i)
    if (targets[i])
      write(*targets[i],
            result(op, number, i, *targets[i]->layout, targets[i]->dtype),
            op.isPointwise);
}

void Machine::copy(const Window &source, const Window &target) {
  beginCommand();
  move(source, target);
}

void Machine::move(const Window &source, const Window &target) {
  operands.push_back(&source);
  Content content = memory.readPacked(source);
  if (source.dtype != target.dtype)
    content = values.cast(content, target.dtype);
  write(target, content);
}

void Machine::zero(const Window &target) {
  beginCommand();
  write(target, Values::zero(target.dtype, target.layout->numel));
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

/// Collectives know memory, not tensors: both sides are its elements in their
/// order there.
template <typename Change>
void Machine::communicate(const Window &source, const Window &target,
                          bool mayOverlap, const Change &change) {
  beginCommand();
  Layout from = Layout::vector(source.layout->numel),
         to = Layout::vector(target.layout->numel);
  Window own = source.at(0, from);
  operands.push_back(&own);
  Content content = memory.readPacked(own);
  write(target.at(0, to), change(content), mayOverlap);
  operands.clear(); // the window is gone
}

void Machine::allGather(const Window &source, const Window &target,
                        uint64_t axes) {
  communicate(source, target, false, [&](const Content &content) {
    return values.gather(content, axes, source.layout->numel);
  });
}

void Machine::keepPiece(const Window &source, const Window &target,
                        uint64_t axes) {
  communicate(source, target, false, [&](const Content &content) {
    return values.scatter(content, axes, target.layout->numel);
  });
}

void Machine::reduceScatter(const Window &source, const Window &target,
                            uint64_t axes, Values::Divisors divisors,
                            DType via) {
  communicate(source, target, false, [&](const Content &content) {
    Content sum =
        values.sum(content, axes, divisors, via, source.layout->numel);
    return values.scatter(sum, axes, target.layout->numel);
  });
}

void Machine::allReduce(const Window &source, const Window &target,
                        uint64_t axes, Values::Divisors divisors, DType via,
                        ReduceKind kind) {
  communicate(source, target, /*mayOverlap=*/true, [&](const Content &content) {
    return values.sum(content, axes, divisors, via, source.layout->numel, kind);
  });
}

void Machine::describeEffects(Meanings &meanings) {
  if (effects.count)
    meanings["sequence of effects"] =
        describe(Content::vector(effects.latest, 1), effects.latest);
}

} // namespace fsdp::symbolic
