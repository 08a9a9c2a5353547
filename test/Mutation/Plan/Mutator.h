//===- Mutator.h - Random damage to plan files ------------------*- C++ -*-===//
//
// Knows the plan file by its schema alone: every number and every vector of the
// file is found by reflection and may be changed, so a field that is added to
// the schema is attacked without a line here.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_TEST_MUTATION_PLAN_MUTATOR_H
#define FSDP_TEST_MUTATION_PLAN_MUTATOR_H

#include <flatbuffers/idl.h>
#include <flatbuffers/reflection.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace fsdp::test {

class Mutator {
public:
  /// `schema`: the text of plan.fbs; `plan`: a well-formed FlatBuffer of it.
  Mutator(const std::string &schema, const uint8_t *plan);

  /// The plan as the mutants have it: with every number of its own, also those
  /// that are the default.
  const std::vector<uint8_t> &original() const { return bytes; }

  struct Mutant {
    std::vector<uint8_t> bytes;
    std::string field; ///< The first that was damaged: "Launch.args".
    std::string what;  ///< For people.
  };
  /// Damages `count` places.
  Mutant make(std::mt19937_64 &random, unsigned count) const;

private:
  /// A number, or a vector as a whole, at some place of `bytes`.
  struct Slot {
    size_t place;
    reflection::BaseType type;
    bool isVector;
    size_t itemSize; ///< Of a vector.
  };
  using Object = reflection::Object;

  flatbuffers::Offset<flatbuffers::Table>
  copyTable(flatbuffers::FlatBufferBuilder &fbb, const Object &object,
            const flatbuffers::Table &table) const;
  flatbuffers::uoffset_t copyVector(flatbuffers::FlatBufferBuilder &fbb,
                                    const reflection::Field &field,
                                    const flatbuffers::Table &table) const;
  void findInTable(const Object &object, const flatbuffers::Table &table);
  void findInVector(const reflection::Field &field, const std::string &name,
                    const flatbuffers::Table &table);
  void add(const std::string &name, const void *place,
           reflection::BaseType type, bool isVector = false,
           size_t itemSize = 0);
  const Object &getObject(int index) const {
    return *schema->objects()->Get(static_cast<unsigned>(index));
  }

  std::string changeNumber(std::mt19937_64 &random, const std::string &name,
                           const Slot &slot, std::vector<uint8_t> &copy) const;
  std::string changeVector(std::mt19937_64 &random, const Slot &slot,
                           std::vector<uint8_t> &copy) const;

  flatbuffers::Parser parser;
  const reflection::Schema *schema = nullptr;
  std::vector<uint8_t> bytes;
  std::map<std::string, std::vector<Slot>> slots; // by field
  std::vector<std::pair<const std::string *, const Slot *>> all;
};

} // namespace fsdp::test

#endif // FSDP_TEST_MUTATION_PLAN_MUTATOR_H
