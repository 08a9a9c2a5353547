//===- PlanMutator.cpp - Damages the fields of a plan ---------------------===//

#include "PlanMutator.h"

#include "TextMutator.h"
#include "fsdp/PlanFile/PlanFile.h"
#include "mutable_plan_bfbs_generated.h"
#include "mutable_plan_generated.h"

#include <algorithm>
#include <cstring>
#include <flatbuffers/reflection.h>
#include <map>
#include <set>
#include <string_view>

using namespace fsdp;
using namespace fsdp::fuzz;
using flatbuffers::uoffset_t;
using reflection::BaseType;

namespace {

constexpr size_t trailerSize = 16;

const reflection::Schema &getSchema() {
  return *reflection::GetSchema(mutableplan::PlanBinarySchema::data());
}

/// Where something that can be changed lies, counted from the begin.
struct Scalar {
  size_t place;
  BaseType type;
};
struct List {
  size_t reference; // of the offset that leads to it
  size_t place;     // of the length
  size_t elementSize;
  bool hasOffsets; // its elements are tables or strings
};

/// All scalars and vectors of a well-formed plan.
class Fields {
public:
  explicit Fields(std::vector<uint8_t> &plan) : plan(plan) {
    addTable(flatbuffers::GetAnyRoot(plan.data()), *getSchema().root_table());
  }

  std::vector<Scalar> scalars;
  /// Those of the same field of the same kind of table.
  std::map<const reflection::Field *, std::vector<Scalar>> byField;
  std::vector<List> lists;

private:
  size_t placeOf(const void *address) const {
    return static_cast<size_t>(static_cast<const uint8_t *>(address) -
                               plan.data());
  }
  void addScalar(const reflection::Field &field, const void *address,
                 BaseType type) {
    scalars.push_back({placeOf(address), type});
    byField[&field].push_back(scalars.back());
  }
  void addStruct(const uint8_t *address, const reflection::Object &object) {
    for (const reflection::Field *field : *object.fields())
      addScalar(*field, address + field->offset(), field->type()->base_type());
  }
  void addTable(const flatbuffers::Table *table,
                const reflection::Object &object);
  void addVector(const reflection::Field &field,
                 const flatbuffers::Table &table);

  std::vector<uint8_t> &plan;
  std::set<const void *> seen; // several may share one
};

void Fields::addTable(const flatbuffers::Table *table,
                      const reflection::Object &object) {
  if (!seen.insert(table).second)
    return;
  for (const reflection::Field *field : *object.fields()) {
    if (!table->CheckField(field->offset()))
      continue;
    BaseType type = field->type()->base_type();
    if (flatbuffers::IsScalar(type))
      addScalar(*field, table->GetAddressOf(field->offset()), type);
    else if (type == BaseType::Vector)
      addVector(*field, *table);
    else if (type == BaseType::Obj)
      addTable(flatbuffers::GetFieldT(*table, *field),
               *getSchema().objects()->Get(field->type()->index()));
    else if (type == BaseType::Union) {
      const reflection::Enum &variants =
          *getSchema().enums()->Get(field->type()->index());
      std::string typeName = field->name()->str() + "_type";
      const reflection::Field &typeField =
          *object.fields()->LookupByKey(typeName.c_str());
      const reflection::EnumVal *variant = variants.values()->LookupByKey(
          flatbuffers::GetFieldI<uint8_t>(*table, typeField));
      if (variant && variant->union_type()->base_type() == BaseType::Obj)
        addTable(flatbuffers::GetFieldT(*table, *field),
                 *getSchema().objects()->Get(variant->union_type()->index()));
    }
  }
}

void Fields::addVector(const reflection::Field &field,
                       const flatbuffers::Table &table) {
  const flatbuffers::VectorOfAny &vector =
      *flatbuffers::GetFieldAnyV(table, field);
  BaseType element = field.type()->element();
  int index = field.type()->index();
  size_t elementSize =
      flatbuffers::GetTypeSizeInline(element, index, getSchema());
  const reflection::Object *object =
      element == BaseType::Obj ? getSchema().objects()->Get(index) : nullptr;
  bool isStruct = object && object->is_struct();
  bool hasOffsets = !flatbuffers::IsScalar(element) && !isStruct;
  if (!seen.insert(&vector).second)
    return;
  lists.push_back({placeOf(table.GetAddressOf(field.offset())),
                   placeOf(&vector), elementSize, hasOffsets});
  for (uoffset_t i = 0; i != vector.size(); ++i) {
    const uint8_t *address = vector.Data() + i * elementSize;
    if (flatbuffers::IsScalar(element)) {
      if (elementSize != 1) // embedded content
        addScalar(field, address, element);
    } else if (isStruct) {
      addStruct(address, *object);
    } else if (object) {
      addTable(reinterpret_cast<const flatbuffers::Table *>(
                   address + flatbuffers::ReadScalar<uoffset_t>(address)),
               *object);
    }
  }
}

class Mutator {
public:
  Mutator(std::vector<uint8_t> &plan, Random &random)
      : plan(plan), random(random), fields(plan) {}

