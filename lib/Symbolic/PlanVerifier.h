//===- PlanVerifier.h - The run of a plan over numbers ----------*- C++ -*-===//

#ifndef FSDP_LIB_SYMBOLIC_PLANVERIFIER_H
#define FSDP_LIB_SYMBOLIC_PLANVERIFIER_H

#include "fsdp/Symbolic/Machine.h"
#include "fsdp/Symbolic/VerifyPlan.h"

#include <deque>

namespace fsdp::symbolic {

namespace pf = fsdp::planfile;

using pf::BufferRole;
using pf::none;
using pf::Role;

/// Which commands of a program run.
using Roles = unsigned;
constexpr Roles bit(Role role) { return 1u << static_cast<unsigned>(role); }
constexpr Roles forward = bit(Role::Forward);
constexpr Roles gradients = forward | bit(Role::Backward);
constexpr Roles all = gradients | bit(Role::Update);

class PlanVerifier {
public:
  /// `isRecording`: so that differences can be told in words.
  PlanVerifier(const pf::Plan &plan, const Ranks &ranks, bool isRecording)
      : plan(plan), machine(ranks) {
    machine.values.isRecording = isRecording;
  }
  Proof run();

private:
  /// A program under way.
  struct Run {
    Memory memory;
    Machine::Effects effects = {};
    std::array<Clock, numStreams> clocks = {};
    std::vector<Clock> events = {};
    /// Of each set of axes, as bits: its latest collective on each stream.
    std::map<uint64_t, Clock> collectives = {};
    uint32_t group = none; // of the latest command
    int32_t first = 0;     // of that group
    int32_t position = 0;  // of the next command
  };

  void readTables();
  void readUnits();
  void setInitialContent();
  void setGathered(const pf::Program &own);
  Run begin(const pf::Program &program);
  Run runProgram(const pf::Program &program, Roles roles, Run run);
  void checkGroups(const pf::Command &command, const Clock &done, Run &run);
  void runCommand(const pf::Command &command);
  void runLaunch(const pf::Launch &launch);
  void runUpdate(const pf::Update &update);
  void runMeasure(const pf::Measure &measure);
  Proof checkMesh() const;
  Proof checkMicroBatches() const;
  Proof checkParameters() const;
  bool hasMeaning(std::string_view what) const;
  bool means(std::string_view what, uint64_t number) const;
  Proof verifyUpdate(const pf::Program &own);
  Proof verifyProgram();
  Meanings describe(Roles roles);
  Proof check();
  Proof compare(Roles roles, const Meanings &found);
  Proof tellDifference(const std::string &end, const std::string &name,
                       const Meaning &found, size_t index) const;

  uint64_t getAxes(uint32_t communicator) const;
  uint64_t getAxis(uint32_t axis) const;
  std::string_view nameOf(uint32_t index) const {
    return index == none ? std::string_view()
                         : plan.strings()->Get(index)->string_view();
  }
  Content getModelBuffer(const pf::Buffer &buffer) const;
  std::string nameOfBuffer(uint32_t index) const;
  std::string nameOfCommand(int32_t position) const;
  std::string explain(const Problem &problem) const;

  const pf::Plan &plan;
  Machine machine;
  std::deque<Layout> layouts; // what windows point to
  std::vector<Window> windows;
  std::vector<Literal> literals;
  std::vector<const Operator *> operators;
  std::vector<Unit> units;
  // The run.
  uint32_t program = 0;
  int32_t position = 0;
  std::string message;
};

} // namespace fsdp::symbolic

#endif // FSDP_LIB_SYMBOLIC_PLANVERIFIER_H
