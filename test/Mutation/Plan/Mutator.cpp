//===- Mutator.cpp - Random damage to plan files --------------------------===//

#include "Mutator.h"

#include <array>
#include <cstring>
#include <set>

using namespace fsdp::test;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using flatbuffers::Table;
using flatbuffers::uoffset_t;
using flatbuffers::Vector;
using reflection::BaseType;
using reflection::Field;

/// What is there for people to read; the digest is made anew.
static bool isText(const std::string &name) {
  static const std::set<std::string> texts = {
      "Command.node", "Command.scope", "Plan.notes",   "Plan.producer",
      "Plan.digest",  "Plan.strategy", "Plan.strings", "Plan.version"};
  return texts.count(name) != 0;
}

static std::string getName(const reflection::Object &object,
                           const Field &field) {
  std::string name = object.name()->str();
  return name.substr(name.rfind('.') + 1) + "." + field.name()->str();
}

static bool isScalar(BaseType type) {
  return type >= BaseType::UType && type <= BaseType::Double;
}

static bool isReal(BaseType type) {
  return type == BaseType::Float || type == BaseType::Double;
}

Mutator::Mutator(const std::string &text, const uint8_t *plan) {
  if (!parser.Parse(text.c_str()))
    throw std::runtime_error("plan.fbs: " + parser.error_);
  parser.Serialize();
  schema = reflection::GetSchema(parser.builder_.GetBufferPointer());
  FlatBufferBuilder fbb;
  fbb.ForceDefaults(true);
  auto root =
      copyTable(fbb, *schema->root_table(), *flatbuffers::GetRoot<Table>(plan));
  fbb.Finish(root, schema->file_ident()->c_str());
  bytes.assign(fbb.GetBufferPointer(), fbb.GetBufferPointer() + fbb.GetSize());
  findInTable(*schema->root_table(),
              *flatbuffers::GetRoot<Table>(bytes.data()));
  for (const auto &[name, list] : slots)
    for (const Slot &slot : list)
      all.emplace_back(&name, &slot);
}

//===----------------------------------------------------------------------===//
// A copy in which all numbers have a place
//===----------------------------------------------------------------------===//

uoffset_t Mutator::copyVector(FlatBufferBuilder &fbb, const Field &field,
                              const Table &table) const {
  const auto *vector =
      table.GetPointer<const Vector<uint8_t> *>(field.offset());
  BaseType element = field.type()->element();
  int index = field.type()->index();
  bool isStruct = element == BaseType::Obj && getObject(index).is_struct();
  if (isScalar(element) || isStruct) {
    size_t size = isStruct ? static_cast<size_t>(getObject(index).bytesize())
                           : flatbuffers::GetTypeSize(element);
    // Embedded tensors are as aligned as the compiler has them.
    if (size == 1)
      fbb.ForceVectorAlignment(vector->size(), 1, 16);
    fbb.StartVector(vector->size(), size);
    fbb.PushBytes(vector->Data(), vector->size() * size);
    return fbb.EndVector(vector->size());
  }
  std::vector<Offset<void>> offsets;
  const auto *items =
      table.GetPointer<const Vector<Offset<Table>> *>(field.offset());
  for (uoffset_t i = 0; i != vector->size(); ++i) {
    if (element == BaseType::String)
      offsets.push_back(
          fbb.CreateString(
                 table
                     .GetPointer<const Vector<Offset<flatbuffers::String>> *>(
                         field.offset())
                     ->Get(i))
              .Union());
    else
      offsets.push_back(
          copyTable(fbb, getObject(index), *items->Get(i)).Union());
  }
  return fbb.CreateVector(offsets).o;
}

