//===- PlanTables.cpp - What a plan says ahead of its commands ------------===//
//
// Windows, operators and units; and what is in memory when a program starts.
//
//===----------------------------------------------------------------------===//

#include "PlanVerifier.h"

#include <xxhash.h>

namespace fsdp::symbolic {

//===----------------------------------------------------------------------===//
// Tables
//===----------------------------------------------------------------------===//

static Literal getLiteral(const pf::Constant &constant) {
  Literal literal;
  literal.kind = constant.value_type();
  auto set = [&](const auto &values, auto &list) {
    list.assign(values.begin(), values.end());
  };
  switch (literal.kind) {
  case pf::Value::Int:
    literal.integers = {constant.value_as_Int()->value()};
    break;
  case pf::Value::Float:
    literal.floats = {constant.value_as_Float()->value()};
    break;
  case pf::Value::Bool:
    literal.integers = {constant.value_as_Bool()->value()};
    break;
  case pf::Value::Text:
    literal.text = constant.value_as_Text()->value()->str();
    break;
  case pf::Value::Ints:
    set(*constant.value_as_Ints()->values(), literal.integers);
    break;
  case pf::Value::Floats:
    set(*constant.value_as_Floats()->values(), literal.floats);
    break;
  case pf::Value::Bools:
    set(*constant.value_as_Bools()->values(), literal.integers);
    break;
  case pf::Value::Type:
    literal.integers = {int64_t(constant.value_as_Type()->value())};
    break;
  case pf::Value::MemoryFormat:
    literal.integers = {int64_t(constant.value_as_MemoryFormat()->value())};
    break;
  default:
    break;
  }
  return literal;
}

/// An axis of the mesh as a bit, if it has more than one rank.
uint64_t PlanVerifier::getAxis(uint32_t axis) const {
  return plan.mesh()->Get(axis)->size() == 1 ? 0 : uint64_t(1) << axis;
}

/// The axes of more than one rank along which a communicator reaches.
uint64_t PlanVerifier::getAxes(uint32_t communicator) const {
  uint64_t axes = 0;
  for (uint32_t axis : *plan.communicators()->Get(communicator)->axes())
    axes |= getAxis(axis);
  return axes;
}

void PlanVerifier::readTables() {
  // Buffers share their shapes.
  std::map<std::pair<uint32_t, uint32_t>, const Layout *> known;
  for (uint32_t i = 0; i != plan.buffers()->size(); ++i) {
    const pf::Buffer &buffer = *plan.buffers()->Get(i);
    const Layout *&layout = known[{buffer.sizes(), buffer.strides()}];
    if (!layout) {
      const auto &sizes = *plan.shapes()->Get(buffer.sizes())->values();
      const auto &strides = *plan.shapes()->Get(buffer.strides())->values();
      layout = &layouts.emplace_back(
          std::vector<int64_t>(sizes.begin(), sizes.end()),
          std::vector<int64_t>(strides.begin(), strides.end()));
    }
    windows.push_back({i, buffer.root(), buffer.space(), buffer.dtype(),
                       buffer.offset(), layout});
  }
  for (const pf::Constant *constant : *plan.constants())
    literals.push_back(getLiteral(*constant));
  for (const pf::Operator *op : *plan.operators())
    operators.push_back(
        &machine.getOperator(nameOf(op->name()), nameOf(op->schema())));
}

void PlanVerifier::readUnits() {
  for (const pf::Unit *unit : *plan.units()) {
    Unit &own = units.emplace_back();
    own.name = nameOf(unit->name());
    own.storage = unit->storage();
    own.reduce = unit->reduce();
    own.numel = unit->numel();
    own.shards = unit->shards();
    own.same = 0;
    for (const auto *axes : {unit->shard_axes(), unit->replicate_axes()})
      for (uint32_t i = 0; axes && i != axes->size(); ++i)
        (axes == unit->shard_axes() ? own.axes : own.same) |=
            getAxis(axes->Get(i));
    own.same |= own.axes;
    for (const pf::Parameter *parameter : *unit->parameters()) {
      uint64_t numel = 1;
      for (int64_t size : *plan.shapes()->Get(parameter->sizes())->values())
        numel *= static_cast<uint64_t>(size);
      own.parameters.push_back({nameOf(parameter->name()), parameter->offset(),
                                numel, parameter->trainable()});
    }
  }
}

static Number hashBytes(const pf::Buffer &buffer) {
  const auto *bytes = buffer.bytes();
  return bytes ? XXH3_64bits(bytes->Data(), bytes->size()) : 0;
}

/// What a buffer of the model holds before all commands.
Content PlanVerifier::getModelBuffer(const pf::Buffer &buffer) const {
  std::string_view name = nameOf(buffer.name());
  Key key("buffer", hashText(name), hashBytes(buffer), buffer.dtype());
  return Content::vector(key.number(), windows[buffer.root()].layout->numel,
                         pf::isGradScalerState(name) ? everywhere : 0);
}

void PlanVerifier::setInitialContent() {
  for (uint32_t i = 0; i != windows.size(); ++i) {
    const pf::Buffer &buffer = *plan.buffers()->Get(i);
    const Window &window = windows[i];
    if (buffer.root() != i)
      continue;
    auto setVector = [&](const Key &key, std::string_view what, uint64_t same) {
      machine.values.note(key.number(), what);
      machine.memory.write(
          window, Content::vector(key.number(), window.layout->numel, same));
    };
    switch (buffer.role()) {
    case BufferRole::Shard:
    case BufferRole::OptimizerState: {
      const Unit &unit = units[buffer.owner()];
      std::string_view kind = buffer.role() == BufferRole::Shard
                                  ? "parameter"
                                  : nameOf(buffer.name());
      machine.writeFlat(unit, window, machine.initial(unit, kind));
      break;
    }
    case BufferRole::Accumulator: {
      const Unit &unit = units[buffer.owner()];
      machine.writeFlat(unit, window,
                        machine.accumulated(unit, nameOf(buffer.name())));
      break;
    }
    case BufferRole::ModelBuffer: {
      Content content = getModelBuffer(buffer);
      if (!content.parts.empty())
        machine.values.note(
            content.parts.front().base,
            std::string("buffer ").append(nameOf(buffer.name())));
      machine.memory.write(window, content);
      break;
    }
    case BufferRole::Constant:
      setVector(Key("constant", hashBytes(buffer), buffer.dtype()),
                std::string("constant ").append(nameOf(buffer.name())),
                everywhere);
      break;
    case BufferRole::Hyper:
      machine.memory.write(
          window, machine.hyper(buffer.index(), nameOf(buffer.name())));
      break;
    case BufferRole::Input: {
      // Data come by name, or by number where there is none.
      std::string name(nameOf(buffer.name()));
      Key key("input", buffer.index(), hashText(name), buffer.dtype());
      setVector(
          key,
          "input " + (name.empty() ? std::to_string(buffer.index()) : name), 0);
      break;
    }
    default:
      break;
    }
  }
}

/// What the first micro-batch of a step has gathered for the others.
void PlanVerifier::setGathered(const pf::Program &own) {
  if (own.part() != pf::Part::Middle && own.part() != pf::Part::Last)
    return;
  for (const Window &window : windows) {
    const pf::Buffer &buffer = *plan.buffers()->Get(window.buffer);
    if (buffer.root() == window.buffer &&
        buffer.role() == BufferRole::Unsharded)
      machine.memory.write(
          window, machine.unsharded(units[buffer.owner()], buffer.dtype()));
  }
}

} // namespace fsdp::symbolic
