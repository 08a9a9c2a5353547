//===- PlanCheck.h - What a plan must mean ----------------------*- C++ -*-===//
//
// The checks after the FlatBuffers verifier, which looks at neither enums,
// unions, nor the alignment of vectors, and knows no meaning: every index in
// range, every buffer inside its memory, every event recorded before it is
// waited for, every operator known and safe, every collective of fitting size.
// No torch: that the operators exist as written is for the runtime to compare.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_LIB_PLANFILE_PLANCHECK_H
#define FSDP_LIB_PLANFILE_PLANCHECK_H

#include "fsdp/Archive/DType.h"
#include "fsdp/Operators/OperatorSchema.h"
#include "fsdp/PlanFile/PlanFile.h"

#include <map>
#include <set>

namespace fsdp::planfile {

/// Where something stands in the plan: `units[0] (h.0).parameters[3] (wte)`.
/// Becomes text only where something is rejected.
class Place {
public:
  Place(const char *list, size_t index, std::string_view name = {},
        const Place *parent = nullptr)
      : list(list), index(index), name(name), parent(parent) {}
  std::string text() const;

private:
  const char *list;
  size_t index;
  std::string_view name;
  const Place *parent;
};

/// The spelling of an element type that is in range.
std::string_view spell(DType dtype);
bool isFloat(DType dtype);

/// Checks one plan, table by table; each relies on those before it.
class PlanChecker {
public:
  /// `size`: of the plan in bytes.
  PlanChecker(const Plan &plan, size_t size) : plan(plan), budget(size) {}

  /// Returns why the plan is rejected: `<where>: expected <x>, found <y>`; or
  /// nothing.
  std::string run();

private:
  /// The bytes of a buffer, counted from the start of its arena.
  struct Window {
    uint64_t begin = 0, end = 0, numel = 0;
    bool isInjective = false; // each element has bytes of its own
    bool isDense = false;     // and there are no holes
    bool isRowMajor = false;  // and they are in order
  };

  // All of these return false after `message` has been set.
  bool reject(std::string where, std::string_view expected,
              std::string_view found);
  bool checkIndex(const Place &place, const char *what, uint32_t index,
                  size_t count);
  /// In range; who reads the string pays for its length.
  bool checkString(const Place &place, uint32_t index) {
    return checkIndex(place, "string", index, plan.strings()->size()) &&
           spend(place, nameOf(index).size() / 8);
  }
  /// A name of its kind that is given once.
  bool checkUnique(const Place &place, const char *what, std::string_view name);
  template <typename E>
  bool checkEnum(const Place &place, const char *what, E value) {
    return value <= E::MAX ||
           reject(place.text(), what, std::to_string(static_cast<int>(value)));
  }
  /// FlatBuffers lets several tables share one vector, so that a small file
  /// could make for endless work: all vectors together must fit into it once.
  bool spend(const Place &place, size_t count);
  /// `spend`, and that the elements, if there are any, are aligned.
  template <typename T>
  bool checkVector(const Place &place, const flatbuffers::Vector<T> &vector) {
    using Element = std::remove_pointer_t<T>;
    return spend(place, vector.size()) &&
           (vector.size() == 0 ||
            reinterpret_cast<uintptr_t>(vector.Data()) % alignof(Element) ==
                0 ||
            reject(place.text(), "aligned elements", "misaligned ones"));
  }

  bool checkHeader();
  bool checkShapes();
  bool checkConstants();
  bool checkOperators();
  bool checkCommunicators();
  bool checkBuffers();
  bool checkWindow(uint32_t index);
  bool checkRoot(uint32_t index);
  bool checkOverlaps();
  bool checkUnits();
  bool checkUnit(uint32_t index);
  bool checkAxes(const Place &place, const Unit &unit);
  bool checkParameter(const Place &place, const Unit &unit,
                      const Parameter &parameter, uint64_t &end);
  bool checkRole(uint32_t index);
  /// A dense buffer as large as a rank's piece of the unit.
  bool checkPiece(const Place &place, uint32_t unit, uint32_t index);
  bool checkReuse();
  bool checkDigests();
  bool checkMeaning();
  bool checkMeanings(const Place *owner,
                     const flatbuffers::Vector<const Meaning *> *meanings);