Offset<Table> Mutator::copyTable(FlatBufferBuilder &fbb, const Object &object,
                                 const Table &table) const {
  std::map<uint16_t, uoffset_t> children;
  for (const Field *field : *object.fields()) {
    if (!table.CheckField(field->offset()))
      continue;
    switch (field->type()->base_type()) {
    case BaseType::String:
      children[field->offset()] =
          fbb.CreateString(
                 table.GetPointer<const flatbuffers::String *>(field->offset()))
              .o;
      break;
    case BaseType::Vector:
      children[field->offset()] = copyVector(fbb, *field, table);
      break;
    case BaseType::Union:
      children[field->offset()] =
          copyTable(fbb,
                    flatbuffers::GetUnionType(*schema, object, *field, table),
                    *table.GetPointer<const Table *>(field->offset()))
              .o;
      break;
    default:
      break;
    }
  }
  uoffset_t start = fbb.StartTable();
  // Large numbers first, so that all are aligned without holes.
  for (size_t size : {8, 4, 2, 1})
    for (const Field *field : *object.fields()) {
      BaseType type = field->type()->base_type();
      if (auto child = children.find(field->offset());
          child != children.end()) {
        if (size == 4)
          fbb.AddOffset(field->offset(), Offset<void>(child->second));
      } else if (isScalar(type) && flatbuffers::GetTypeSize(type) == size) {
        std::array<uint8_t, 8> value{};
        if (table.CheckField(field->offset()))
          std::memcpy(value.data(), table.GetAddressOf(field->offset()), size);
        else if (isReal(type))
          flatbuffers::SetAnyValueF(type, value.data(), field->default_real());
        else
          flatbuffers::SetAnyValueI(type, value.data(),
                                    field->default_integer());
        fbb.Align(size);
        fbb.PushBytes(value.data(), size);
        fbb.TrackField(field->offset(), fbb.GetSize());
      }
    }
  return Offset<Table>(fbb.EndTable(start));
}

//===----------------------------------------------------------------------===//
// Finding the places
//===----------------------------------------------------------------------===//

void Mutator::add(const std::string &name, const void *place, BaseType type,
                  bool isVector, size_t itemSize) {
  if (!isText(name))
    slots[name].push_back(
        {static_cast<size_t>(static_cast<const uint8_t *>(place) -
                             bytes.data()),
         type, isVector, itemSize});
}

void Mutator::findInVector(const Field &field, const std::string &name,
                           const Table &table) {
  const auto *vector =
      table.GetPointer<const Vector<uint8_t> *>(field.offset());
  BaseType element = field.type()->element();
  if (isScalar(element)) {
    size_t size = flatbuffers::GetTypeSize(element);
    add(name, vector, element, true, size);
    // One byte stands for all of a tensor.
    uoffset_t count = size == 1 ? std::min(vector->size(), 1u) : vector->size();
    for (uoffset_t i = 0; i != count; ++i)
      add(name, vector->Data() + i * size, element);
    return;
  }
  if (element != BaseType::Obj) {
    add(name, vector, element, true, sizeof(uoffset_t));
    return;
  }
  const Object &object = getObject(field.type()->index());
  if (!object.is_struct()) {
    add(name, vector, element, true, sizeof(uoffset_t));
    const auto *items =
        table.GetPointer<const Vector<Offset<Table>> *>(field.offset());
    for (uoffset_t i = 0; i != vector->size(); ++i)
      findInTable(object, *items->Get(i));
    return;
  }
  size_t size = static_cast<size_t>(object.bytesize());
  add(name, vector, BaseType::Byte, true, size);
  for (uoffset_t i = 0; i != vector->size(); ++i)
    for (const Field *inner : *object.fields())
      add(getName(object, *inner), vector->Data() + i * size + inner->offset(),
          inner->type()->base_type());
}

void Mutator::findInTable(const Object &object, const Table &table) {
  for (const Field *field : *object.fields()) {
    if (!table.CheckField(field->offset()))
      continue;
    std::string name = getName(object, *field);
    BaseType type = field->type()->base_type();
    if (isScalar(type))
      add(name, table.GetAddressOf(field->offset()), type);
    else if (type == BaseType::Vector)
      findInVector(*field, name, table);
    else if (type == BaseType::Union)
      findInTable(flatbuffers::GetUnionType(*schema, object, *field, table),
                  *table.GetPointer<const Table *>(field->offset()));
  }
}

//===----------------------------------------------------------------------===//
// Damage
//===----------------------------------------------------------------------===//