  void run() {
    if (random.once(3) && !fields.lists.empty())
      changeList(random.pick(fields.lists));
    else if (!fields.scalars.empty())
      changeScalar();
  }

private:
  void changeScalar();
  void changeList(const List &list);
  /// Element `from`, as element `to` would have to be written.
  bool readElement(const List &list, size_t from, size_t to,
                   uint64_t (&element)[4]) const;
  uint8_t *placeOf(const List &list, size_t index) const {
    return plan.data() + list.place + sizeof(uoffset_t) +
           index * list.elementSize;
  }

  std::vector<uint8_t> &plan;
  Random &random;
  Fields fields;
};

} // namespace

/// Numbers at which something may break: around powers of two, the largest.
static uint64_t pickInteger(Random &random, uint64_t before) {
  switch (random.below(6)) {
  case 0:
    return before + 1;
  case 1:
    return before - 1;
  case 2:
    return random.below(8);
  case 3:
    return uint64_t{1} << random.below(64);
  case 4:
    return ~uint64_t{0} >> random.below(64);
  default:
    return before * (2 + random.below(64));
  }
}

static double pickFloat(Random &random) {
  static constexpr double odd[] = {0, -1, 0.5, 3, 1e-320, 1e308, 1e39};
  size_t which = random.below(std::size(odd) + 2);
  return which < std::size(odd)    ? odd[which]
         : which == std::size(odd) ? std::numeric_limits<double>::infinity()
                                   : std::numeric_limits<double>::quiet_NaN();
}

void Mutator::changeScalar() {
  // Of each field as often, whether there are two or two thousand of it.
  auto entry = fields.byField.begin();
  std::advance(entry, random.below(fields.byField.size()));
  const Scalar &scalar = random.pick(entry->second);
  uint8_t *place = plan.data() + scalar.place;
  size_t size = flatbuffers::GetTypeSize(scalar.type);
  if (random.once(3)) {
    const Scalar &other = random.pick(entry->second);
    std::memcpy(place, plan.data() + other.place, size);
    return;
  }
  if (scalar.type == BaseType::Double) {
    double value = pickFloat(random);
    std::memcpy(place, &value, size);
    return;
  }
  uint64_t value = 0;
  std::memcpy(&value, place, size);
  value = pickInteger(random, value);
  std::memcpy(place, &value, size);
}

bool Mutator::readElement(const List &list, size_t from, size_t to,
                          uint64_t (&element)[4]) const {
  if (list.elementSize > sizeof element)
    return false;
  const uint8_t *place = placeOf(list, from);
  std::memcpy(element, place, list.elementSize);
  if (!list.hasOffsets)
    return true;
  // Offsets count from where they lie, and forward only.
  auto target = static_cast<size_t>(place - plan.data()) +
                flatbuffers::ReadScalar<uoffset_t>(place);
  auto base = static_cast<size_t>(placeOf(list, to) - plan.data());
  auto offset = static_cast<uoffset_t>(target - base);
  std::memcpy(element, &offset, sizeof offset);
  return target > base;
}

