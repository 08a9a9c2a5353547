//===- Decisions.h - What is decided about a step ---------------*- C++ -*-===//
//
// Every decision about a step, as plain integers keyed by program, unit or
// module, and phase. Presets, people and the search all make it.
//
// Places are counted in slots: places of a program at which a unit begins to be
// used in a phase, or at which the gradient of a unit begins or is complete. So
// a decision names no operation, and means the same after an edit of the model.
//
//===----------------------------------------------------------------------===//

#ifndef FSDP_PLANNER_DECISIONS_H
#define FSDP_PLANNER_DECISIONS_H

#include "fsdp/Archive/Expected.h"
#include "fsdp/Planner/StepModel.h"

#include <string>
#include <string_view>

namespace fsdp::planner {

/// The most slots between a launch and its use.
constexpr uint16_t mostSlots = 4096;

/// What of a gathered unit stays from the forward to the backward: nothing, all
/// of it, or a piece on each rank, which the backward gathers in a smaller
/// group.
enum class Keep : uint8_t { None, All, Piece };

/// What is decided of one unit in one program.
struct UnitDecision {
  struct Gather {
    bool joins = false; ///< The call of the gather before it, of this phase.
    /// How many slots before its first use it is launched, of the first unit of
    /// a call; not before the gather that precedes it.
    uint16_t ahead = 0;
  };
  struct Reduction {
    bool joins = false; ///< The call of the reduction before it.
    /// How many slots after its launch the compute stream waits for it, of the
    /// first unit of a call; at the latest where its result is read.
    uint16_t wait = 0;
  };

  Keep keep = Keep::None;
  std::array<Gather, numPhases> gathers = {};
  Reduction reduction = {};

  Gather &operator[](Phase phase) { return gathers[size_t(phase)]; }
  const Gather &operator[](Phase phase) const { return gathers[size_t(phase)]; }
};

struct ProgramDecisions {
  std::vector<UnitDecision> units;
  std::vector<Recompute> recompute; ///< By module.
};

struct Decisions {
  std::vector<ProgramDecisions> programs;
  std::vector<uint8_t> resident; ///< Units, gathered once for a whole step.
};

/// No overlap, no buckets, nothing kept and nothing recomputed.
Decisions makeDecisions(const StepModel &model);

/// As a text that people edit: TOML, one line for each unit.
std::string write(const StepModel &model, const Decisions &decisions);

/// Reads such a text; what it does not name is as `makeDecisions` has it.
/// Errors are one sentence and name `path`, and the line where there is one.
archive::Expected<Decisions> readDecisions(const StepModel &model,
                                           std::string_view text,
                                           const std::string &path);

bool operator==(const UnitDecision &a, const UnitDecision &b);
bool operator==(const ProgramDecisions &a, const ProgramDecisions &b);
bool operator==(const Decisions &a, const Decisions &b);

} // namespace fsdp::planner

#endif // FSDP_PLANNER_DECISIONS_H