std::string Mutator::changeNumber(std::mt19937_64 &random,
                                  const std::string &name, const Slot &slot,
                                  std::vector<uint8_t> &copy) const {
  uint8_t *place = copy.data() + slot.place;
  size_t size = flatbuffers::GetTypeSize(slot.type);
  auto spell = [&] {
    return flatbuffers::GetAnyValueS(slot.type, place, nullptr, 0);
  };
  std::string before = spell();
  const std::vector<Slot> &alike = slots.at(name);
  const Slot &other = alike[random() % alike.size()];
  unsigned choice = random() % 8;
  if (choice < 3 && !other.isVector) {
    std::memcpy(place, bytes.data() + other.place, size);
  } else if (isReal(slot.type)) {
    double value = flatbuffers::GetAnyValueF(slot.type, place);
    const double values[] = {value * 2, value / 2, -value,    0,
                             1,         1e300,     value + 1, -1e-300};
    flatbuffers::SetAnyValueF(slot.type, place, values[random() % 8]);
  } else {
    auto value = flatbuffers::GetAnyValueI(slot.type, place);
    const int64_t values[] = {value + 1,
                              value - 1,
                              value * 2,
                              value / 2,
                              0,
                              -1,
                              value ^ (int64_t(1) << random() % 63),
                              int64_t(random() % 16)};
    flatbuffers::SetAnyValueI(slot.type, place, values[random() % 8]);
  }
  return before + " -> " + spell();
}

std::string Mutator::changeVector(std::mt19937_64 &random, const Slot &slot,
                                  std::vector<uint8_t> &copy) const {
  auto *count = reinterpret_cast<uoffset_t *>(copy.data() + slot.place);
  uint8_t *items = copy.data() + slot.place + sizeof(uoffset_t);
  if (*count == 0)
    return "empty";
  bool isOffsets = !isScalar(slot.type) && slot.itemSize == sizeof(uoffset_t);
  size_t size = slot.itemSize;
  uoffset_t first = random() % *count, second = random() % *count;
  // Offsets count from where they stand.
  auto move = [&](std::vector<uint8_t> &item, uoffset_t from, uoffset_t to) {
    if (isOffsets) {
      uoffset_t offset;
      std::memcpy(&offset, item.data(), sizeof offset);
      offset += (from - to) * sizeof offset;
      std::memcpy(item.data(), &offset, sizeof offset);
    }
    std::memcpy(items + to * size, item.data(), size);
  };
  auto get = [&](uoffset_t i) {
    return std::vector<uint8_t>(items + i * size, items + (i + 1) * size);
  };
  std::string place = std::to_string(first);
  switch (random() % 3) {
  case 0:
    for (uoffset_t i = first + 1; i < *count; ++i) {
      auto item = get(i);
      move(item, i, i - 1);
    }
    --*count;
    return "without " + place;
  case 1: {
    auto one = get(first), other = get(second);
    move(one, first, second);
    move(other, second, first);
    return place + " exchanged with " + std::to_string(second);
  }
  default:
    auto item = get(first);
    move(item, first, second);
    return place + " also at " + std::to_string(second);
  }
}

Mutator::Mutant Mutator::make(std::mt19937_64 &random, unsigned count) const {
  Mutant mutant{bytes, {}, {}};
  for (unsigned i = 0; i != count; ++i) {
    // Fields that a plan has once are as worthwhile as those of all commands.
    const std::string *name;
    const Slot *slot;
    if (random() % 2) {
      std::tie(name, slot) = all[random() % all.size()];
    } else {
      auto field = std::next(slots.begin(), long(random() % slots.size()));
      name = &field->first;
      slot = &field->second[random() % field->second.size()];
    }
    std::string change = slot->isVector
                             ? changeVector(random, *slot, mutant.bytes)
                             : changeNumber(random, *name, *slot, mutant.bytes);
    mutant.field = i == 0 ? *name : mutant.field;
    const std::vector<Slot> &alike = slots.at(*name);
    mutant.what += (i ? "; " : "") + *name + " [" +
                   std::to_string(slot - alike.data()) + "] " + change;
  }
  return mutant;
}