  bool checkPrograms();
  bool checkParts();
  bool checkPrediction(const Place &place, const Prediction &prediction);
  bool checkCommand(const Place &place, const Command &command);
  bool checkStep(const Place &place, const Command &command);
  bool checkSpaces(const Place &place, const Command &command);
  bool checkEvent(const Place &place, const Command &command);
  /// That a collective is on the stream of its communicator.
  bool checkStream(const Place &place, const Command &command);
  /// That a group's collectives stand in a row and are alike; `before` is the
  /// command ahead, or null.
  bool checkGroup(const Place &place, const Command *before,
                  const Command &command);
  bool checkOwner(const Place &place, uint32_t buffer);
  bool checkRead(const Place &place, uint32_t buffer, Role role);
  bool checkWrite(const Place &place, uint32_t buffer, Role role);
  /// Both, for all buffers of a command other than a launch: of these, the
  /// operator says which are written.
  bool checkBuffers(const Place &place, const Command &command);
  /// That no two buffers which one command writes share bytes.
  bool checkApart(const Place &place, std::vector<uint32_t> targets);
  bool checkLaunch(const Place &place, const Launch &launch, Role role);
  bool checkDraw(const Place &place, const Command &command);
  bool checkArgument(const Place &place,
                     const operators::OperatorSchema::Argument &argument,
                     int32_t value, Role role);
  template <typename Collective>
  bool checkCollective(const Place &place, const Collective &collective);
  template <typename Reduction>
  bool checkReduction(const Place &place, const Reduction &reduction);
  bool checkUpdate(const Place &place, const Update &update);
  bool checkUpdated(const Place &place, const Unit &unit, uint32_t buffer);
  bool checkUpdateState(const Place &place, const Update &update,
                        uint32_t state);
  bool checkMeasure(const Place &place, const Measure &measure);
  bool checkAccumulate(const Place &place, const Accumulate &add);
  /// That a buffer is one number; `what` it is for.
  bool checkScalar(const Place &place, std::string_view what, uint32_t buffer,
                   DType dtype);
  bool checkIntervals(const Place &place, const Unit &unit,
                      const flatbuffers::Vector<const Interval *> &intervals);

  std::string_view nameOf(uint32_t index) const;
  std::string describeBuffer(uint32_t index) const;
  /// `name` as that of something of the program which owns the buffer.
  std::string ofProgram(const Buffer &buffer, std::string_view name) const;
  const Buffer &buffer(uint32_t index) const {
    return *plan.buffers()->Get(index);
  }

  const Plan &plan;
  size_t budget;
  uint64_t numRanks = 1;
  std::string message;
  std::vector<operators::OperatorSchema> schemas;
  std::vector<bool> keepStrides;    // of the operators: `out` may have any
  std::vector<bool> areRandom;      // of the operators
  std::vector<uint64_t> groupSizes; // of the communicators
  std::vector<Window> windows;      // of the buffers
  std::set<std::string> names;
  Part getPart() const { return plan.programs()->Get(program)->part(); }
  uint32_t program = 0; // the current one
  // Model buffers that Init commands read, and the first program that writes a
  // buffer with other commands: both by root.
  std::set<uint32_t> readOnce;
  std::map<uint32_t, uint32_t> writers;
  // Of the current program: the stream that recorded each event, or -1.
  std::vector<int> recorders;
  // And the groups of collectives so far.
  std::set<uint32_t> groups;
};

} // namespace fsdp::planfile

#endif // FSDP_LIB_PLANFILE_PLANCHECK_H