void Mutator::changeList(const List &list) {
  size_t length = flatbuffers::ReadScalar<uoffset_t>(plan.data() + list.place);
  uint64_t first[4] = {}, second[4] = {};
  switch (length == 0 ? 3 : random.below(4)) {
  case 0: { // two exchanged
    size_t a = random.below(length), b = random.below(length);
    if (readElement(list, a, b, first) && readElement(list, b, a, second)) {
      std::memcpy(placeOf(list, b), first, list.elementSize);
      std::memcpy(placeOf(list, a), second, list.elementSize);
    }
    return;
  }
  case 1: { // one in place of another
    size_t a = random.below(length), b = random.below(length);
    if (readElement(list, a, b, first))
      std::memcpy(placeOf(list, b), first, list.elementSize);
    return;
  }
  case 2: // the last are gone
    flatbuffers::WriteScalar<uoffset_t>(
        plan.data() + list.place,
        static_cast<uoffset_t>(length - std::min(length, 1 + random.below(3))));
    return;
  default: { // one more, in a copy at the end
    if (list.hasOffsets || length == 0)
      return; // offsets only lead forward
    std::vector<uint8_t> copy(placeOf(list, 0), placeOf(list, length));
    const uint8_t *more = placeOf(list, random.below(length));
    copy.insert(copy.end(), more, more + list.elementSize);
    // The length stands in front of the elements, which are aligned to 8.
    size_t place = (plan.size() + sizeof(uoffset_t) + 7) / 8 * 8;
    plan.resize(place);
    plan.insert(plan.end(), copy.begin(), copy.end());
    place -= sizeof(uoffset_t);
    flatbuffers::WriteScalar(plan.data() + place,
                             static_cast<uoffset_t>(length + 1));
    flatbuffers::WriteScalar(plan.data() + list.reference,
                             static_cast<uoffset_t>(place - list.reference));
    return;
  }
  }
}

/// The check says which digest it expects; an attacker would listen.
static void repairDigests(std::vector<uint8_t> &file) {
  constexpr std::string_view where = ": digest[", expected = "]: expected ";
  for (int i = 0; i != 8; ++i) {
    auto opened = planfile::PlanFile::fromBytes("", file);
    if (opened)
      return;
    const std::string &message = opened.error().message;
    if (message.compare(0, where.size(), where) != 0)
      return;
    size_t index = std::stoul(message.substr(where.size()));
    size_t begin = message.find(expected);
    const flatbuffers::String &digest =
        *planfile::GetPlan(file.data())
             ->digest()
             ->Get(static_cast<uoffset_t>(index));
    constexpr size_t digits = 16;
    if (begin == message.npos || digest.size() != digits)
      return;
    size_t place =
        reinterpret_cast<const uint8_t *>(digest.data()) - file.data();
    std::memcpy(file.data() + place, message.data() + begin + expected.size(),
                digits);
    file = planfile::appendTrailer(file.data(), file.size() - trailerSize);
  }
}

/// The same plan with a place for every field, also those with the value that
/// stands for an absent one. Expects one that is accepted: well-formed ones may
/// have unions of no kind, which can't be packed.
static void writeAllFields(std::vector<uint8_t> &plan) {
  flatbuffers::FlatBufferBuilder builder;
  builder.ForceDefaults(true);
  builder.Finish(mutableplan::Plan::Pack(
                     builder, mutableplan::UnPackPlan(plan.data()).get()),
                 mutableplan::PlanIdentifier());
  plan.assign(builder.GetBufferPointer(),
              builder.GetBufferPointer() + builder.GetSize());
}

std::vector<uint8_t> fsdp::fuzz::mutatePlan(std::vector<uint8_t> file,
                                            Random &random, size_t maxSize) {
  std::vector<uint8_t> plan = file;
  plan.resize(plan.size() - std::min(plan.size(), trailerSize));
  auto isWellFormed = [&] {
    flatbuffers::Verifier verifier(plan.data(), plan.size(), 16,
                                   static_cast<uoffset_t>(plan.size() / 4));
    return planfile::VerifyPlanBuffer(verifier);
  };
  if (random.once(16) || !isWellFormed()) {
    std::string bytes(plan.begin(), plan.end());
    bytes = mutateBytes(bytes, maxSize - std::min(maxSize, trailerSize));
    plan.assign(bytes.begin(), bytes.end());
  } else {
    if (random.once(32) && planfile::PlanFile::fromBytes("", file))
      writeAllFields(plan);
    do
      Mutator(plan, random).run();
    while (!random.once(2) && isWellFormed());
  }
  std::vector<uint8_t> result =
      planfile::appendTrailer(plan.data(), plan.size());
  if (result.size() > maxSize)
    return file;
  repairDigests(result);
  return result;
}
